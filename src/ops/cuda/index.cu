// What texts that compute indices share; `I` is the type that they count elements in.

// `at / size` for `at >= 0`, by the prelude's division where the counts are narrow.
static __device__ __forceinline__ int quotient(int at, int size, u32 multiplier, u32 shift) {
    return (int)turret_divide(at, multiplier, shift);
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
