// Turns the chunks' totals into what comes before each chunk, after cumulative_step.cu.

extern "C" __global__ void ENTRY(T* totals, i64 columns, i64 chunks) {
    for (i64 column = TURRET_FIRST; column < columns; column += TURRET_STRIDE) {
        T total = PRODUCT ? 1 : 0;
        for (i64 chunk = 0; chunk < chunks; chunk++) {
            const T own = totals[chunk * columns + column];
            totals[chunk * columns + column] = total;
            total = step(total, own);
        }
    }
}
