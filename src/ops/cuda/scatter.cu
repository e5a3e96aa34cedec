// Puts rows of `x` into those rows of `y` that sorted keys name (index above number of entry): `step` makes the new
// value of `old` and of each `x` in turn, in the order of the entries. The first key of an index does all of them.
extern "C" __global__ void ENTRY(T* __restrict__ y, const T* __restrict__ rows_of_x, const u64* __restrict__ keys,
                                 I entries, I rows, I width, u32 multiplier, u32 shift, int key_shift,
                                 volatile u64* failure, u32 node) {
    if (block_failed(failure)) return;
    u64 mask = ((u64)1 << key_shift) - 1;
    for (I at = (I)TURRET_FIRST; at < entries * width; at += (I)TURRET_STRIDE) {
        I entry = quotient(at, width, multiplier, shift), column = at - entry * width;
        u64 row = keys[entry] >> key_shift;
        if (row >= (u64)rows || (entry > 0 && keys[entry - 1] >> key_shift == row)) continue;
        I place = (I)row * width + column;
        T old = y[place];
        for (I e = entry; e < entries && keys[e] >> key_shift == row; e++) {
            T x = rows_of_x[(I)(keys[e] & mask) * width + column];
            old = $step;
        }
        y[place] = old;
    }
}
