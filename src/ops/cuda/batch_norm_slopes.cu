// Adds up the sums of all parts of each channel, in order: the gradients of scale and offset, and what the gradient of
// an element of the channel takes: a factor, a shift and a slope.
extern "C" __global__ void ENTRY(const double* __restrict__ found, const T* __restrict__ scale,
                                 const T* __restrict__ variance, T* __restrict__ to_scale, T* __restrict__ to_offset,
                                 T* __restrict__ numbers, i64 channels, i64 count, i64 parts, int training,
                                 double epsilon) {
    for (i64 c = TURRET_FIRST; c < channels; c += TURRET_STRIDE) {
        double sum = 0, product = 0;
        for (i64 part = 0; part < parts; part++) {
            sum += found[2 * (part * channels + c)];
            product += found[2 * (part * channels + c) + 1];
        }
        const double inverse = 1 / turret_sqrt((double)variance[c] + epsilon);
        to_scale[c] = (T)(product * inverse);
        to_offset[c] = (T)sum;
        numbers[c] = (T)((double)scale[c] * inverse);
        numbers[channels + c] = training && count > 0 ? (T)(sum / (double)count) : T(0);
        numbers[2 * channels + c] = training && count > 0 ? (T)(product * inverse * inverse / (double)count) : T(0);
    }
}
