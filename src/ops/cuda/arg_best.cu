// What the kernels of ArgMax and ArgMin share: the better of two elements. Constant LARGEST: which extreme.
//
// As in a walk from the first element that moves on to what is better: the first of equal ones counts, NaN is never
// better, and nothing is better than a NaN in the first place.

struct Best {
    T value;
    i64 at;
};

static __device__ __forceinline__ bool better(T x, T y) { return LARGEST ? x > y : x < y; }

static __device__ __forceinline__ void meet(Best& best, T value, i64 at) {
    if (best.at < 0 ? value == value || at == 0 : better(value, best.value)) best = {value, at};
}

static __device__ __forceinline__ Best merged(Best a, Best b) {
    if (a.at < 0 || b.at == 0 && b.value != b.value) return b;
    if (b.at < 0 || a.at == 0 && a.value != a.value) return a;
    if (a.value == b.value) return a.at < b.at ? a : b;
    return better(a.value, b.value) ? a : b;
}

