// Up to eight whole numbers that were known when the step was planned.

extern "C" __global__ void ENTRY(
    T* o, i64 count, i64 v0, i64 v1, i64 v2, i64 v3, i64 v4, i64 v5, i64 v6, i64 v7) {
    const i64 i = TURRET_FIRST;
    if (i >= count) return;
    o[i] = (T)(i < 4 ? i < 2 ? i == 0 ? v0 : v1 : i == 2 ? v2 : v3 : i < 6 ? i == 4 ? v4 : v5 : i == 6 ? v6 : v7);
}
