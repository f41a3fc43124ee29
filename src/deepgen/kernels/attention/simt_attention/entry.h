// The kernel of one of the two products. `own` is Q or O, `shared` K or V.
#pragma once

DG_KERNEL(THREADS, MIN_BLOCKS)
#if SCORES
attention_scores
#else
attention_values
#endif
(TYPE_C* own, const TYPE_B* shared, TYPE_C* scores, int m, int n, int k, int batch, int first, int heads, int per_group,
 i64 own_row, i64 own_head, i64 own_batch, i64 shared_row, i64 shared_head, i64 shared_batch, int least, int most,
 f32 scale, f32 cap, const TYPE_C* bias, i64 bias_batch, i64 bias_head, i64 bias_row, i64 bias_key, const f32* slopes,
 const f32* totals, int shift) {
    const TYPE_A* a = SCORES ? own : scores;
    Problem p = {a, shared, SCORES ? scores : own, m, n, k, batch, first, heads, per_group,
                 {own_row, own_head, own_batch}, {shared_row, shared_head, shared_batch}, least, most, scale, cap,
                 bias, bias_batch, bias_head, bias_row, bias_key, slopes, totals, shift, 1, nullptr, nullptr};
    Lane lane;
    Sums sums;
    Block block{p, lane, sums};
    do_share(p, block);
}
