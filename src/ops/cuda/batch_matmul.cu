// Products of many matrices `T`: `c[i, j]` is the sum over `p` of `a[i, p] * b[p, j]`, the steps of `a` and `b` along
// rows and columns being parameters. A block of 256 threads makes a tile of 16 by 16 of one product; `walk` tells where
// the matrices of each lie.
extern "C" __global__ void ENTRY(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, I m, I n, I k,
                                 I down, I across, I a_row, I a_column, I b_row, I b_column$walk_parameters) {
    __shared__ T left[16][17], right[16][17];
    I block = blockIdx.x, product = block / (down * across), from_a = 0, from_b = 0;
    block -= product * (down * across);
    walk(product, from_a, from_b$walk_names);
    int row = threadIdx.x / 16, column = threadIdx.x % 16;
    I i = block / across * 16 + row, j = block % across * 16 + column;
    T sum = 0;
    for (I p = 0; p < k; p += 16) {
        left[row][column] = i < m && p + column < k ? a[from_a + i * a_row + (p + column) * a_column] : 0;
        right[row][column] = j < n && p + row < k ? b[from_b + (p + row) * b_row + j * b_column] : 0;
        __syncthreads();
#pragma unroll
        for (int q = 0; q < 16; q++) sum = turret_plus(sum, turret_times(left[row][q], right[q][column]));
        __syncthreads();
    }
    if (i < m && j < n) c[product * m * n + i * n + j] = sum;
}
