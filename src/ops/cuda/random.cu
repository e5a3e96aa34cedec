// RandomUniform, RandomStandardNormal and TruncatedNormal, after philox.cu. A thread makes the numbers of one block of
// four (two of double precision). Constant KIND: which of the three.

template <class R> struct Drawn;

template <> struct Drawn<float> {
    static constexpr int count = 4;
    static __device__ __forceinline__ float uniform(Four block, int i) {
        return (float)(block.v[i] & 0x7fffffu) * (1.0f / 8388608.0f);
    }
    static __device__ __forceinline__ void normals(Four block, int pair, float* two) {
        const float u = uniform(block, 2 * pair), least = 1.0e-7f;
        // As on the host, the product is rounded once.
        const float angle = (float)(2.0 * 3.14159265358979323846 * (double)uniform(block, 2 * pair + 1));
        const float radius = sqrtf(-2.0f * logf(u < least ? least : u));
        two[0] = sinf(angle) * radius;
        two[1] = cosf(angle) * radius;
    }
};

template <> struct Drawn<double> {
    static constexpr int count = 2;
    static __device__ __forceinline__ double uniform(Four block, int i) {
        const u64 bits = ((u64)(block.v[2 * i] & 0xfffffu) << 32) | block.v[2 * i + 1];
        return (double)bits * (1.0 / 4503599627370496.0);
    }
    static __device__ __forceinline__ void normals(Four block, int, double* two) {
        const double u = uniform(block, 0), least = 1.0e-7;
        const double angle = 2.0 * 3.14159265358979323846 * uniform(block, 1);
        const double radius = sqrt(-2.0 * log(u < least ? least : u));
        two[0] = sin(angle) * radius;
        two[1] = cos(angle) * radius;
    }
};

extern "C" __global__ void ENTRY(const u64* state, T* o, i64 len) {
    constexpr int count = Drawn<T>::count;
    const bool aligned = turret_aligned<count>(o);
    for (i64 group = TURRET_FIRST; group * count < len; group += TURRET_STRIDE) {
        const i64 at = group * count, left = len - at;
        if (KIND == 2) {
            // A region of its own for each group, so that rejections in one do not move the others.
            i64 filled = 0;
            for (u64 place = (u64)group * (count * 64); filled < left && filled < count; place++) {
                const Four block = draw(state, place);
#pragma unroll
                for (int pair = 0; pair < count / 2; pair++) {
                    T two[2];
                    Drawn<T>::normals(block, pair, two);
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        const bool near = turret_magnitude(two[k]) < 2;
                        if (near && filled < left && filled < count) o[at + filled++] = two[k];
                    }
                }
            }
            continue;
        }
        const Four block = draw(state, (u64)group);
        turret_vector<T, count> out;
        if (KIND == 0) {
#pragma unroll
            for (int k = 0; k < count; k++) out.v[k] = Drawn<T>::uniform(block, k);
        } else {
#pragma unroll
            for (int pair = 0; pair < count / 2; pair++) Drawn<T>::normals(block, pair, out.v + 2 * pair);
        }
        if (aligned && left >= count) {
            turret_store<count>(o + at, out);
        } else {
#pragma unroll
            for (int k = 0; k < count; k++)
                if (k < left) o[at + k] = out.v[k];
        }
    }
}
