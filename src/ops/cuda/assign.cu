// Updates a variable from a value of its size: `step` makes its new element of `old` and of the value's `x`. Where both
// lie on 16 bytes, a thread takes that many at a time. The value may be the variable itself.
struct alignas(16) Chunk {
    T at[16 / sizeof(T)];
};

extern "C" __global__ void ENTRY(T* variable, const T* value, i64 len, volatile u64* failure, u32 node) {
    if (block_failed(failure)) return;
    constexpr int SIZE = 16 / sizeof(T);
    i64 chunks = (((u64)variable | (u64)value) & 15) == 0 ? len / SIZE : 0;
    for (i64 i = TURRET_FIRST; i < chunks; i += TURRET_STRIDE) {
        Chunk olds = ((Chunk*)variable)[i], xs = ((const Chunk*)value)[i];
#pragma unroll
        for (int j = 0; j < SIZE; j++) {
            T old = olds.at[j], x = xs.at[j];
            olds.at[j] = $step;
        }
        ((Chunk*)variable)[i] = olds;
    }
    for (i64 i = chunks * SIZE + TURRET_FIRST; i < len; i += TURRET_STRIDE) {
        T old = variable[i], x = value[i];
        variable[i] = $step;
    }
}
