// The product of two matrices of integers `T`, which wraps: `c[i, j]` is the sum over `p` of `a[i, p] * b[p, j]`, the
// steps of `a` and `b` along rows and columns being parameters. A block of 256 threads makes a tile of 16 by 16.
extern "C" __global__ void ENTRY(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, i64 m, i64 n,
                                 i64 k, i64 a_row, i64 a_column, i64 b_row, i64 b_column) {
    __shared__ T left[16][17], right[16][17];
    i64 across = (n + 15) / 16;
    int row = threadIdx.x / 16, column = threadIdx.x % 16;
    i64 i = blockIdx.x / across * 16 + row, j = blockIdx.x % across * 16 + column;
    T sum = 0;
    for (i64 p = 0; p < k; p += 16) {
        left[row][column] = i < m && p + column < k ? a[i * a_row + (p + column) * a_column] : 0;
        right[row][column] = j < n && p + row < k ? b[(p + row) * b_row + j * b_column] : 0;
        __syncthreads();
#pragma unroll
        for (int q = 0; q < 16; q++) sum = turret_plus(sum, turret_times(left[row][q], right[q][column]));
        __syncthreads();
    }
    if (i < m && j < n) c[i * n + j] = sum;
}
