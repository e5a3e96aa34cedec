// Updates a variable from a value of its size: `step` makes its new element of `old` and of the value's `x`. Where both
// lie on 16 bytes, a thread takes that many at a time. The value may be the variable itself.
extern "C" __global__ void ENTRY(T* variable, const T* value, i64 len, volatile u64* failure, u32 node) {
    if (block_failed(failure)) return;
    constexpr int SIZE = 16 / sizeof(T);
    i64 chunks = (((u64)variable | (u64)value) & 15) == 0 ? len / SIZE : 0;
    for (i64 i = TURRET_FIRST; i < chunks; i += TURRET_STRIDE) {
        auto olds = turret_load<SIZE>(variable + i * SIZE), xs = turret_load<SIZE>(value + i * SIZE);
#pragma unroll
        for (int j = 0; j < SIZE; j++) {
            T old = olds.v[j], x = xs.v[j];
            olds.v[j] = $step;
        }
        turret_store<SIZE>(variable + i * SIZE, olds);
    }
    for (i64 i = chunks * SIZE + TURRET_FIRST; i < len; i += TURRET_STRIDE) {
        T old = variable[i], x = value[i];
        variable[i] = $step;
    }
}
