// Slices of `params`, by number: `out[o, i, w] = params[o, indices[i], w]`, or 0 where an index is out of range. The
// last blocks, which come after `workers` others, check the indices instead, 16384 each.
extern "C" __global__ void ENTRY(const T* __restrict__ params, const X* __restrict__ indices, T* __restrict__ out,
                                 I len, I bound, I count, u32 count_multiplier, u32 count_shift, I width,
                                 u32 width_multiplier, u32 width_shift, u32 workers, i64* firsts,
                                 volatile u64* failure, u32 node) {
    if (blockIdx.x >= workers) {
        u32 block = blockIdx.x - workers;
        i64 from = (i64)block * 16384, to = from + 16384 < count ? from + 16384 : count;
        check(indices, count, bound, from, to, block, gridDim.x - workers, firsts, failure, node);
        return;
    }
    I stride = (I)workers * 256;
    for (I first = (I)TURRET_FIRST; first < len; first += 4 * stride) {
        T values[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            I at = first + i * stride;
            if (at < len) {
                I row = quotient(at, width, width_multiplier, width_shift);
                I outer = quotient(row, count, count_multiplier, count_shift);
                i64 index = indices[row - outer * count];
                bool good = index >= 0 && index < bound;
                values[i] = good ? params[(outer * bound + (I)index) * width + (at - row * width)] : (T)0;
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (first + i * stride < len) out[first + i * stride] = values[i];
    }
}
