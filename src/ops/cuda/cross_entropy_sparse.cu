
// SparseSoftmaxCrossEntropyWithLogits: the label is the number of the class. One that is no class fails, and has no loss.
extern "C" __global__ void __launch_bounds__(PER > 0 || sizeof(T) > 4 ? 256 : 512)
    ENTRY(const T* x, const I* labels, T* losses, T* backs, volatile u64* failure, u32 node, i64 rows, i64 classes) {
    for (i64 row = first_row(); row < rows; row += row_stride()) {
        const T* in = x + row * classes;
        const i64 own = labels[row];
        auto share = [=](i64 c) { return c == own ? T(1) : T(0); };
        auto part = [=](i64 c, T, T log, T most) { return c == own ? log - (in[c] - most) : T(0); };
        const T loss = cross_entropy(in, backs + row * classes, classes, share, part);
        if (team_first() == 0) {
            if (own < 0 || own >= classes) {
                // The first such row is told, whichever comes first to here.
                i64 first = 0;
                while (labels[first] >= 0 && labels[first] < classes) first++;
                if (first == row) turret_fail(failure, node, row, own);
            }
            losses[row] = loss;
        }
    }
}
