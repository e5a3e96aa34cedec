// CheckNumerics: copies, and counts what is no finite number. A single block tells of it at once; several leave their
// counts of NaN and of infinities, which `numerics_total.cu` adds up.

template <int W> static __device__ __forceinline__ void run(const T* x, T* o, i64 first, i64 end, i64& nan, i64& inf) {
    for (i64 i = first + TURRET_FIRST * W; i < end; i += TURRET_STRIDE * W) {
        const turret_vector<T, W> v = turret_load<W>(x + i);
        if (x != o) turret_store<W>(o + i, v);
#pragma unroll
        for (int k = 0; k < W; k++) {
            const bool is_nan = v.v[k] != v.v[k];
            nan += is_nan;
            inf += !is_nan && v.v[k] - v.v[k] != 0;
        }
    }
}

extern "C" __global__ void ENTRY(const T* x, T* o, i64* counts, volatile u64* failure, u32 node, i64 len) {
    i64 nan = 0, inf = 0;
    const i64 whole = turret_aligned<4>(x) && turret_aligned<4>(o) ? len / 4 * 4 : 0;
    run<4>(x, o, 0, whole, nan, inf);
    run<1>(x, o, whole, len, nan, inf);
    nan = block_sum(nan);
    inf = block_sum(inf);
    if (threadIdx.x != 0) return;
    if (gridDim.x == 1) return tell(failure, node, nan, inf);
    counts[2 * blockIdx.x] = nan;
    counts[2 * blockIdx.x + 1] = inf;
}
