// Checks of indices `X`, for kernels that read or write by them; blocks of 256 threads.

// Whether an index is none of 0 to `bound` (not included). Where NEGATIVE, those below 0 are let pass.
static __device__ __forceinline__ bool is_bad(i64 index, i64 bound) {
    return index >= bound || (!NEGATIVE && index < 0);
}

// The least of a block's values, told to all threads.
static __device__ __forceinline__ i64 least(i64 value) {
    __shared__ i64 values[256];
    int thread = threadIdx.x;
    values[thread] = value;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half && values[thread + half] < values[thread]) values[thread] = values[thread + half];
    }
    __syncthreads();
    return values[0];
}

// Reports a bad entry, unless there is none or the node has reported one before. `offset` tells apart the vectors of a
// node that has several.
static __device__ __forceinline__ void report(const X* indices, i64 entry, i64 none, i64 offset,
                                              volatile u64* failure, u32 node) {
    if (threadIdx.x == 0 && entry != none && failure[1 + node] == 0)
        turret_fail(failure, node, offset + entry, indices[entry]);
}

// A block's part of a check: looks at the entries from `from` to `to` (not included) of `count`. The only block
// reports the first bad one, and each of several puts it (or `count`) in `firsts`, for `report.cu`.
static __device__ __forceinline__ void check(const X* indices, i64 count, i64 bound, i64 from, i64 to, u32 block,
                                             u32 blocks, i64* firsts, volatile u64* failure, u32 node) {
    i64 first = count;
#pragma unroll 8
    for (i64 at = from + threadIdx.x; at < to; at += 256)
        if (is_bad(indices[at], bound) && at < first) first = at;
    first = least(first);
    if (blocks == 1) report(indices, first, count, 0, failure, node);
    else if (threadIdx.x == 0) firsts[block] = first;
}
