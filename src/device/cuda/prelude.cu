// What every kernel's text may use. It comes once, before the kernels of a module; no header is included.
typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned char u8;

// Each thread's first element and the step to its next, for loops over any number of elements.
#define TURRET_FIRST ((i64)blockIdx.x * blockDim.x + threadIdx.x)
#define TURRET_STRIDE ((i64)gridDim.x * blockDim.x)

// Failed checks are told in pinned host memory: word 0 says that some check failed, word 1 + node what and where.
__device__ __forceinline__ void turret_fail(volatile u64* failure, u32 node, i64 position, i64 value) {
    i64 low = value < -2147483647 ? -2147483647 : value > 2147483647 ? 2147483647 : value;
    i64 at = position > 0x3fffffff ? 0x3fffffff : position;
    failure[1 + node] = ((u64)1 << 63) | ((u64)at << 32) | (u64)(u32)(int)low;
    failure[0] = 1;
}

// Whether a check before this kernel failed; what changes variables asks first. Null where nothing can fail.
__device__ __forceinline__ bool turret_failed(volatile u64* failure) {
    return failure != 0 && failure[0] != 0;
}

// Arithmetic on element types by the host's own formulas, so that results are the same bits where a formula is exact.
// Integers wrap; what divides by zero or takes a negative power of an integer is refused by its op, and is 0 or 1 here.
#define TURRET_INLINE __device__ __forceinline__

#define TURRET_FUNCTION(NAME, SINGLE, DOUBLE) \
    TURRET_INLINE float NAME(float x) { return SINGLE(x); } \
    TURRET_INLINE double NAME(double x) { return DOUBLE(x); }
TURRET_FUNCTION(turret_floor, floorf, floor)
TURRET_FUNCTION(turret_ceil, ceilf, ceil)
TURRET_FUNCTION(turret_rint, rintf, rint)
TURRET_FUNCTION(turret_sqrt, sqrtf, sqrt)
TURRET_FUNCTION(turret_exp, expf, exp)
TURRET_FUNCTION(turret_expm1, expm1f, expm1)
TURRET_FUNCTION(turret_log, logf, log)
TURRET_FUNCTION(turret_log1p, log1pf, log1p)
TURRET_FUNCTION(turret_sin, sinf, sin)
TURRET_FUNCTION(turret_cos, cosf, cos)
TURRET_FUNCTION(turret_tan, tanf, tan)
TURRET_FUNCTION(turret_asin, asinf, asin)
TURRET_FUNCTION(turret_acos, acosf, acos)
TURRET_FUNCTION(turret_atan, atanf, atan)
TURRET_FUNCTION(turret_sinh, sinhf, sinh)
TURRET_FUNCTION(turret_cosh, coshf, cosh)
TURRET_FUNCTION(turret_tanh, tanhf, tanh)
TURRET_FUNCTION(turret_asinh, asinhf, asinh)
TURRET_FUNCTION(turret_acosh, acoshf, acosh)
TURRET_FUNCTION(turret_atanh, atanhf, atanh)
TURRET_FUNCTION(turret_erf, erff, erf)
TURRET_FUNCTION(turret_erfc, erfcf, erfc)
TURRET_INLINE int turret_rint(int x) { return x; }
TURRET_INLINE i64 turret_rint(i64 x) { return x; }

// What Rust calls `+ - * / -x`, the truncated and floored quotient and rest, the power and the absolute value.
#define TURRET_FLOAT(T, FMOD, POW, FABS, TRUNC) \
    TURRET_INLINE T turret_plus(T x, T y) { return x + y; } \
    TURRET_INLINE T turret_minus(T x, T y) { return x - y; } \
    TURRET_INLINE T turret_times(T x, T y) { return x * y; } \
    TURRET_INLINE T turret_over(T x, T y) { return x / y; } \
    TURRET_INLINE T turret_negated(T x) { return -x; } \
    TURRET_INLINE T turret_floor_div(T x, T y) { return turret_floor(x / y); } \
    TURRET_INLINE T turret_truncate_div(T x, T y) { return TRUNC(x / y); } \
    TURRET_INLINE T turret_truncate_mod(T x, T y) { return FMOD(x, y); } \
    TURRET_INLINE T turret_floor_mod(T x, T y) { \
        T rest = FMOD(x, y); \
        return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest; \
    } \
    TURRET_INLINE T turret_power(T x, T y) { return POW(x, y); } \
    TURRET_INLINE T turret_magnitude(T x) { return FABS(x); }
TURRET_FLOAT(float, fmodf, powf, fabsf, truncf)
TURRET_FLOAT(double, fmod, pow, fabs, trunc)

// Quotients by -1 are negations, since the smallest integer has no quotient by it.
#define TURRET_WHOLE(T, U) \
    TURRET_INLINE T turret_plus(T x, T y) { return (T)((U)x + (U)y); } \
    TURRET_INLINE T turret_minus(T x, T y) { return (T)((U)x - (U)y); } \
    TURRET_INLINE T turret_times(T x, T y) { return (T)((U)x * (U)y); } \
    TURRET_INLINE T turret_negated(T x) { return (T)(0 - (U)x); } \
    TURRET_INLINE T turret_over(T x, T y) { return y == 0 ? 0 : y == -1 ? turret_negated(x) : x / y; } \
    TURRET_INLINE T turret_truncate_div(T x, T y) { return turret_over(x, y); } \
    TURRET_INLINE T turret_truncate_mod(T x, T y) { return y == 0 || y == -1 ? 0 : x % y; } \
    TURRET_INLINE T turret_floor_div(T x, T y) { \
        if (y == 0 || y == -1) return turret_over(x, y); \
        T quotient = x / y; \
        return quotient * y != x && (x < 0) != (y < 0) ? quotient - 1 : quotient; \
    } \
    TURRET_INLINE T turret_floor_mod(T x, T y) { \
        if (y == 0 || y == -1) return 0; \
        T rest = x % y; \
        return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest; \
    } \
    TURRET_INLINE T turret_power(T x, T exponent) { \
        U base = (U)x, power = 1; \
        for (; exponent > 0; exponent >>= 1) { \
            if (exponent & 1) power *= base; \
            base *= base; \
        } \
        return (T)power; \
    } \
    TURRET_INLINE T turret_magnitude(T x) { return x < 0 ? turret_negated(x) : x; }
TURRET_WHOLE(int, u32)
TURRET_WHOLE(i64, u64)

// NaN if either is NaN.
template <class T> TURRET_INLINE T turret_larger(T x, T y) { return x > y || x != x ? x : y; }
template <class T> TURRET_INLINE T turret_smaller(T x, T y) { return x < y || x != x ? x : y; }
template <class T> TURRET_INLINE T turret_sign(T x) { return x > 0 ? T(1) : x < 0 ? T(-1) : x; }
template <class T> TURRET_INLINE T turret_rectified(T x) { return x < 0 ? T(0) : x; }
template <class T> TURRET_INLINE T turret_logistic(T x) { return T(1) / (T(1) + turret_exp(-x)); }
template <class T> TURRET_INLINE T turret_soft_rectified(T x) {
    return turret_rectified(x) + turret_log1p(turret_exp(-turret_magnitude(x)));
}

template <class T> TURRET_INLINE T turret_selu(T x) {
    return x < 0 ? T(1.7580993408473768599) * turret_expm1(x) : T(1.0507009873554804934) * x;
}
template <class T> TURRET_INLINE T turret_selu_slope(T gradient, T y) {
    return y < 0 ? gradient * (y + T(1.7580993408473768599)) : gradient * T(1.0507009873554804934);
}

// Integers of numbers as Rust's `as` makes them: toward zero, the nearest in range, 0 of NaN.
template <class T> TURRET_INLINE int turret_to_int(T x) {
    return x != x ? 0 : x >= T(2147483648.0) ? 2147483647 : x <= T(-2147483648.0) ? -2147483647 - 1 : (int)x;
}
template <class T> TURRET_INLINE i64 turret_to_i64(T x) {
    const i64 most = 0x7fffffffffffffff;
    return x != x ? 0 : x >= T(9223372036854775808.0) ? most : x <= T(-9223372036854775808.0) ? -most - 1 : (i64)x;
}

template <class T> TURRET_INLINE u8 turret_to_u8(T x) {
    return x != x || x <= T(0) ? 0 : x >= T(255) ? 255 : (u8)x;
}

// float16 and bfloat16 are stored as their bits. To them a float is rounded to the nearest, of two to the even one.
union turret_single {
    float value;
    u32 bits;
};
TURRET_INLINE float turret_half_to_float(unsigned short half) {
    turret_single single;
    u32 sign = (u32)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest < 0x400) {
        single.value = (float)rest * 5.9604644775390625e-8f;
        single.bits |= sign;
    } else {
        single.bits = sign | (rest >= 0x7c00 ? 0x7f800000 | (rest & 0x3ff) << 13 : (rest << 13) + 0x38000000);
    }
    return single.value;
}
TURRET_INLINE unsigned short turret_float_to_half(float value) {
    turret_single single;
    single.value = value;
    u32 sign = single.bits >> 16 & 0x8000, rest = single.bits & 0x7fffffff;
    if (rest > 0x7f800000) return (unsigned short)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x477ff000) return (unsigned short)(sign | 0x7c00);
    if (rest < 0x33000000) return (unsigned short)sign;
    // Below 2^-14 the leading one is stored, and more bits fall off.
    u32 digits = rest < 0x38800000 ? (rest & 0x7fffff) | 0x800000 : rest - 0x38000000;
    u32 shift = rest < 0x38800000 ? 126 - (rest >> 23) : 13;
    u32 kept = digits >> shift, lost = digits & ((1u << shift) - 1), tie = 1u << (shift - 1);
    return (unsigned short)(sign | (kept + (lost > tie || (lost == tie && (kept & 1)))));
}
TURRET_INLINE float turret_bfloat_to_float(unsigned short half) {
    turret_single single;
    single.bits = (u32)half << 16;
    return single.value;
}
TURRET_INLINE unsigned short turret_float_to_bfloat(float value) {
    turret_single single;
    single.value = value;
    if (value != value) return (unsigned short)(single.bits >> 16 | 0x40);
    return (unsigned short)((single.bits + 0x7fff + (single.bits >> 16 & 1)) >> 16);
}

// W neighbours, read and written at once where their address is a multiple of the whole's alignment.
template <class T, int W> struct alignas(sizeof(T) * W > 16 ? 16 : sizeof(T) * W) turret_vector {
    T v[W];
};
template <int W, class T> TURRET_INLINE turret_vector<T, W> turret_load(const T* from) {
    return *(const turret_vector<T, W>*)from;
}
template <int W, class T> TURRET_INLINE void turret_store(T* to, turret_vector<T, W> value) {
    *(turret_vector<T, W>*)to = value;
}
template <int W, class T> TURRET_INLINE bool turret_aligned(const T* p) {
    return (u64)p % alignof(turret_vector<T, W>) == 0;
}

// n / d for n below 2^31, by the multiplier and shift that the host worked out for d.
TURRET_INLINE u32 turret_divide(u32 n, u32 multiplier, u32 shift) {
    return ((u32)((u64)n * multiplier >> 32) + n) >> shift;
}
