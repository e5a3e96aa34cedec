// Local response normalization along rows of `depth` elements: with `norm = bias + alpha * sum of squares` over the
// elements within `radius`, constant MAKE: 0, `x * norm ^ -beta`; 1, each element's part in the gradients of its
// neighbours, `gradient * y / norm`; 2, the gradient, of which `parts` holds those.
extern "C" __global__ void ENTRY(const T* __restrict__ x, const T* __restrict__ gradient, const T* __restrict__ y,
                                 const T* __restrict__ parts, T* __restrict__ to, i64 count, i64 depth, i64 radius,
                                 T bias, T alpha, T beta) {
    for (i64 i = TURRET_FIRST; i < count; i += TURRET_STRIDE) {
        const i64 row = i / depth * depth, k = i - row;
        const i64 first = row + (k > radius ? k - radius : 0), end = row + (k + radius < depth ? k + radius + 1 : depth);
        T squares = 0, others = 0;
        for (i64 j = first; j < end; j++) {
            squares += x[j] * x[j];
            if (MAKE == 2) others += parts[j];
        }
        const T norm = bias + alpha * squares;
        if (MAKE == 0) to[i] = x[i] * turret_power(norm, -beta);
        if (MAKE == 1) to[i] = gradient[i] * y[i] / norm;
        if (MAKE == 2) to[i] = gradient[i] * turret_power(norm, -beta) - 2 * alpha * beta * x[i] * others;
    }
}
