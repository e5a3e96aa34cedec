// Sorts tiles of `size` (a power of two, at most 2048) of `count` keys, each an index above the number of its entry, so
// that no two are equal. Indices out of range become `bound`. Where `checks`, the first bad one is looked for as well.
// Batcher's bitonic network, in shared memory.
extern "C" __global__ void ENTRY(const X* __restrict__ indices, i64 count, i64 bound, int shift, int size, int checks,
                                 u64* __restrict__ keys, i64* firsts, i64 offset, volatile u64* failure, u32 node) {
    __shared__ u64 tile[2048];
    i64 start = (i64)blockIdx.x * size, first = count;
    for (int i = threadIdx.x; i < size; i += 256) {
        i64 at = start + i;
        u64 key = ~(u64)0;
        if (at < count) {
            i64 index = indices[at];
            if (is_bad(index, bound) && at < first) first = at;
            key = (u64)(index >= 0 && index < bound ? index : bound) << shift | (u64)at;
        }
        tile[i] = key;
    }
    if (checks) {
        first = least(first);
        if (gridDim.x == 1) report(indices, first, count, offset, failure, node);
        else if (threadIdx.x == 0) firsts[blockIdx.x] = first;
    }
    for (int run = 2; run <= size; run *= 2) {
        for (int step = run / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < size / 2; i += 256) {
                int low = 2 * i - (i & (step - 1)), high = low + step;
                u64 a = tile[low], b = tile[high];
                if ((a > b) == ((low & run) == 0)) {
                    tile[low] = b;
                    tile[high] = a;
                }
            }
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < size; i += 256)
        if (start + i < count) keys[start + i] = tile[i];
}
