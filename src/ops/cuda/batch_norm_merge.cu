// Merges the moments of all parts of each channel, in order: the batch's mean and variance go to `used`, and the running
// ones, of which the batch's are `factor`, to `running`. Without training the old moments are all of these. Without
// elements the running moments are no numbers.
extern "C" __global__ void ENTRY(const double* __restrict__ found, const T* __restrict__ old_mean,
                                 const T* __restrict__ old_variance, T* __restrict__ running_mean,
                                 T* __restrict__ running_variance, T* __restrict__ used_mean,
                                 T* __restrict__ used_variance, i64 channels, i64 count, i64 parts, i64 part_length,
                                 int training, double factor) {
    for (i64 c = TURRET_FIRST; c < channels; c += TURRET_STRIDE) {
        if (count == 0) {
            running_mean[c] = running_variance[c] = (T)(0.0 / (double)count);
            used_mean[c] = used_variance[c] = 0;
            continue;
        }
        if (!training) {
            running_mean[c] = used_mean[c] = old_mean[c];
            running_variance[c] = used_variance[c] = old_variance[c];
            continue;
        }
        double mean = found[2 * c], squares = found[2 * c + 1], n = part_length < count ? part_length : count;
        for (i64 part = 1; part < parts; part++) {
            const i64 unit = part * channels + c, left = count - part * part_length;
            const double k = part_length < left ? part_length : left, all = n + k, apart = found[2 * unit] - mean;
            mean += apart * (k / all);
            squares += found[2 * unit + 1] + apart * apart * (n * k / all);
            n = all;
        }
        const double unbiased = squares / (count > 1 ? (double)(count - 1) : 1);
        running_mean[c] = (T)(factor == 1 ? mean : (1 - factor) * (double)old_mean[c] + factor * mean);
        running_variance[c] = (T)(factor == 1 ? unbiased : (1 - factor) * (double)old_variance[c] + factor * unbiased);
        used_mean[c] = (T)mean;
        used_variance[c] = (T)(squares / (double)count);
    }
}
