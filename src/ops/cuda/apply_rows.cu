// One update step of those rows of a variable that sorted keys name (row above number of entry). A row's entries are
// summed in their order before `update` changes it; or `update` is done for each, where EACH.
extern "C" __global__ void ENTRY(volatile u64* failure, u32 node, T* __restrict__ var, T* __restrict__ slot0,
                                 T* __restrict__ slot1, T* __restrict__ slot2, const T* __restrict__ gradient,
                                 const u64* __restrict__ keys, I entries, int key_shift, I width, u32 multiplier,
                                 u32 shift$parameters) {
    if (block_failed(failure)) return;
    $scalars
    u64 mask = ((u64)1 << key_shift) - 1;
    for (I at = (I)TURRET_FIRST; at < entries * width; at += (I)TURRET_STRIDE) {
        I entry = quotient(at, width, multiplier, shift), column = at - entry * width;
        u64 row = keys[entry] >> key_shift;
        if (entry > 0 && keys[entry - 1] >> key_shift == row) continue;
        I place = (I)row * width + column;
        T x = var[place], a = SLOTS > 0 ? slot0[place] : 0, b = SLOTS > 1 ? slot1[place] : 0;
        T c = SLOTS > 2 ? slot2[place] : 0;
        T g = gradient[(I)(keys[entry] & mask) * width + column];
        for (I e = entry + 1; e < entries && keys[e] >> key_shift == row; e++) {
            T next = gradient[(I)(keys[e] & mask) * width + column];
            if (EACH) {
                $update
                g = next;
            } else {
                g = g + next;
            }
        }
        $update
        var[place] = x;
        if (SLOTS > 0) slot0[place] = a;
        if (SLOTS > 1) slot1[place] = b;
        if (SLOTS > 2) slot2[place] = c;
    }
}
