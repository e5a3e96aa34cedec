// Resizes images with channels last, after resize.cu, a thread for each element of the result.
extern "C" __global__ void ENTRY(const T* __restrict__ x, R* __restrict__ y, i64 images, i64 height, i64 width,
                                 i64 channels, i64 out_y, i64 out_x, float scale_y, float scale_x) {
    const i64 count = images * out_y * out_x * channels;
    for (i64 i = TURRET_FIRST; i < count; i += TURRET_STRIDE) {
        i64 rest = i / channels;
        const i64 c = i - rest * channels;
        const Sample across = sample(rest % out_x, width, scale_x);
        rest /= out_x;
        const Sample down = sample(rest % out_y, height, scale_y);
        const T* image = x + rest / out_y * height * width * channels + c;
        const T* top = image + down.lower * width * channels;
        if (NEAREST) {
            y[i] = (R)top[across.lower * channels];
            continue;
        }
        const T* bottom = image + down.upper * width * channels;
        const float a = (float)top[across.lower * channels], b = (float)top[across.upper * channels];
        const float c0 = (float)bottom[across.lower * channels], d = (float)bottom[across.upper * channels];
        const float upper = a + (b - a) * across.lerp, lower = c0 + (d - c0) * across.lerp;
        y[i] = (R)(upper + (lower - upper) * down.lerp);
    }
}
