// A convolution of single channels, or (constant BACKWARD) its image's gradient, after conv_axes.cu. A thread makes one
// result; backward it looks for the taps that fall on its place.
extern "C" __global__ void ENTRY(const T* __restrict__ source, const T* __restrict__ filter, T* __restrict__ target,
                                 int batch, int image_y, int image_x, int channels, int taps_y, int taps_x, int groups,
                                 int filters, int out_y, int out_x, int stride_y, int stride_x, int dilation_y,
                                 int dilation_x, int before_y, int before_x) {
    const int multiplier = filters / channels;
    const int to_y = BACKWARD ? image_y : out_y, to_x = BACKWARD ? image_x : out_x;
    const int to_channels = BACKWARD ? channels : filters;
    const Steps from = BACKWARD ? steps_of(out_y, out_x, filters) : steps_of(image_y, image_x, channels);
    const i64 count = (i64)batch * to_y * to_x * to_channels;
    for (i64 i = TURRET_FIRST; i < count; i += TURRET_STRIDE) {
        i64 rest = i;
        int channel, y, x;
        if (CHANNELS_LAST) channel = rest % to_channels, rest /= to_channels;
        x = rest % to_x, rest /= to_x;
        y = rest % to_y, rest /= to_y;
        if (!CHANNELS_LAST) channel = rest % to_channels, rest /= to_channels;
        const T* image = source + rest * from.batch;
        T sum = 0;
        for (int tap_y = 0; tap_y < taps_y; tap_y++) {
            int at_y = BACKWARD ? y + before_y - tap_y * dilation_y : y * stride_y + tap_y * dilation_y - before_y;
            if (BACKWARD && at_y % stride_y != 0) continue;
            if (BACKWARD) at_y /= stride_y;
            if (at_y < 0 || at_y >= (BACKWARD ? out_y : image_y)) continue;
            for (int tap_x = 0; tap_x < taps_x; tap_x++) {
                int at_x = BACKWARD ? x + before_x - tap_x * dilation_x : x * stride_x + tap_x * dilation_x - before_x;
                if (BACKWARD && at_x % stride_x != 0) continue;
                if (BACKWARD) at_x /= stride_x;
                if (at_x < 0 || at_x >= (BACKWARD ? out_x : image_x)) continue;
                const T* pixel = image + at_y * from.y + at_x * from.x;
                const T* weights = filter + ((i64)tap_y * taps_x + tap_x) * filters;
                if (BACKWARD) {
                    for (int m = 0; m < multiplier; m++) {
                        const int c = channel * multiplier + m;
                        sum = multiply_add(pixel[c * from.channel], weights[c], sum);
                    }
                } else {
                    sum = multiply_add(pixel[channel / multiplier * from.channel], weights[channel], sum);
                }
            }
        }
        target[i] = sum;
    }
}
