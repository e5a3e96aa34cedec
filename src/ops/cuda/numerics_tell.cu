// What both kernels of CheckNumerics use: a block's sum, in thread 0, and the report: 1 for NaN, 2 for infinities, and
// how many.

static __device__ __forceinline__ i64 block_sum(i64 value) {
    __shared__ i64 parts[32];
    for (int d = 16; d > 0; d /= 2) value += __shfl_down_sync(0xffffffffu, value, d);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    for (u32 warp = 0; warp < blockDim.x / 32; warp++) value += parts[warp];
    return value;
}

static __device__ __forceinline__ void tell(volatile u64* failure, u32 node, i64 nan, i64 inf) {
    if (nan + inf > 0) turret_fail(failure, node, (nan > 0) + 2 * (inf > 0), nan + inf);
}

