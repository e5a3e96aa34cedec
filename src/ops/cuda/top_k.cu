// The `k` largest elements of each row, largest first, of equal ones the first; NaN counts as the largest. A block of 256
// threads has a row, and finds one after another: each time the best of those that come after the last.
static __device__ __forceinline__ bool comes_before(T x, i64 i, T y, i64 j) {
    bool nan = x != x, other = y != y;
    if (!nan && !other && x != y) return x > y;
    return nan != other ? nan : i < j;
}

extern "C" __global__ void ENTRY(const T* __restrict__ x, T* __restrict__ values, P* __restrict__ places, i64 rows,
                                 i64 columns, i64 k) {
    __shared__ T best_values[256];
    __shared__ i64 best_places[256];
    int thread = threadIdx.x;
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* of = x + row * columns;
        T last = 0;
        i64 last_place = -1;
        for (i64 n = 0; n < k; n++) {
            T best = 0;
            i64 place = -1;
            for (i64 i = thread; i < columns; i += 256) {
                T value = of[i];
                if ((last_place < 0 || comes_before(last, last_place, value, i)) &&
                    (place < 0 || comes_before(value, i, best, place))) {
                    best = value;
                    place = i;
                }
            }
            best_values[thread] = best;
            best_places[thread] = place;
            for (int half = 128; half > 0; half /= 2) {
                __syncthreads();
                if (thread < half) {
                    i64 other = best_places[thread + half], own = best_places[thread];
                    if (other >= 0 &&
                        (own < 0 || comes_before(best_values[thread + half], other, best_values[thread], own))) {
                        best_values[thread] = best_values[thread + half];
                        best_places[thread] = other;
                    }
                }
            }
            __syncthreads();
            last = best_values[0];
            last_place = best_places[0];
            if (thread == 0) {
                values[row * k + n] = last;
                places[row * k + n] = (P)last_place;
            }
            __syncthreads();
        }
    }
}
