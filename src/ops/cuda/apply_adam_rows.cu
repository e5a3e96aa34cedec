// One step of Adam from rows of a gradient: all of both moments decay, the rows that sorted keys name (row above number
// of entry) add the sum of their entries, and every row of the variable moves.
extern "C" __global__ void ENTRY(volatile u64* failure, u32 node, T* __restrict__ var, T* __restrict__ slot0,
                                 T* __restrict__ slot1, const T* __restrict__ gradient, const u64* __restrict__ keys,
                                 I entries, int key_shift, I width, u32 multiplier, u32 shift, I len$parameters) {
    if (block_failed(failure)) return;
    $scalars
    u64 mask = ((u64)1 << key_shift) - 1;
    for (I at = (I)TURRET_FIRST; at < len; at += (I)TURRET_STRIDE) {
        I row = quotient(at, width, multiplier, shift), column = at - row * width;
        T x = var[at], a = slot0[at], b = slot1[at];
        $decay
        I low = 0, high = entries;
        while (low < high) {
            I middle = low + (high - low) / 2;
            if (keys[middle] >> key_shift < (u64)row) low = middle + 1;
            else high = middle;
        }
        if (low < entries && keys[low] >> key_shift == (u64)row) {
            T g = gradient[(I)(keys[low] & mask) * width + column];
            for (I e = low + 1; e < entries && keys[e] >> key_shift == (u64)row; e++)
                g = g + gradient[(I)(keys[e] & mask) * width + column];
            $scatter
        }
        slot0[at] = a;
        slot1[at] = b;
        $move
        var[at] = x;
    }
}
