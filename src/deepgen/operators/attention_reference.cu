// Attention's reference on a device, in f64: results, and how far off a kernel's may be. In CUDA, and emulated on a CPU.
//
// Plain: a block of 16 x 16 threads has 16 queries of a head, and goes over their keys twice, 16 at a time: for the
// largest score, and for weights and sums. What the flags say: FORMAT (0: f32, 1: f16, 2: bf16, 3: f8e4m3), D, DV, SOFTCAP, LENGTHS,
// PAGE (keys of a page, a multiple of 16, so that keys that are fetched together lie in one; 0: K and V have no pages).

#include "attention_reference.h"

enum { COLUMNS = (DV + 15) / 16 };

DG_KERNEL attention_reference(
    const void* q, const void* k, const void* v, f64* want, f32* size, i64 q_row, i64 q_head, i64 q_batch, i64 k_row,
    i64 k_head, i64 k_batch, i64 v_row, i64 v_head, i64 v_batch, i64 o_row, i64 o_head, i64 o_batch, i32 heads,
    i32 per_group, i32 queries, i32 keys, i32 causal, i32 window, f64 scale, f64 cap, f64 quad, f64 base, f64 by_score, const void* bias,
    i64 bias_batch, i64 bias_head, i64 bias_row, i64 bias_key, const f32* slopes, const f32* sinks, f64* want_lse,
    f32* size_lse, const i32* lengths, const i32* pages, i64 pages_row, const f32* q_scales, i64 q_scales_batch,
    i64 q_scales_head, const f32* k_scales, i64 k_scales_batch, i64 k_scales_head, const f32* v_scales,
    i64 v_scales_batch, i64 v_scales_head, f64 faint
) {
    const u32 at_q = 0, at_k = at_q + ROWS * D * 8, at_v = at_k + ROWS * D * 8, at_p = at_v + ROWS * DV * 8;
    const int tiles = (queries + ROWS - 1) / ROWS, row = thread_id() / ROWS, lane = thread_id() % ROWS;
    const int head = block_id() / tiles % heads, batch = block_id() / tiles / heads, group = head / per_group;
    if (LENGTHS) keys = load_global<i32>(lengths + batch);
    if (FORMAT == 3 && q_scales) scale *= load_global<f32>(q_scales + batch * q_scales_batch + head * q_scales_head);
    if (FORMAT == 3 && k_scales) scale *= load_global<f32>(k_scales + batch * k_scales_batch + group * k_scales_head);
    const f64 v_scale = FORMAT == 3 && v_scales ? load_global<f32>(v_scales + batch * v_scales_batch + group * v_scales_head) : 1.0;
    const i64 first = (i64)(block_id() % tiles) * ROWS, query = first + row, own = query + keys - queries;
    const Place of_q{q, q_row, batch * q_batch + head * q_head};
    Place of_k{k, k_row, batch * k_batch + group * k_head}, of_v{v, v_row, batch * v_batch + group * v_head};
    const f64 none = -1e300, slope = slopes ? load_global<f32>(slopes + head) : 0.0;
    f64 most = none, longest = 0, added = 0, total = 0, least = 0, sums[COLUMNS], sizes[COLUMNS], squares[COLUMNS];
    for (int c = 0; c < COLUMNS; ++c) sums[c] = sizes[c] = squares[c] = 0;
    fetch(at_q, of_q, first, queries, D);
    for (int pass = 0; pass < 2; ++pass) {
        for (i64 j = 0; j < keys; j += ROWS) {
            barrier();
#if PAGE
            const i64 page = load_global<i32>(pages + batch * pages_row + j / PAGE), shift = j / PAGE * PAGE;
            of_k.offset = page * k_batch + group * k_head - shift * k_row;
            of_v.offset = page * v_batch + group * v_head - shift * v_row;
#endif
            fetch(at_k, of_k, j, keys, D);
            if (pass) fetch(at_v, of_v, j, keys, DV);
            barrier();
            f64 score = 0, length = 0;
            for (int d = 0; d < D; ++d) {
                const f64 one = load_shared<f64>(at_k + (lane * D + d) * 8);
                score += load_shared<f64>(at_q + (row * D + d) * 8) * one;
                length += one * one;
            }
            score *= scale;
#if SOFTCAP
            score = cap * tanh(score / cap);
#endif
            const i64 key = j + lane, apart = own - key;
            bool seen = key < keys && (!causal || apart >= 0);
            if (window) seen = seen && apart < window && (causal || apart > -(i64)window);
            f64 more = slope * (f64)(apart < 0 ? -apart : apart), sum = more;
            score -= more;
            if (bias && seen && query < queries) {
                const f64 one =
                    number_added(bias, batch * bias_batch + head * bias_head + query * bias_row + key * bias_key);
                seen = one > none;  // minus infinity hides a key
                if (seen) score += one, sum += one < 0 ? -one : one;
            }
            if (!pass) {
                if (seen && score > most) most = score;
                if (seen && sum > added) added = sum;
                if (length > longest) longest = length;
                continue;
            }
            store_shared<f64>(at_p + thread_id() * 8, seen ? exp(score - most) : FORMAT == 3 ? -1.0 : 0.0);
            barrier();
            for (int i = 0; i < ROWS; ++i) {
                const f64 weight = load_shared<f64>(at_p + (row * ROWS + i) * 8);
                if (FORMAT == 3 && weight < 0) continue;
                total += weight;
                for (int c = 0; c < COLUMNS; ++c) {
                    if (c * ROWS + lane >= DV) continue;
                    const f64 value = v_scale * load_shared<f64>(at_v + (i * DV + c * ROWS + lane) * 8), term = weight * value;
                    sums[c] += term;
                    sizes[c] += term < 0 ? -term : term;
                    squares[c] += term * term;
                    if (FORMAT == 3) squares[c] += least * value * least * value;
                }
            }
        }
        // The largest score of the row, the longest key, and the most that is added, which all lanes of it share.
        for (int of = 0; of < 3 && !pass; ++of) {
            f64& largest = of == 0 ? most : of == 1 ? longest : added;
            barrier();
            store_shared<f64>(at_p + thread_id() * 8, largest);
            barrier();
            for (int i = 0; i < ROWS; ++i) {
                const f64 other = load_shared<f64>(at_p + (row * ROWS + i) * 8);
                if (other > largest) largest = other;
            }
        }
        if (pass) continue;
        const f64 top = most;
        if (sinks && load_global<f32>(sinks + head) > most) most = load_global<f32>(sinks + head);
        if (FORMAT == 3) least = faint * exp(top - most);
    }
    if (query >= queries) return;
    f64 length = 0;
    for (int d = 0; d < D; ++d) {
        const f64 one = load_shared<f64>(at_q + (row * D + d) * 8);
        length += one * one;
    }
    if (sinks) total += exp(load_global<f32>(sinks + head) - most);
    const f64 by = total > 0 ? 1 / total : 0, products = scale * root(length) * root(longest) + added;
    if (want_lse && lane == 0) {
        const i64 at = ((i64)batch * heads + head) * queries + query;
        store_global<f64>(want_lse + at, total > 0 ? most + log(total) : -1 / 0.0);
        store_global<f32>(size_lse + at, (f32)(base + by_score * products));
    }
    for (int c = 0; c < COLUMNS; ++c) {
        if (c * ROWS + lane >= DV) continue;
        const i64 at = batch * o_batch + head * o_head + query * o_row + c * ROWS + lane;
        store_global<f64>(want + at, total > 0 ? sums[c] / total : 0.0);
        store_global<f32>(size + at, (f32)((quad * root(squares[c]) + (base + by_score * products) * sizes[c]) * by));
    }
}
