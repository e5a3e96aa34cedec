// Copies a box of elements `T` between two strided views, in the target's order; `value` is what an element of the
// target becomes. `walk` and its parameters are put in.
extern "C" __global__ void ENTRY(const T* __restrict__ x, T* __restrict__ y, I len$walk_parameters) {
    for (I first = (I)TURRET_FIRST; first < len; first += 4 * (I)TURRET_STRIDE) {
        T values[4];
        I places[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            I at = first + i * (I)TURRET_STRIDE;
            if (at < len) {
                I from = 0, to = 0;
                walk(at, from, to$walk_names);
                values[i] = x[from];
                places[i] = to;
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (first + i * (I)TURRET_STRIDE < len) y[places[i]] = $value;
    }
}
