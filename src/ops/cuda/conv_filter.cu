// The gradient of a convolution's filter, after conv_axes.cu: patches, turned, times the output's gradient, summed over
// rows. A block of 256 threads makes a tile of 64 taps and channels by 64 filters of one group, over one of `parts` runs
// of rows, whose sums another launch adds in order.
extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const T* __restrict__ source, const T* __restrict__ gradient, T* __restrict__ sums_of_parts, int batch,
          int image_y, int image_x, int channels, int taps_y, int taps_x, int groups, int filters, int out_y, int out_x,
          int stride_y, int stride_x, int dilation_y, int dilation_x, int before_y, int before_x, int tiles_across,
          int tiles_down, int parts) {
    __shared__ T left[16][68], right[16][68];
    i64 block = blockIdx.x;
    const int across = block % tiles_across * 64;
    block /= tiles_across;
    const int down = block % tiles_down * 64;
    block /= tiles_down;
    const int group = block % groups, part = block / groups, thread = threadIdx.x;
    const Axis v = forward_axis(image_y, out_y, taps_y, stride_y, dilation_y, before_y);
    const Axis h = forward_axis(image_x, out_x, taps_x, stride_x, dilation_x, before_x);
    const int depth = channels / groups, width = filters / groups, length = taps_y * taps_x * depth;
    const Steps from = steps_of(image_y, image_x, channels), to = steps_of(out_y, out_x, filters);
    const i64 rows = (i64)batch * out_y * out_x, end = rows * (part + 1) / parts;

    // The taps and channels of the tile whose sources this thread reads.
    constexpr int OWN = CHANNELS_LAST ? 1 : 4;
    int tap_y[OWN], tap_x[OWN];
    i64 base[OWN];
#pragma unroll
    for (int r = 0; r < OWN; r++) {
        const int k = down + (CHANNELS_LAST ? thread % 64 : thread / 16 + 16 * r), tap = k / depth;
        tap_y[r] = k < length ? v.origin + tap / taps_x * v.tap_step : -0x40000000;
        tap_x[r] = h.origin + tap % taps_x * h.tap_step;
        base[r] = (i64)(group * depth + k - tap * depth) * from.channel;
    }

    T sums[4][4] = {};
    for (i64 first = rows * part / parts; first < end; first += 16) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int slot = CHANNELS_LAST ? thread / 64 + 4 * i : thread % 16, r = CHANNELS_LAST ? 0 : i;
            const int column = CHANNELS_LAST ? thread % 64 : thread / 16 + 16 * i;
            const i64 row = first + slot, line = row / out_x, image = line / out_y;
            const int out = (int)(line - image * out_y), place = (int)(row - line * out_x);
            const int y = out * v.step + tap_y[r], x = place * h.step + tap_x[r];
            const bool there = row < end && (u32)y < (u32)image_y && (u32)x < (u32)image_x;
            left[slot][column] = there ? source[image * from.batch + y * from.y + x * from.x + base[r]] : T(0);
            const int n = across + column;
            const i64 at = image * to.batch + out * to.y + place * to.x + (group * width + n) * to.channel;
            right[slot][column] = row < end && n < width ? gradient[at] : T(0);
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 16; k++) {
            T a[4], b[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                a[i] = left[k][thread / 16 * 4 + i];
                b[i] = right[k][thread % 16 * 4 + i];
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) sums[i][j] = multiply_add(a[i], b[j], sums[i][j]);
            }
        }
        __syncthreads();
    }
    T* own = sums_of_parts + (i64)part * length * filters;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int k = down + thread / 16 * 4 + i;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int n = across + thread % 16 * 4 + j;
            if (k < length && n < width) own[(i64)k * filters + group * width + n] = sums[i][j];
        }
    }
}
