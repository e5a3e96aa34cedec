// Where shapes `T` start along an axis when they are concatenated: `each` does one after another. One thread; `carry`
// holds the sum from launch to launch.
static __device__ __forceinline__ void put(const T* shape, T* out, i64 rank, i64 axis, T* sum) {
    for (i64 i = 0; i < rank; i++) out[i] = i == axis ? *sum : 0;
    if (axis >= 0) *sum = turret_plus(*sum, shape[axis]);
}

extern "C" __global__ void ENTRY(const A* asked, T* carry, i64 rank, int resume, volatile u64* failure,
                                 u32 node$parameters) {
    i64 axis = *asked;
    T sum = resume ? *carry : 0;
    if (axis < -rank || axis >= rank) {
        turret_fail(failure, node, 0, axis);
        axis = -1;
    } else if (axis < 0) {
        axis += rank;
    }
    $each
    *carry = sum;
}
