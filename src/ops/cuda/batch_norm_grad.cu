// The gradient of every element, by the numbers of its channel (batch_norm_slopes.cu).
extern "C" __global__ void ENTRY(const T* __restrict__ gradient, const T* __restrict__ x, const T* __restrict__ mean,
                                 const T* __restrict__ numbers, T* __restrict__ y, i64 count, i64 channels, i64 inner) {
    for (i64 i = TURRET_FIRST; i < count; i += TURRET_STRIDE) {
        const i64 c = i / inner % channels;
        const T shift = numbers[channels + c], slope = numbers[2 * channels + c];
        y[i] = (gradient[i] - shift - (x[i] - mean[c]) * slope) * numbers[c];
    }
}
