// The gradient of a pool with channels last, a thread for each of the image's elements, which adds up what the windows
// give that have it. Constant LARGEST: only windows whose largest element it is (by its number in the window, `place`),
// else each window's share.
extern "C" __global__ void ENTRY(const T* __restrict__ gradient, const int* __restrict__ place, T* __restrict__ target,
                                 i64 images, int image_y, int image_x, int channels, int taps_y, int taps_x, int out_y,
                                 int out_x, int stride_y, int stride_x, int before_y, int before_x) {
    const i64 count = images * image_y * image_x * channels;
    for (i64 i = TURRET_FIRST; i < count; i += TURRET_STRIDE) {
        i64 rest = i / channels;
        const int channel = i - rest * channels, x = rest % image_x + before_x;
        rest /= image_x;
        const int y = rest % image_y + before_y;
        const i64 image = rest / image_y * out_y;
        const int from_y = y < taps_y ? 0 : (y - taps_y) / stride_y + 1, to_y = min(y / stride_y + 1, out_y);
        const int from_x = x < taps_x ? 0 : (x - taps_x) / stride_x + 1, to_x = min(x / stride_x + 1, out_x);
        T sum = 0;
        for (int at_y = from_y; at_y < to_y; at_y++) {
            const int tap_y = y - at_y * stride_y, first_y = at_y * stride_y - before_y;
            const int size_y = min(first_y + taps_y, image_y) - (first_y < 0 ? 0 : first_y);
            for (int at_x = from_x; at_x < to_x; at_x++) {
                const i64 at = ((image + at_y) * out_x + at_x) * channels + channel;
                if (LARGEST) {
                    if (place[at] == tap_y * taps_x + x - at_x * stride_x) sum = turret_plus(sum, gradient[at]);
                } else {
                    const int first_x = at_x * stride_x - before_x;
                    const int size_x = min(first_x + taps_x, image_x) - (first_x < 0 ? 0 : first_x);
                    sum = turret_plus(sum, turret_times(gradient[at], turret_over(T(1), T(size_y * size_x))));
                }
            }
        }
        target[i] = sum;
    }
}
