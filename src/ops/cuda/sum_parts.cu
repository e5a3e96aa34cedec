// Adds `parts` runs of `count` elements each, in order.
extern "C" __global__ void ENTRY(const T* __restrict__ x, T* __restrict__ y, i64 count, i64 parts) {
    for (i64 i = TURRET_FIRST; i < count; i += TURRET_STRIDE) {
        T sum = x[i];
        for (i64 part = 1; part < parts; part++) sum += x[part * count + i];
        y[i] = sum;
    }
}
