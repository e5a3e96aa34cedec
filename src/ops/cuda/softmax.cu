// Softmax and LogSoftmax of rows, after rows.cu: x - max, its exponential, and their sum. Constant LOG: the logarithm.

extern "C" __global__ void __launch_bounds__(PER > 0 || sizeof(T) > 4 ? 256 : 512) ENTRY(const T* x, T* o, i64 rows, i64 classes) {
    for (i64 row = first_row(); row < rows; row += row_stride()) {
        const T* in = x + row * classes;
        T* out = o + row * classes;
        const int n = turns(classes);
        T kept[PER > 0 ? PER : 1], most = in[0];
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
            const i64 c = team_first() + j * team_size();
            if (c >= classes) continue;
            const T shifted = (PER > 0 ? kept[j] : in[c]) - most, e = turret_exp(shifted);
            if (PER > 0) kept[j] = LOG ? shifted : e;
            sum += e;
        }
        sum = team_sum(sum);
        const T log = LOG ? turret_log(sum) : 0, factor = 1 / sum;
#pragma unroll UNROLL
        for (int j = 0; j < n; j++) {
            const i64 c = team_first() + j * team_size();
            if (c >= classes) continue;
            const T own = PER > 0 ? kept[j] : LOG ? in[c] - most : turret_exp(in[c] - most);
            out[c] = LOG ? own - log : own * factor;
        }
    }
}
