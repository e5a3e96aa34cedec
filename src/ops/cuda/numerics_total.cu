// Adds up what the blocks of `numerics.cu` counted.

extern "C" __global__ void ENTRY(const i64* counts, volatile u64* failure, u32 node, i64 blocks) {
    i64 nan = 0, inf = 0;
    for (i64 i = threadIdx.x; i < blocks; i += blockDim.x) {
        nan += counts[2 * i];
        inf += counts[2 * i + 1];
    }
    nan = block_sum(nan);
    inf = block_sum(inf);
    if (threadIdx.x == 0) tell(failure, node, nan, inf);
}
