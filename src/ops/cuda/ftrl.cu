// An accumulator to the power of minus the rate's, which is as a rule its root.
static __device__ __forceinline__ T turret_scaled(T accumulator, T power) {
    return power == T(-0.5) ? turret_sqrt(accumulator) : turret_power(accumulator, 0 - power);
}

// A number held between minus the penalty and the penalty.
static __device__ __forceinline__ T turret_held(T x, T penalty) {
    return x > penalty ? penalty : x < 0 - penalty ? 0 - penalty : x;
}

