// Reports the first bad one of `count` indices, from what the blocks of a check found.
extern "C" __global__ void ENTRY(const i64* __restrict__ firsts, i64 blocks, const X* __restrict__ indices, i64 count,
                                 i64 offset, volatile u64* failure, u32 node) {
    i64 first = count;
    for (i64 at = threadIdx.x; at < blocks; at += 256)
        if (firsts[at] < first) first = firsts[at];
    report(indices, least(first), count, offset, failure, node);
}
