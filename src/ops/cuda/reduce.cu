// One launch of a reduction of elements `T` with totals `R` to results `O`. A block of 256 threads makes `lanes` lanes
// for each of `width` results, and merges them as a tree. Several blocks (`parts`) may share a result: then each writes
// its total, and a second launch merges these. Lanes take at most 64 elements in type `T` before these go into the
// total. The order of all operations depends on the sizes alone.
// Where `across`, neighbouring threads take neighbouring results (columns), else elements of one result (rows).
// `kept` and `reduced` give the places of a result's first element and of its others; `finish` makes a result.
extern "C" __global__ void ENTRY(const T* __restrict__ x, O* __restrict__ y, I results, I length, int parts, int across,
                                 int width, P start, P count$kept_parameters$reduced_parameters) {
    __shared__ R totals[256];
    int thread = threadIdx.x, lanes = 256 / width;
    int column = across ? thread % width : thread / lanes;
    int lane = across ? thread / width : thread % lanes;
    int part = blockIdx.x % parts;
    I result = (I)(blockIdx.x / parts) * (I)width + column;
    R total = (R)(T)start;
    if (result < results) {
        I base = 0;
        kept(result, base$kept_names);
        I at = (I)((i64)length * part / parts) + lane, end = (I)((i64)length * (part + 1) / parts);
        while (at < end) {
            T some = (T)start;
            for (int i = 0; i < 8 && at < end; i++) {
                if (at + 7 * (I)lanes < end) {
                    T values[8];
#pragma unroll
                    for (int j = 0; j < 8; j++) {
                        I from = base;
                        reduced(at + j * (I)lanes, from$reduced_names);
                        values[j] = x[from];
                    }
#pragma unroll
                    for (int j = 0; j < 8; j++) some = step(some, values[j]);
                    at += 8 * (I)lanes;
                } else {
                    for (; at < end; at += (I)lanes) {
                        I from = base;
                        reduced(at, from$reduced_names);
                        some = step(some, x[from]);
                    }
                }
            }
            total = merge(total, (R)some);
        }
    }
    int slot = lane * width + column;
    totals[slot] = total;
    for (int half = lanes / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half) totals[slot] = merge(totals[slot], totals[slot + half * width]);
    }
    if (lane == 0 && result < results) {
        total = totals[slot];
        y[result * parts + part] = (O)($finish);
    }
}
