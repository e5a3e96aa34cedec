// The numbers of the slices that tuples of numbers `X` name, in row-major order; of a tuple that is out of range, -1 less
// the axis along which it is. Sizes and steps are put in.
extern "C" __global__ void ENTRY(const X* __restrict__ tuples, i64* __restrict__ numbers, i64 count$parameters) {
    for (i64 t = TURRET_FIRST; t < count; t += TURRET_STRIDE) {
        i64 at = 0, bad = 0;
$steps        numbers[t] = bad < 0 ? bad : at;
    }
}
