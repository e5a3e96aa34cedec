// What texts that compute indices share; `I` is the type that they count elements in.

// `at / size` for `0 <= at < 2^31`, by a multiplication where the counts are narrow; a multiplier of 0 stands for a
// size of 1.
static __device__ __forceinline__ int quotient(int at, int size, u32 multiplier, u32 shift) {
    return multiplier == 0 ? at : (int)((u32)(((u64)(u32)at * multiplier) >> 32) >> shift);
}

static __device__ __forceinline__ i64 quotient(i64 at, i64 size, u32 multiplier, u32 shift) {
    return at / size;
}

// Whether a check before this kernel failed, asked once a block: the answer lies in host memory.
static __device__ __forceinline__ bool block_failed(volatile u64* failure) {
    __shared__ bool failed;
    if (failure == 0) return false;
    if (threadIdx.x == 0) failed = turret_failed(failure);
    __syncthreads();
    return failed;
}
