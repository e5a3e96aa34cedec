// `len` numbers at equal distances from `start` to `stop`, both included.
extern "C" __global__ void ENTRY(const T* __restrict__ start, const T* __restrict__ stop, T* __restrict__ y, i64 len) {
    T step = (*stop - *start) / (T)(len > 1 ? len - 1 : 1);
    for (i64 i = TURRET_FIRST; i < len; i += TURRET_STRIDE)
        y[i] = i == len - 1 && i > 0 ? *stop : *start + step * (T)i;
}
