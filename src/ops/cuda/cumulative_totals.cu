// The total of each chunk, `totals[chunk, column]`, after cumulative_step.cu.

extern "C" __global__ void ENTRY(
    const T* x, T* totals, i64 columns, i64 length, i64 inner, i64 chunks, i64 chunk_length, int reverse) {
    const i64 lane = threadIdx.x % LANES;
    for (i64 unit = TURRET_FIRST / LANES; unit < columns * chunks; unit += TURRET_STRIDE / LANES) {
        const i64 chunk = unit / columns, column = unit - chunk * columns;
        const i64 first = chunk * chunk_length, end = first + chunk_length < length ? first + chunk_length : length;
        T total = PRODUCT ? 1 : 0;
        for (i64 i = first + lane; i < end; i += LANES) {
            total = step(total, x[place(column, i, length, inner, reverse)]);
        }
#pragma unroll
        for (int d = LANES / 2; d > 0; d /= 2) total = step(total, __shfl_down_sync(0xffffffffu, total, d));
        if (lane == 0) totals[unit] = total;
    }
}
