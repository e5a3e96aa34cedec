// OneHot: each output element looks at its own index. N is an integer type that the output's length fits.

extern "C" __global__ void ENTRY(const I* indices, const T* on, const T* off, T* o, i64 len, i64 depth, i64 inner) {
    const T hot = on[0], cold = off[0];
    for (N i = TURRET_FIRST; i < (N)len; i += TURRET_STRIDE) {
        const N above = i / (N)inner, outer = above / (N)depth;
        const i64 index = indices[outer * (N)inner + (i - above * (N)inner)];
        o[i] = index == (i64)(above - outer * (N)depth) ? hot : cold;
    }
}
