// Range: the start plus multiples.

extern "C" __global__ void ENTRY(T* o, T start, T delta, i64 len) {
    for (i64 i = TURRET_FIRST; i < len; i += TURRET_STRIDE) o[i] = turret_plus(start, turret_times((T)i, delta));
}
