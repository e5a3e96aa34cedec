// The gradient of a filter of single channels, after conv_axes.cu: each of its elements over one of `parts` runs of
// rows, whose sums another launch adds in order. Where channels are in the middle, a warp shares each sum.
extern "C" __global__ void ENTRY(const T* __restrict__ source, const T* __restrict__ gradient,
                                 T* __restrict__ sums_of_parts, int batch, int image_y, int image_x, int channels,
                                 int taps_y, int taps_x, int groups, int filters, int out_y, int out_x, int stride_y,
                                 int stride_x, int dilation_y, int dilation_x, int before_y, int before_x, int parts) {
    constexpr int LANES = CHANNELS_LAST ? 1 : 32;
    const int multiplier = filters / channels;
    const Steps from = steps_of(image_y, image_x, channels), to = steps_of(out_y, out_x, filters);
    const i64 rows = (i64)batch * out_y * out_x, count = (i64)taps_y * taps_x * filters * parts;
    for (i64 i = TURRET_FIRST / LANES; i < count; i += TURRET_STRIDE / LANES) {
        i64 rest = i;
        const int filter = rest % filters;
        rest /= filters;
        const int tap_x = rest % taps_x;
        rest /= taps_x;
        const int tap_y = rest % taps_y;
        const i64 part = rest / taps_y, end = rows * (part + 1) / parts;
        const T* image = source + filter / multiplier * from.channel;
        T sum = 0;
        for (i64 row = rows * part / parts + TURRET_FIRST % LANES; row < end; row += LANES) {
            const i64 line = row / out_x, n = line / out_y, place_y = line - n * out_y, place_x = row - line * out_x;
            const i64 y = place_y * stride_y + tap_y * dilation_y - before_y;
            const i64 x = place_x * stride_x + tap_x * dilation_x - before_x;
            if (y < 0 || y >= image_y || x < 0 || x >= image_x) continue;
            const i64 at = n * to.batch + place_y * to.y + place_x * to.x + filter * to.channel;
            sum = multiply_add(image[n * from.batch + y * from.y + x * from.x], gradient[at], sum);
        }
        for (int d = LANES / 2; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (TURRET_FIRST % LANES == 0) sums_of_parts[i] = sum;
    }
}
