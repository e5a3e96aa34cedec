// What kernels of convolutions share: where results and sources meet along an axis (`Axis` in conv_geometry.rs), and
// the steps of image tensors. Constant CHANNELS_LAST: [batch, y, x, channels], else [batch, channels, y, x].
struct Axis {
    int count, first, stride, step, origin, taps, tap_step, tap_first, tap_stride, source;
};

static TURRET_INLINE Axis forward_axis(int image, int out, int taps, int stride, int dilation, int before) {
    return Axis{out, 0, 1, stride, -before, taps, dilation, 0, 1, image};
}

// The image's places of one remainder by the stride, and the output's that they see; `apart` is how far those taps lie
// from each other that fall on the same places.
static TURRET_INLINE Axis backward_axis(int image, int out, int taps, int stride, int dilation, int before, int apart,
                                        int remainder) {
    int tap = 0, many = apart < taps ? apart : taps;
    while (tap < many && (remainder + before - tap * dilation) % stride != 0) tap++;
    int count = (image - remainder + stride - 1) / stride, tap_step = dilation * apart / stride;
    if (tap == many) return Axis{count, remainder, stride, 1, 0, 0, tap_step, 0, 0, out};
    int more = (taps - 1 - tap) / apart, last = tap + more * apart;
    return Axis{count, remainder, stride, 1, (remainder + before - last * dilation) / stride, more + 1, tap_step, last,
                -apart, out};
}

struct Steps {
    i64 batch, y, x, channel;
};

static TURRET_INLINE Steps steps_of(int y, int x, int channels) {
    i64 plane = (i64)y * x;
    if (CHANNELS_LAST) return Steps{plane * channels, (i64)x * channels, channels, 1};
    return Steps{plane * channels, x, 1, plane};
}

static TURRET_INLINE float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
static TURRET_INLINE double multiply_add(double a, double b, double c) { return fma(a, b, c); }
