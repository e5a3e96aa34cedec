// Normalizes every element with the moments of its channel.
extern "C" __global__ void ENTRY(const T* __restrict__ x, const T* __restrict__ scale, const T* __restrict__ offset,
                                 const T* __restrict__ mean, const T* __restrict__ variance, T* __restrict__ y,
                                 i64 count, i64 channels, i64 inner, T epsilon) {
    for (i64 i = TURRET_FIRST; i < count; i += TURRET_STRIDE) {
        const i64 c = i / inner % channels;
        y[i] = (x[i] - mean[c]) * (scale[c] / turret_sqrt(variance[c] + epsilon)) + offset[c];
    }
}
