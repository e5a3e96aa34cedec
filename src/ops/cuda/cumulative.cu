// Cumsum and Cumprod, after cumulative_step.cu: each chunk from what comes before it. Constant CHUNKED: whether there
// is anything before.

extern "C" __global__ void ENTRY(
    const T* x, const T* starts, T* o, i64 columns, i64 length, i64 inner, i64 chunks, i64 chunk_length, int reverse,
    int exclusive) {
    const int lane = threadIdx.x % LANES;
    for (i64 unit = TURRET_FIRST / LANES; unit < columns * chunks; unit += TURRET_STRIDE / LANES) {
        const i64 chunk = unit / columns, column = unit - chunk * columns;
        const i64 first = chunk * chunk_length, end = first + chunk_length < length ? first + chunk_length : length;
        T total = CHUNKED ? starts[unit] : T(PRODUCT ? 1 : 0);
        for (i64 from = first; from < end; from += LANES) {
            const i64 at = place(column, from + lane, length, inner, reverse);
            const bool inside = from + lane < end;
            T sum = inside ? x[at] : T(PRODUCT ? 1 : 0);
            if (LANES == 1) {
                const T next = step(total, sum);
                o[at] = exclusive ? total : next;
                total = next;
                continue;
            }
#pragma unroll
            for (int d = 1; d < LANES; d *= 2) {
                const T before = __shfl_sync(0xffffffffu, sum, lane < d ? lane : lane - d);
                if (lane >= d) sum = step(before, sum);
            }
            const T before = __shfl_sync(0xffffffffu, sum, lane == 0 ? 0 : lane - 1);
            if (inside) o[at] = exclusive ? lane == 0 ? total : step(total, before) : step(total, sum);
            total = step(total, __shfl_sync(0xffffffffu, sum, LANES - 1));
        }
    }
}
