// What a kernel's text sees in place of CUDA's own definitions: one block runs at a time, each of its threads a fiber.
// No standard header is included, so that a small module compiles in a fraction of a second, and so that a kernel that
// leans on one, which NVRTC does not have, fails here too.
#pragma once
#define TURRET_STANDIN 1
#define __CUDA_ARCH__ 900
#define __CUDACC_RTC_STANDIN__ 1
#define STANDIN_HIDDEN __attribute__((visibility("hidden")))
#define __global__ __attribute__((noinline, used)) STANDIN_HIDDEN
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __constant__ static
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("standin_shared")))
#define __restrict__ __restrict
#define __grid_constant__

typedef unsigned long size_t;
typedef signed char standin_i8;
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {} };
struct int3 { int x, y, z; };
struct float3 { float x, y, z; };
#define STANDIN_VECTOR(T, NAME, ALIGN2, ALIGN4)                                                  \
    struct __attribute__((aligned(ALIGN2))) NAME##2 { T x, y; };                                 \
    struct __attribute__((aligned(ALIGN4))) NAME##4 { T x, y, z, w; };                           \
    inline NAME##2 make_##NAME##2(T x, T y) { return NAME##2{x, y}; }                            \
    inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return NAME##4{x, y, z, w}; }
STANDIN_VECTOR(float, float, 8, 16)
STANDIN_VECTOR(double, double, 16, 16)
STANDIN_VECTOR(int, int, 8, 16)
STANDIN_VECTOR(unsigned, uint, 8, 16)
STANDIN_VECTOR(long long, longlong, 16, 16)
STANDIN_VECTOR(unsigned long long, ulonglong, 16, 16)
STANDIN_VECTOR(unsigned char, uchar, 2, 4)
STANDIN_VECTOR(signed char, char, 2, 4)
STANDIN_VECTOR(short, short, 4, 8)
STANDIN_VECTOR(unsigned short, ushort, 4, 8)
inline float3 make_float3(float x, float y, float z) { return float3{x, y, z}; }
inline int3 make_int3(int x, int y, int z) { return int3{x, y, z}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return uint3{x, y, z}; }

// The indices are read by assembly, which the instrumentation leaves alone.
struct standin_place { uint3 thread; unsigned lane; uint3 block, block_size, grid_size; };
extern "C" STANDIN_HIDDEN standin_place standin_now;
extern "C" STANDIN_HIDDEN char standin_dynamic[];
#define STANDIN_INDEX(NAME, FIELD)                                                                                     \
    inline __attribute__((always_inline)) uint3 NAME() {                                                               \
        uint3 v;                                                                                                       \
        asm("movl %1, %0" : "=r"(v.x) : "m"(standin_now.FIELD.x));                                                     \
        asm("movl %1, %0" : "=r"(v.y) : "m"(standin_now.FIELD.y));                                                     \
        asm("movl %1, %0" : "=r"(v.z) : "m"(standin_now.FIELD.z));                                                     \
        return v;                                                                                                      \
    }
STANDIN_INDEX(standin_thread_index, thread)
STANDIN_INDEX(standin_block_index, block)
STANDIN_INDEX(standin_block_size, block_size)
STANDIN_INDEX(standin_grid_size, grid_size)
#define threadIdx (standin_thread_index())
#define blockIdx (standin_block_index())
#define blockDim (standin_block_size())
#define gridDim (standin_grid_size())
#define warpSize 32
#define STANDIN_DYNAMIC(T, NAME) T* const NAME = (T*)standin_dynamic

extern "C" {
STANDIN_HIDDEN void standin_sync_block();
STANDIN_HIDDEN unsigned long long standin_sync_warp(unsigned mask, int what, unsigned long long value, int from);
STANDIN_HIDDEN int standin_next_thread();
STANDIN_HIDDEN float standin_atomic_add_f32(float*, float);
STANDIN_HIDDEN double standin_atomic_add_f64(double*, double);
STANDIN_HIDDEN void standin_atomic(void*, size_t);
STANDIN_HIDDEN unsigned standin_atomic_u32(unsigned*, int what, unsigned, unsigned);
STANDIN_HIDDEN unsigned long long standin_atomic_u64(unsigned long long*, int what, unsigned long long, unsigned long long);
STANDIN_HIDDEN void standin_trap();
int printf(const char*, ...);
}
inline void __syncthreads() { standin_sync_block(); }
static int standin_votes;
inline int __syncthreads_count(int p) {
    unsigned lane;
    asm("movl %1, %0" : "=r"(lane) : "m"(standin_now.lane));
    if (lane == 0) standin_votes = 0;
    __syncthreads();
    standin_votes += p != 0;
    __syncthreads();
    int votes = standin_votes;
    __syncthreads();
    return votes;
}
inline int __syncthreads_or(int p) { return __syncthreads_count(p) != 0; }
inline int __syncthreads_and(int p) { return __syncthreads_count(!p) == 0; }
inline void __syncwarp(unsigned mask = 0xffffffffu) { standin_sync_warp(mask, 0, 0, 0); }
inline void __threadfence() { asm volatile("" ::: "memory"); }
inline void __threadfence_block() { asm volatile("" ::: "memory"); }
inline void __threadfence_system() { asm volatile("" ::: "memory"); }
inline void __trap() { standin_trap(); }
inline void __nanosleep(unsigned) {}

template <class T> inline T standin_exchange(unsigned mask, T v, int from) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    unsigned long long raw = 0;
    __builtin_memcpy(&raw, &v, sizeof v);
    raw = standin_sync_warp(mask, 1, raw, from);
    __builtin_memcpy(&v, &raw, sizeof v);
    return v;
}
inline int standin_lane() { unsigned v; asm("movl %1, %0" : "=r"(v) : "m"(standin_now.lane)); return (int)(v & 31); }
template <class T> inline T __shfl_sync(unsigned mask, T v, int from, int width = 32) {
    int l = standin_lane();
    return standin_exchange(mask, v, (l & ~(width - 1)) | (from & (width - 1)));
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32) {
    int l = standin_lane(), in = l & (width - 1);
    return standin_exchange(mask, v, in >= (int)by ? l - (int)by : l);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32) {
    int l = standin_lane(), in = l & (width - 1);
    return standin_exchange(mask, v, in + (int)by < width ? l + (int)by : l);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int with, int width = 32) {
    int l = standin_lane(), to = l ^ with;
    return standin_exchange(mask, v, (to & ~(width - 1)) <= (l & ~(width - 1)) ? to : l);
}
inline unsigned __ballot_sync(unsigned mask, int p) { return (unsigned)standin_sync_warp(mask, 2, p != 0, 0); }
inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, !p) == 0; }
inline unsigned __activemask() { return 0xffffffffu; }

enum { STANDIN_ADD, STANDIN_EXCHANGE, STANDIN_CAS, STANDIN_MIN, STANDIN_MAX, STANDIN_MIN_SIGNED, STANDIN_MAX_SIGNED,
       STANDIN_AND, STANDIN_OR, STANDIN_XOR };
typedef unsigned long long standin_u64;
inline float atomicAdd(float* p, float v) { return standin_atomic_add_f32(p, v); }
inline double atomicAdd(double* p, double v) { return standin_atomic_add_f64(p, v); }
inline int atomicAdd(int* p, int v) { return (int)standin_atomic_u32((unsigned*)p, STANDIN_ADD, (unsigned)v, 0); }
inline int atomicSub(int* p, int v) { return (int)standin_atomic_u32((unsigned*)p, STANDIN_ADD, -(unsigned)v, 0); }
inline unsigned atomicSub(unsigned* p, unsigned v) { return standin_atomic_u32(p, STANDIN_ADD, -v, 0); }
#define STANDIN_ATOMIC(NAME, U, S)                                                                                     \
    inline unsigned NAME(unsigned* p, unsigned v) { return standin_atomic_u32(p, U, v, 0); }                           \
    inline standin_u64 NAME(standin_u64* p, standin_u64 v) { return standin_atomic_u64(p, U, v, 0); }                  \
    inline int NAME##_(int* p, int v) { return (int)standin_atomic_u32((unsigned*)p, S, (unsigned)v, 0); }             \
    inline long long NAME##_(long long* p, long long v) { return (long long)standin_atomic_u64((standin_u64*)p, S, (standin_u64)v, 0); }
#define STANDIN_ATOMIC_SIGNED(NAME) inline int NAME(int* p, int v) { return NAME##_(p, v); }
STANDIN_ATOMIC(atomicMin, STANDIN_MIN, STANDIN_MIN_SIGNED) STANDIN_ATOMIC_SIGNED(atomicMin)
STANDIN_ATOMIC(atomicMax, STANDIN_MAX, STANDIN_MAX_SIGNED) STANDIN_ATOMIC_SIGNED(atomicMax)
STANDIN_ATOMIC(atomicExch, STANDIN_EXCHANGE, STANDIN_EXCHANGE) STANDIN_ATOMIC_SIGNED(atomicExch)
STANDIN_ATOMIC(atomicAnd, STANDIN_AND, STANDIN_AND) STANDIN_ATOMIC_SIGNED(atomicAnd)
STANDIN_ATOMIC(atomicOr, STANDIN_OR, STANDIN_OR) STANDIN_ATOMIC_SIGNED(atomicOr)
STANDIN_ATOMIC(atomicXor, STANDIN_XOR, STANDIN_XOR) STANDIN_ATOMIC_SIGNED(atomicXor)
inline long long atomicMin(long long* p, long long v) { return atomicMin_(p, v); }
inline long long atomicMax(long long* p, long long v) { return atomicMax_(p, v); }
inline unsigned atomicAdd(unsigned* p, unsigned v) { return standin_atomic_u32(p, STANDIN_ADD, v, 0); }
inline standin_u64 atomicAdd(standin_u64* p, standin_u64 v) { return standin_atomic_u64(p, STANDIN_ADD, v, 0); }
inline float atomicExch(float* p, float v) {
    unsigned raw; __builtin_memcpy(&raw, &v, 4);
    raw = standin_atomic_u32((unsigned*)p, STANDIN_EXCHANGE, raw, 0);
    __builtin_memcpy(&v, &raw, 4);
    return v;
}
inline int atomicCAS(int* p, int was, int v) { return (int)standin_atomic_u32((unsigned*)p, STANDIN_CAS, (unsigned)v, (unsigned)was); }
inline unsigned atomicCAS(unsigned* p, unsigned was, unsigned v) { return standin_atomic_u32(p, STANDIN_CAS, v, was); }
inline standin_u64 atomicCAS(standin_u64* p, standin_u64 was, standin_u64 v) { return standin_atomic_u64(p, STANDIN_CAS, v, was); }
template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline void __stcg(T* p, T v) { *p = v; }
template <class T> inline void __stcs(T* p, T v) { *p = v; }

#define STANDIN_MATH1(N) extern "C" double N(double); extern "C" float N##f(float); inline float N(float x) { return N##f(x); }
#define STANDIN_MATH2(N) extern "C" double N(double, double); extern "C" float N##f(float, float); inline float N(float x, float y) { return N##f(x, y); }
STANDIN_MATH1(exp) STANDIN_MATH1(exp2) STANDIN_MATH1(expm1) STANDIN_MATH1(log) STANDIN_MATH1(log2) STANDIN_MATH1(log10)
STANDIN_MATH1(log1p) STANDIN_MATH1(sin) STANDIN_MATH1(cos) STANDIN_MATH1(tan) STANDIN_MATH1(asin) STANDIN_MATH1(acos)
STANDIN_MATH1(atan) STANDIN_MATH1(sinh) STANDIN_MATH1(cosh) STANDIN_MATH1(tanh) STANDIN_MATH1(asinh) STANDIN_MATH1(acosh)
STANDIN_MATH1(atanh) STANDIN_MATH1(sqrt) STANDIN_MATH1(cbrt) STANDIN_MATH1(floor) STANDIN_MATH1(ceil) STANDIN_MATH1(trunc)
STANDIN_MATH1(round) STANDIN_MATH1(rint) STANDIN_MATH1(nearbyint) STANDIN_MATH1(erf) STANDIN_MATH1(erfc)
STANDIN_MATH1(tgamma) STANDIN_MATH1(lgamma) STANDIN_MATH1(fabs)
STANDIN_MATH2(pow) STANDIN_MATH2(fmod) STANDIN_MATH2(fmax) STANDIN_MATH2(fmin) STANDIN_MATH2(atan2) STANDIN_MATH2(copysign)
STANDIN_MATH2(hypot) STANDIN_MATH2(fdim) STANDIN_MATH2(remainder) STANDIN_MATH2(nextafter)
extern "C" { float fmaf(float, float, float); double fma(double, double, double); void sincosf(float, float*, float*);
             void sincos(double, double*, double*); float ldexpf(float, int); double ldexp(double, int); float modff(float, float*);
             float frexpf(float, int*); double frexp(double, int*); int abs(int); long long llabs(long long);
             long lrintf(float); long lrint(double); long long llrintf(float); long long llrint(double); long lroundf(float); }
inline float fma(float a, float b, float c) { return fmaf(a, b, c); }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }
inline long long abs(long long x) { return x < 0 ? -x : x; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline float exp10f(float x) { return powf(10.0f, x); }
inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }
inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752); }
inline float sinpif(float x) { return sinf(x * 3.14159265358979323846f); }
inline float cospif(float x) { return cosf(x * 3.14159265358979323846f); }
inline double cospi(double x) { return cos(x * 3.14159265358979323846); }
inline double sinpi(double x) { return sin(x * 3.14159265358979323846); }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline void __sincosf(float x, float* s, float* c) { *s = sinf(x); *c = cosf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float fdividef(float a, float b) { return a / b; }
#define STANDIN_ROUNDED(T, P)                                                                                          \
    inline T __##P##mul_rn(T a, T b) { return a * b; }                                                                 \
    inline T __##P##add_rn(T a, T b) { return a + b; }                                                                 \
    inline T __##P##sub_rn(T a, T b) { return a - b; }                                                                 \
    inline T __##P##div_rn(T a, T b) { return a / b; }
STANDIN_ROUNDED(float, f) STANDIN_ROUNDED(double, d)
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((standin_u64)a * b >> 32); }
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
inline standin_u64 __umul64hi(standin_u64 a, standin_u64 b) { return (standin_u64)((unsigned __int128)a * b >> 64); }
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(standin_u64 x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((standin_u64)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) { unsigned r = 0; for (int i = 0; i < 32; i++) r |= ((x >> i) & 1u) << (31 - i); return r; }
#define STANDIN_CAST(NAME, TO, FROM) inline TO NAME(FROM x) { TO r; __builtin_memcpy(&r, &x, sizeof r); return r; }
STANDIN_CAST(__float_as_int, int, float) STANDIN_CAST(__int_as_float, float, int)
STANDIN_CAST(__float_as_uint, unsigned, float) STANDIN_CAST(__uint_as_float, float, unsigned)
STANDIN_CAST(__double_as_longlong, long long, double) STANDIN_CAST(__longlong_as_double, double, long long)
inline int __float2int_rn(float x) { return (int)lrintf(x); }
inline int __float2int_rz(float x) { return (int)x; }
inline int __float2int_rd(float x) { return (int)floorf(x); }
inline int __float2int_ru(float x) { return (int)ceilf(x); }
inline unsigned __float2uint_rz(float x) { return (unsigned)x; }
inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned x) { return (float)x; }
inline float __ull2float_rn(standin_u64 x) { return (float)x; }
inline double __ull2double_rn(standin_u64 x) { return (double)x; }
inline float __double2float_rn(double x) { return (float)x; }
inline long long __float2ll_rn(float x) { return llrintf(x); }
inline long long __double2ll_rn(double x) { return llrint(x); }
#define STANDIN_TEST(NAME, BUILTIN)                                                                                    \
    inline bool NAME(float x) { return BUILTIN(x); }                                                                   \
    inline bool NAME(double x) { return BUILTIN(x); }
STANDIN_TEST(isnan, __builtin_isnan) STANDIN_TEST(isinf, __builtin_isinf) STANDIN_TEST(isfinite, __builtin_isfinite)
STANDIN_TEST(signbit, __builtin_signbit)
#define STANDIN_MINMAX(T)                                                                                              \
    inline T min(T a, T b) { return b < a ? b : a; }                                                                   \
    inline T max(T a, T b) { return a < b ? b : a; }
STANDIN_MINMAX(int) STANDIN_MINMAX(unsigned) STANDIN_MINMAX(long) STANDIN_MINMAX(unsigned long)
STANDIN_MINMAX(long long) STANDIN_MINMAX(unsigned long long)
inline unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
inline unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
inline unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
inline unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// The table of entries: what each parameter is, and how to run the threads of one block.
template <class T> struct standin_kind { static constexpr unsigned char value = 0; };
template <class T> struct standin_kind<T*> { static constexpr unsigned char value = 2; };
template <class T> struct standin_kind<const T*> { static constexpr unsigned char value = 1; };
template <class T> struct standin_kind<volatile T*> { static constexpr unsigned char value = 6; };
template <class T> struct standin_kind<const volatile T*> { static constexpr unsigned char value = 5; };
template <class T> struct standin_plain { typedef T type; };
template <class T> struct standin_plain<T* __restrict> { typedef T* type; };
template <class T> struct standin_plain<T* const> { typedef T* type; };
template <class T> struct standin_plain<const T> { typedef T type; };
struct standin_entry {
    const char* name;
    void (*run)(void**);
    int count;
    const unsigned* sizes;
    const unsigned char* kinds;
};
template <int... I> struct standin_list {};
template <int N, int... I> struct standin_upto : standin_upto<N - 1, N - 1, I...> {};
template <int... I> struct standin_upto<0, I...> { typedef standin_list<I...> type; };
template <auto F> struct standin_kernel;
template <class... A, void (*F)(A...)> struct standin_kernel<F> {
    static constexpr unsigned sizes[sizeof...(A) + 1] = {(unsigned)sizeof(A)..., 0};
    static constexpr unsigned char kinds[sizeof...(A) + 1] = {standin_kind<typename standin_plain<A>::type>::value..., 0};
    template <int... I> __attribute__((no_sanitize_thread)) static void all(void** p, standin_list<I...>) {
        while (standin_next_thread()) F(*(typename standin_plain<A>::type*)p[I]...);
    }
    static void run(void** p) { all(p, typename standin_upto<sizeof...(A)>::type{}); }
};
#define STANDIN_ENTRY(NAME, TEXT)                                                                                      \
    {TEXT, standin_kernel<&NAME>::run, (int)(sizeof(standin_kernel<&NAME>::sizes) / 4) - 1, standin_kernel<&NAME>::sizes,    \
     standin_kernel<&NAME>::kinds},
