// Square roots, rounded as IEEE 754 has it.
static __device__ __forceinline__ float root(float x) { return sqrtf(x); }
static __device__ __forceinline__ double root(double x) { return sqrt(x); }
