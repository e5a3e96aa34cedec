// Inverts a permutation `T` by its sorted keys (value above number of entry). An entry is bad if it is out of range or
// not the first of its value; one block of 256 threads finds the first such, and writes the others.
extern "C" __global__ void ENTRY(const u64* __restrict__ keys, const X* __restrict__ values, X* __restrict__ out,
                                 i64 count, int shift, volatile u64* failure, u32 node) {
    u64 mask = ((u64)1 << shift) - 1;
    i64 first = count;
    for (i64 i = threadIdx.x; i < count; i += 256) {
        i64 value = (i64)(keys[i] >> shift), entry = (i64)(keys[i] & mask);
        if (value < count && (i == 0 || (i64)(keys[i - 1] >> shift) != value)) out[value] = (X)entry;
        else if (entry < first) first = entry;
    }
    report(values, least(first), count, 0, failure, node);
}
