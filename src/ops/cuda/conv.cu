// A convolution, or (constant BACKWARD) its image's gradient, after conv_axes.cu: the product of the patches that the
// results see, which are gathered while they are multiplied, and the filter. A block of 256 threads makes a tile of 64
// results by 64 channels of one group; backward, of one remainder of the places by the strides. Every result is summed
// in the order of taps and channels.
extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const T* __restrict__ source, const T* __restrict__ filter, T* __restrict__ target, int batch, int image_y,
          int image_x, int channels, int taps_y, int taps_x, int groups, int filters, int out_y, int out_x, int stride_y,
          int stride_x, int dilation_y, int dilation_x, int before_y, int before_x, int apart_y, int apart_x,
          int remainders_x, int tiles_across, i64 tiles_down) {
    __shared__ T left[16][68], right[16][68];
    i64 block = blockIdx.x;
    const int across = block % tiles_across * 64;
    block /= tiles_across;
    const int group = block % groups;
    block /= groups;
    const i64 down = block % tiles_down * 64;
    const int remainder = block / tiles_down;
    const Axis v = BACKWARD ? backward_axis(image_y, out_y, taps_y, stride_y, dilation_y, before_y, apart_y,
                                            remainder / remainders_x)
                            : forward_axis(image_y, out_y, taps_y, stride_y, dilation_y, before_y);
    const Axis h = BACKWARD ? backward_axis(image_x, out_x, taps_x, stride_x, dilation_x, before_x, apart_x,
                                            remainder % remainders_x)
                            : forward_axis(image_x, out_x, taps_x, stride_x, dilation_x, before_x);
    const int from_channels = BACKWARD ? filters : channels, to_channels = BACKWARD ? channels : filters;
    const int depth = from_channels / groups, width = to_channels / groups;
    const Steps from = steps_of(v.source, h.source, from_channels);
    const Steps to = BACKWARD ? steps_of(image_y, image_x, to_channels) : steps_of(out_y, out_x, to_channels);
    const i64 rows = (i64)batch * v.count * h.count;
    const int length = v.taps * h.taps * depth, thread = threadIdx.x;

    // The rows of the tile whose sources this thread reads.
    constexpr int OWN = CHANNELS_LAST ? 4 : 1;
    int start_y[OWN], start_x[OWN];
    i64 base[OWN];
#pragma unroll
    for (int r = 0; r < OWN; r++) {
        const i64 row = down + (CHANNELS_LAST ? thread / 16 + 16 * r : thread % 64);
        const i64 line = row / h.count;
        start_y[r] = row < rows ? (int)(line % v.count) * v.step + v.origin : -0x40000000;
        start_x[r] = (int)(row % h.count) * h.step + h.origin;
        base[r] = line / v.count * from.batch + (i64)group * depth * from.channel;
    }

    T sums[4][4] = {};
    for (int first = 0; first < length; first += 16) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int slot = CHANNELS_LAST ? thread % 16 : thread / 64 + 4 * i, r = CHANNELS_LAST ? i : 0;
            const int k = first + slot, tap = k / depth, channel = k - tap * depth;
            const int y = start_y[r] + tap / h.taps * v.tap_step, x = start_x[r] + tap % h.taps * h.tap_step;
            const bool there = k < length && (u32)y < (u32)v.source && (u32)x < (u32)h.source;
            const i64 at = base[r] + y * from.y + x * from.x + channel * from.channel;
            left[slot][CHANNELS_LAST ? thread / 16 + 16 * i : thread % 64] = there ? source[at] : T(0);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int slot = BACKWARD ? thread % 16 : thread / 64 + 4 * i;
            const int column = BACKWARD ? thread / 16 + 16 * i : thread % 64;
            const int k = first + slot, n = across + column;
            T value = 0;
            if (k < length && n < width) {
                if (BACKWARD) {
                    const int tap = k / depth, y = v.tap_first + tap / h.taps * v.tap_stride;
                    const int x = h.tap_first + tap % h.taps * h.tap_stride;
                    const i64 row = ((i64)y * taps_x + x) * width + n;
                    value = filter[row * filters + group * depth + (k - tap * depth)];
                } else {
                    value = filter[(i64)k * filters + group * width + n];
                }
            }
            right[slot][column] = value;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 16; k++) {
            T a[4], b[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                a[i] = left[k][(CHANNELS_LAST ? thread / 16 : thread % 16) * 4 + i];
                b[i] = right[k][(CHANNELS_LAST ? thread % 16 : thread / 16) * 4 + i];
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) sums[i][j] = multiply_add(a[i], b[j], sums[i][j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const i64 row = down + (CHANNELS_LAST ? thread / 16 : thread % 16) * 4 + i, line = row / h.count;
        if (row >= rows) continue;
        const i64 y = v.first + line % v.count * v.stride, x = h.first + row % h.count * h.stride;
        const i64 place = line / v.count * to.batch + y * to.y + x * to.x;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int n = across + (CHANNELS_LAST ? thread % 16 : thread / 16) * 4 + j;
            if (n < width) target[place + (group * width + n) * to.channel] = sums[i][j];
        }
    }
}
