// Pools with channels last, a thread for each result. Constant MAKE: 0 the largest element of the window, 1 the average
// of those in the image, 2 the place of the largest (the first of equal ones) as its number in the window, 3 what
// `taken` has at that place.
extern "C" __global__ void ENTRY(const T* __restrict__ x, const T* __restrict__ taken, R* __restrict__ y, i64 images,
                                 int image_y, int image_x, int channels, int taps_y, int taps_x, int out_y, int out_x,
                                 int stride_y, int stride_x, int before_y, int before_x, R lowest) {
    const i64 count = images * out_y * out_x * channels;
    for (i64 i = TURRET_FIRST; i < count; i += TURRET_STRIDE) {
        i64 rest = i / channels;
        const int channel = i - rest * channels, first_x = rest % out_x * stride_x - before_x;
        rest /= out_x;
        const int first_y = rest % out_y * stride_y - before_y;
        const i64 image = rest / out_y * image_y * image_x;
        const int from_y = first_y < 0 ? 0 : first_y, from_x = first_x < 0 ? 0 : first_x;
        const int to_y = min(first_y + taps_y, image_y), to_x = min(first_x + taps_x, image_x);
        R result = MAKE == 0 ? lowest : 0;
        T best = 0;
        i64 place = -1;
        for (int at_y = from_y; at_y < to_y; at_y++) {
            for (int at_x = from_x; at_x < to_x; at_x++) {
                const i64 at = (image + (i64)at_y * image_x + at_x) * channels + channel;
                const T value = x[at];
                if (MAKE == 0) {
                    if (value > result) result = value;
                } else if (MAKE == 1) {
                    result = turret_plus(result, (R)value);
                } else if (place < 0 || value > best) {
                    best = value;
                    place = at;
                    if (MAKE == 2) result = (at_y - first_y) * taps_x + (at_x - first_x);
                }
            }
        }
        if (MAKE == 1) result = turret_over(result, (R)((to_y - from_y) * (to_x - from_x)));
        if (MAKE == 3 && place >= 0) result = (R)taken[place];
        y[i] = result;
    }
}
