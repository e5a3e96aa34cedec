// Moves a random node's state on, after the launch that drew: the next run draws anew, also where it is a replay.

extern "C" __global__ void ENTRY(u64* state, u64 blocks) {
    if (TURRET_FIRST == 0) state[2] += blocks;
}
