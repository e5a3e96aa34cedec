// What every kernel's text may use. It comes once, before the kernels of a module; no header is included.
typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned char u8;

// Each thread's first element and the step to its next, for loops over any number of elements.
#define TURRET_FIRST ((i64)blockIdx.x * blockDim.x + threadIdx.x)
#define TURRET_STRIDE ((i64)gridDim.x * blockDim.x)

// Failed checks are told in pinned host memory: word 0 says that some check failed, word 1 + node what and where.
static __device__ __forceinline__ void turret_fail(volatile u64* failure, u32 node, i64 position, i64 value) {
    i64 low = value < -2147483647 ? -2147483647 : value > 2147483647 ? 2147483647 : value;
    i64 at = position > 0x3fffffff ? 0x3fffffff : position;
    failure[1 + node] = ((u64)1 << 63) | ((u64)at << 32) | (u64)(u32)(int)low;
    failure[0] = 1;
}

// Whether a check before this kernel failed; what changes variables asks first. Null where nothing can fail.
static __device__ __forceinline__ bool turret_failed(volatile u64* failure) {
    return failure != 0 && failure[0] != 0;
}
