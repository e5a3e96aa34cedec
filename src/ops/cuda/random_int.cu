// RandomUniformInt, after philox.cu: a block of four gives four int32 or two int64. An empty range fails, and gives 0.

extern "C" __global__ void ENTRY(
    const u64* state, const T* minval, const T* maxval, T* o, volatile u64* failure, u32 node, i64 len) {
    constexpr int count = 16 / sizeof(T);
    const T low = minval[0];
    const u64 width = (u64)(i64)maxval[0] - (u64)(i64)low, above = 0 - width;
    const u64 span = sizeof(T) == 4 ? (u32)width : width;
    const bool empty = low >= maxval[0];
    if (empty && TURRET_FIRST == 0) turret_fail(failure, node, above > 0x3fffffff ? 0x3fffffff : (i64)above, low);
    for (i64 group = TURRET_FIRST; group * count < len; group += TURRET_STRIDE) {
        const Four block = draw(state, (u64)group);
#pragma unroll
        for (int k = 0; k < count; k++) {
            const i64 at = group * count + k;
            if (at >= len) break;
            const u64 bits = sizeof(T) == 4 ? block.v[k] : block.v[k * 2 % 4] | (u64)block.v[(k * 2 + 1) % 4] << 32;
            o[at] = empty ? 0 : turret_plus(low, (T)(bits % span));
        }
    }
}
