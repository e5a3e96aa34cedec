// DiagPart of a square matrix.

extern "C" __global__ void ENTRY(const T* x, T* o, i64 n) {
    for (i64 i = TURRET_FIRST; i < n; i += TURRET_STRIDE) o[i] = x[i * (n + 1)];
}
