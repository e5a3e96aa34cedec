// What the kernels of Cumsum and Cumprod share. Constant PRODUCT: which of the two.
//
// A column is the elements along the axis; long ones are cut into chunks, whose totals are made first, so that all
// chunks run at once. Constant LANES: how many lanes of a warp share a chunk, 1 where columns lie side by side.

static __device__ __forceinline__ T step(T x, T y) { return PRODUCT ? turret_times(x, y) : turret_plus(x, y); }

// Where a column's element is, counted from its start or, in reverse, from its end.
static __device__ __forceinline__ i64 place(i64 column, i64 i, i64 length, i64 inner, int reverse) {
    const i64 block = column / inner;
    return (block * length + (reverse ? length - 1 - i : i)) * inner + (column - block * inner);
}

