// Copies boxes of `rows` by `columns` elements `T`: rows lie together in the source, columns (as a rule) in the target.
// A block takes one tile through shared memory, so that both sides are touched in whole lines. `walk` goes over boxes.
extern "C" __global__ void ENTRY(const T* __restrict__ x, T* __restrict__ y, I rows, I columns, I tiles_down,
                                 I tiles_across, I column_from, I row_to, I column_to$walk_parameters) {
    __shared__ T tile[32][33];
    I block = blockIdx.x;
    I column = block % tiles_across * 32;
    block /= tiles_across;
    I row = block % tiles_down * 32;
    I from = 0, to = 0;
    walk(block / tiles_down, from, to$walk_names);
    int fast = threadIdx.x % 32, slow = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < 32; i += 8) {
        I c = column + slow + i, r = row + fast;
        if (c < columns && r < rows) tile[slow + i][fast] = x[from + r + c * column_from];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 32; i += 8) {
        I r = row + slow + i, c = column + fast;
        if (c < columns && r < rows) y[to + r * row_to + c * column_to] = tile[fast][slow + i];
    }
}
