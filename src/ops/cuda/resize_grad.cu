// The gradient of resized images with channels last, after resize.cu: a thread for each element of the images adds up
// what the results give that were taken from it, in order.
extern "C" __global__ void ENTRY(const T* __restrict__ gradient, R* __restrict__ y, i64 images, i64 height, i64 width,
                                 i64 channels, i64 out_y, i64 out_x, float scale_y, float scale_x) {
    const i64 count = images * height * width * channels;
    for (i64 i = TURRET_FIRST; i < count; i += TURRET_STRIDE) {
        i64 rest = i / channels;
        const i64 c = i - rest * channels, at_x = rest % width;
        rest /= width;
        const i64 at_y = rest % height;
        const T* image = gradient + rest / height * out_y * out_x * channels + c;
        i64 first_y, end_y, first_x, end_x;
        takers(at_y, height, out_y, scale_y, first_y, end_y);
        takers(at_x, width, out_x, scale_x, first_x, end_x);
        R sum = 0;
        for (i64 j = first_y; j < end_y; j++) {
            const Sample down = sample(j, height, scale_y);
            if (down.lower != at_y && down.upper != at_y) continue;
            for (i64 k = first_x; k < end_x; k++) {
                const Sample across = sample(k, width, scale_x);
                const T g = image[(j * out_x + k) * channels];
                if (NEAREST) {
                    if (across.lower == at_x) sum = turret_plus(sum, (R)g);
                    continue;
                }
                const R share_y = (R)((down.lower == at_y ? 1 - down.lerp : 0) + (down.upper == at_y ? down.lerp : 0));
                const R share_x = (R)((across.lower == at_x ? 1 - across.lerp : 0) + (across.upper == at_x ? across.lerp : 0));
                sum += (R)g * share_y * share_x;
            }
        }
        y[i] = sum;
    }
}
