// ArgMax and ArgMin of a part of each result's elements, after arg_best.cu: `found[part, result]`. Constant LANES: how
// many lanes of a warp share a part, 1 where neighbouring results lie side by side.

extern "C" __global__ void ENTRY(
    const T* x, R* found, i64 results, i64 length, i64 inner, i64 parts, i64 part_length) {
    const i64 lane = threadIdx.x % LANES;
    for (i64 unit = TURRET_FIRST / LANES; unit < results * parts; unit += TURRET_STRIDE / LANES) {
        const i64 part = unit / results, result = unit - part * results, block = result / inner;
        const T* own = x + block * inner * length + (result - block * inner);
        const i64 first = part * part_length, end = first + part_length < length ? first + part_length : length;
        Best best = {0, -1};
#pragma unroll 4
        for (i64 i = first + lane; i < end; i += LANES) meet(best, own[i * inner], i);
#pragma unroll
        for (int d = LANES / 2; d > 0; d /= 2) {
            const T value = __shfl_down_sync(0xffffffffu, best.value, d);
            const i64 at = __shfl_down_sync(0xffffffffu, best.at, d);
            best = merged(best, {value, at});
        }
        if (lane == 0) found[unit] = (R)best.at;
    }
}
