// Joins parts into a whole or cuts it into them: part `i` holds `len{i}` elements `T` of each row, from `start{i}` on.
// The blocks from `end{i - 1}` to `end{i}` are part `i`'s. Parameters, the choice of a part, and the direction are put
// in.
extern "C" __global__ void ENTRY($whole __restrict__ whole, I rows, I width$parameters) {
    u32 block = blockIdx.x, before, multiplier, shift;
    $part part;
    I len, start;
    $choice
    I count = rows * len;
    I first = (I)(block - before) * (8 * 256) + (I)threadIdx.x;
    T values[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        I at = first + i * 256;
        if (at < count) {
            I row = quotient(at, len, multiplier, shift);
            I to = row * width + start + (at - row * len);
            values[i] = $source;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        I at = first + i * 256;
        if (at < count) {
            I row = quotient(at, len, multiplier, shift);
            I to = row * width + start + (at - row * len);
            $target = values[i];
        }
    }
}
