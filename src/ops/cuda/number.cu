// Arithmetic as the host has it: integers wrap, and a maximum or minimum with a NaN is NaN.
static __device__ __forceinline__ float plus(float a, float b) { return a + b; }
static __device__ __forceinline__ double plus(double a, double b) { return a + b; }
static __device__ __forceinline__ int plus(int a, int b) { return (int)((u32)a + (u32)b); }
static __device__ __forceinline__ i64 plus(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }

static __device__ __forceinline__ float minus(float a, float b) { return a - b; }
static __device__ __forceinline__ double minus(double a, double b) { return a - b; }
static __device__ __forceinline__ int minus(int a, int b) { return (int)((u32)a - (u32)b); }
static __device__ __forceinline__ i64 minus(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }

static __device__ __forceinline__ float times(float a, float b) { return a * b; }
static __device__ __forceinline__ double times(double a, double b) { return a * b; }
static __device__ __forceinline__ int times(int a, int b) { return (int)((u32)a * (u32)b); }
static __device__ __forceinline__ i64 times(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
