// The cross entropy of a row of logits with its softmax, and the gradient by the logits, after rows.cu. The row's
// labels come as `label(c)`, the share of class c; `loss(log, most)` gives what a thread adds to the row's loss.

template <class Label, class Loss>
static __device__ __forceinline__ T cross_entropy(const T* in, T* back, i64 classes, Label label, Loss loss) {
    const int n = turns(classes);
    T kept[PER > 0 ? PER : 1], most = classes > 0 ? in[0] : 0;
#pragma unroll UNROLL
    for (int j = 0; j < n; j++) {
        const i64 c = team_first() + j * team_size();
        const T v = c < classes ? in[c] : most;
        if (PER > 0) kept[j] = v;
        most = turret_larger(most, v);
    }
    most = team_largest(most);
    T sum = 0;
#pragma unroll UNROLL
    for (int j = 0; j < n; j++) {
        if (team_first() + j * team_size() >= classes) continue;
        const T e = turret_exp((PER > 0 ? kept[j] : in[team_first() + j * team_size()]) - most);
        if (PER > 0) kept[j] = e;
        sum += e;
    }
    sum = team_sum(sum);
    const T log = turret_log(sum);
    T total = 0;
#pragma unroll UNROLL
    for (int j = 0; j < n; j++) {
        const i64 c = team_first() + j * team_size();
        if (c >= classes) continue;
        const T e = PER > 0 ? kept[j] : turret_exp(in[c] - most), share = label(c);
        total += loss(c, share, log, most);
        back[c] = e / sum - share;
    }
    return team_sum(total);
}
