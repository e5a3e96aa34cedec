// As random_taken.cu, but nothing was drawn from an empty range.

extern "C" __global__ void ENTRY(u64* state, const T* minval, const T* maxval, u64 blocks) {
    if (TURRET_FIRST == 0 && minval[0] < maxval[0]) state[2] += blocks;
}
