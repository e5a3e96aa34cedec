// One update step of many variables with dense gradients. The blocks from `end{i - 1}` to `end{i}` are variable `i`'s,
// TILE elements each. `update` changes an element `x` of the variable and `a`, `b`, `c` of its SLOTS slots, by `g` of
// the gradient; `last` is done once. Elements are taken 16 bytes at a time where all buffers lie on 16 bytes.
extern "C" __global__ void ENTRY(volatile u64* failure, u32 node$parameters) {
    if (block_failed(failure)) return;
    $scalars
    if (blockIdx.x == 0 && threadIdx.x == 0) { $last }
    u32 block = blockIdx.x, before;
    T *var, *slot0 = 0, *slot1 = 0, *slot2 = 0;
    const T* gradient;
    i64 count;
    $choice
    constexpr int SIZE = 16 / sizeof(T);
    i64 start = (i64)(block - before) * TILE, end = start + TILE < count ? start + TILE : count;
    if ((((u64)var | (u64)slot0 | (u64)slot1 | (u64)slot2 | (u64)gradient) & 15) == 0) {
        for (i64 i = start / SIZE + threadIdx.x; i < end / SIZE; i += 256) {
            auto xs = turret_load<SIZE>(var + i * SIZE), gs = turret_load<SIZE>(gradient + i * SIZE);
            auto as = xs, bs = xs, cs = xs;
            if (SLOTS > 0) as = turret_load<SIZE>(slot0 + i * SIZE);
            if (SLOTS > 1) bs = turret_load<SIZE>(slot1 + i * SIZE);
            if (SLOTS > 2) cs = turret_load<SIZE>(slot2 + i * SIZE);
#pragma unroll
            for (int j = 0; j < SIZE; j++) {
                T &x = xs.v[j], &a = as.v[j], &b = bs.v[j], &c = cs.v[j], g = gs.v[j];
                $update
            }
            turret_store<SIZE>(var + i * SIZE, xs);
            if (SLOTS > 0) turret_store<SIZE>(slot0 + i * SIZE, as);
            if (SLOTS > 1) turret_store<SIZE>(slot1 + i * SIZE, bs);
            if (SLOTS > 2) turret_store<SIZE>(slot2 + i * SIZE, cs);
        }
        start = end / SIZE * SIZE;
    }
    for (i64 i = start + threadIdx.x; i < end; i += 256) {
        T x = var[i], a = SLOTS > 0 ? slot0[i] : 0, b = SLOTS > 1 ? slot1[i] : 0, c = SLOTS > 2 ? slot2[i] : 0;
        T g = gradient[i];
        $update
        var[i] = x;
        if (SLOTS > 0) slot0[i] = a;
        if (SLOTS > 1) slot1[i] = b;
        if (SLOTS > 2) slot2[i] = c;
    }
}
