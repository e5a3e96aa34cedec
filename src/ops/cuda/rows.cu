// What kernels over rows share: a team of threads for each row, and what the team agrees on.
//
// Constant PER: above 0, a warp has a row, and each lane PER of its elements, which fit in registers; 0, a whole block
// has a row, whose elements it reads as often as it needs them. All of a team calls together. The order of every sum
// depends on the row's length alone.

// How far loops over a thread's elements are unrolled: wholly, where the elements are in registers.
static constexpr int UNROLL = PER > 0 ? (int)PER : sizeof(T) > 4 ? 1 : 2;

static __device__ __forceinline__ i64 team_first() { return PER > 0 ? threadIdx.x % 32 : threadIdx.x; }
static __device__ __forceinline__ i64 team_size() { return PER > 0 ? 32 : blockDim.x; }
static __device__ __forceinline__ i64 first_row() {
    return PER > 0 ? TURRET_FIRST / 32 : (i64)blockIdx.x;
}
static __device__ __forceinline__ i64 row_stride() { return PER > 0 ? TURRET_STRIDE / 32 : (i64)gridDim.x; }

// How many elements of a row of this length a thread looks at, some of them perhaps beyond the end.
static __device__ __forceinline__ int turns(i64 length) {
    return PER > 0 ? (int)PER : (int)((length + blockDim.x - 1) / blockDim.x);
}

// The team's values as one, in every thread; f is commutative.
template <class V, class F> static __device__ __forceinline__ V team_all(V value, F f) {
    for (int d = 16; d > 0; d /= 2) value = f(value, __shfl_xor_sync(0xffffffffu, value, d));
    if constexpr (PER == 0) {
        __shared__ V parts[32];
        __syncthreads();
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
        __syncthreads();
        value = parts[0];
        for (u32 warp = 1; warp < blockDim.x / 32; warp++) value = f(value, parts[warp]);
    }
    return value;
}

template <class V> static __device__ __forceinline__ V team_sum(V value) {
    return team_all(value, [](V x, V y) { return x + y; });
}

template <class V> static __device__ __forceinline__ V team_largest(V value) {
    return team_all(value, [](V x, V y) { return turret_larger(x, y); });
}
