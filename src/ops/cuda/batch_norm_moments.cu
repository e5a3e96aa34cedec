// What batch normalization keeps of each channel over one of `parts` runs of its elements, in double: constant SLOPES 0,
// the mean and the sum of squared distances from it; 1, the sums of the gradient and of its product with the element's
// distance from `mean`. Constant LANES: how many lanes of a warp share a run, 1 where channels lie side by side.
extern "C" __global__ void ENTRY(const T* __restrict__ x, const T* __restrict__ gradient, const T* __restrict__ mean,
                                 double* __restrict__ found, i64 channels, i64 count, i64 inner, i64 parts,
                                 i64 part_length) {
    const i64 lane = threadIdx.x % LANES;
    for (i64 unit = TURRET_FIRST / LANES; unit < channels * parts; unit += TURRET_STRIDE / LANES) {
        const i64 part = unit / channels, channel = unit - part * channels, first = part * part_length;
        const i64 end = first + part_length < count ? first + part_length : count;
        const double about = SLOPES ? mean[channel] : 0;
        double sum = 0, other = 0;
        for (i64 i = first + lane; i < end; i += LANES) {
            const i64 outer = i / inner, at = (outer * channels + channel) * inner + (i - outer * inner);
            const double g = SLOPES ? gradient[at] : x[at];
            sum += g;
            if (SLOPES) other += g * (x[at] - about);
        }
        for (int d = LANES / 2; d > 0; d /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, d);
            if (SLOPES) other += __shfl_xor_sync(0xffffffffu, other, d);
        }
        if (!SLOPES) {
            sum /= end > first ? (double)(end - first) : 1;
            for (i64 i = first + lane; i < end; i += LANES) {
                const i64 outer = i / inner, at = (outer * channels + channel) * inner + (i - outer * inner);
                other += (x[at] - sum) * (x[at] - sum);
            }
            for (int d = LANES / 2; d > 0; d /= 2) other += __shfl_xor_sync(0xffffffffu, other, d);
        }
        if (lane == 0) {
            found[2 * unit] = sum;
            found[2 * unit + 1] = other;
        }
    }
}
