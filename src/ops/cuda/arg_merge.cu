// The best of what arg.cu found in the parts, after arg_best.cu. A part of NaN alone found nothing, which is below 0.

extern "C" __global__ void ENTRY(const T* x, const i64* found, R* o, i64 results, i64 length, i64 inner, i64 parts) {
    for (i64 result = TURRET_FIRST; result < results; result += TURRET_STRIDE) {
        const i64 block = result / inner;
        const T* own = x + block * inner * length + (result - block * inner);
        Best best = {0, -1};
        for (i64 part = 0; part < parts; part++) {
            const i64 at = found[part * results + result];
            if (at >= 0) best = merged(best, {own[at * inner], at});
        }
        o[result] = (R)best.at;
    }
}
