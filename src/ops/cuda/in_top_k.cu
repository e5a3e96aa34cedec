// InTopKV2, after rows.cu: a target is among the first k where fewer than k are larger and all numbers are finite.

extern "C" __global__ void ENTRY(const float* x, const I* targets, const K* k, u8* o, i64 rows, i64 classes) {
    for (i64 row = first_row(); row < rows; row += row_stride()) {
        const i64 target = targets[row];
        const bool is_class = target >= 0 && target < classes;
        const float* in = x + row * classes;
        const float own = is_class ? in[target] : 0;
        i64 larger = 0, unclear = !is_class;
        for (i64 c = team_first(); c < classes; c += team_size()) {
            larger += in[c] > own;
            unclear += in[c] - in[c] != 0;
        }
        larger = team_sum(larger);
        unclear = team_sum(unclear);
        if (team_first() == 0) o[row] = unclear == 0 && larger < k[0];
    }
}
