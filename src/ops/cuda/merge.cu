// Merges neighbours of sorted runs of `run` keys: a key's place is its own in its run and the number of smaller keys in
// the neighbour. No two keys are equal.
extern "C" __global__ void ENTRY(const u64* __restrict__ from, u64* __restrict__ to, i64 count, i64 run) {
    for (i64 at = TURRET_FIRST; at < count; at += TURRET_STRIDE) {
        u64 key = from[at];
        i64 own = at & ~(run - 1), other = own ^ run;
        i64 low = other < count ? other : count, high = other + run < count ? other + run : count;
        i64 start = low;
        while (low < high) {
            i64 middle = low + (high - low) / 2;
            if (from[middle] < key) low = middle + 1;
            else high = middle;
        }
        to[(own < other ? own : other) + (at - own) + (low - start)] = key;
    }
}
