
// SoftmaxCrossEntropyWithLogits: the labels are shares of all classes.
extern "C" __global__ void __launch_bounds__(PER > 0 || sizeof(T) > 4 ? 256 : 512)
    ENTRY(const T* x, const T* labels, T* losses, T* backs, i64 rows, i64 classes) {
    for (i64 row = first_row(); row < rows; row += row_stride()) {
        const T *in = x + row * classes, *shares = labels + row * classes;
        auto share = [=](i64 c) { return shares[c]; };
        // A class without a share adds nothing, even where its logarithm is infinite.
        auto part = [=](i64 c, T share, T log, T most) { return share == 0 ? 0 : share * (log - (in[c] - most)); };
        const T loss = cross_entropy(in, backs + row * classes, classes, share, part);
        if (team_first() == 0) losses[row] = loss;
    }
}
