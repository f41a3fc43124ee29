// The backward pass' reference on a device, in f64: results, and how far off a kernel's may be. In CUDA, and emulated on a
// CPU. The same sums as in attention_backward_reference.py, which explains the errors.
//
// Plain: a block of 16 x 16 threads owns 16 queries or keys, and goes over the other side 16 rows at a time. A thread
// computes one pair's weight and what it changes by, then columns of its row. What the flags say: FORMAT (0: f32, 1: f16,
// 2: bf16), D, DV, SOFTCAP.

#include "attention_reference.h"

enum { COLUMNS = ((D > DV ? D : DV) + 15) / 16 };

struct Problem {
    Place q, k, v, o, dout;
    i64 q_batch, q_head, k_batch, k_head, v_batch, v_head, o_batch, o_head, dout_batch, dout_head;
    const f32* lse;
    i32 heads, per_group, queries, keys, causal, window;
    f64 scale, cap, quad, base, by_score, by_product, tiny;
};

DG_DEVICE f64 size_of(f64 x) { return x < 0 ? -x : x; }
DG_DEVICE f64 at_shared(u32 tile, int row, int width, int d) { return load_shared<f64>(tile + (row * width + d) * 8); }

// The largest length of rows, which all threads learn.
DG_DEVICE f64 longest(const Place& of, i64 rows, int width) {
    f64 most = 0;
    for (i64 i = thread_id(); i < rows; i += ROWS * ROWS) {
        f64 square = 0;
        for (int d = 0; d < width; ++d) {
            const f64 x = number(of.at, of.offset + i * of.row + d);
            square += x * x;
        }
        if (square > most) most = square;
    }
    barrier();
    store_shared<f64>(thread_id() * 8, most);
    barrier();
    for (int i = 0; i < ROWS * ROWS; ++i) {
        const f64 other = load_shared<f64>(i * 8);
        if (other > most) most = other;
    }
    barrier();
    return root(most);
}

struct Sums {  // of a thread's columns
    f64 value[COLUMNS], square[COLUMNS], error[COLUMNS];
};
DG_DEVICE void clear(Sums& sums) {
    for (int c = 0; c < COLUMNS; ++c) sums.value[c] = sums.square[c] = sums.error[c] = 0;
}
DG_DEVICE void add(Sums& sums, int c, f64 weight, f64 off, f64 x, f64 tiny) {
    sums.value[c] += weight * x;
    sums.square[c] += (weight * weight + (off > 0 ? tiny * tiny : 0)) * x * x;
    sums.error[c] += off * size_of(x);
}
DG_DEVICE void store(const Sums& sums, f64* want, f32* size, i64 at, int width, f64 quad, f64 factor) {
    for (int c = 0; c < COLUMNS; ++c) {
        const int d = c * ROWS + thread_id() % ROWS;
        if (d >= width) continue;
        store_global<f64>(want + at + d, factor * sums.value[c]);
        store_global<f32>(size + at + d, (f32)(factor * (quad * root(sums.square[c]) + sums.error[c])));
    }
}

// A block's rows are of keys (OF_KEYS), for which `one` is what ds adds to and `two` what p adds to, or of queries.
DG_DEVICE void go(Problem p, int OF_KEYS, f64* want_one, f32* size_one, i64 one_row, i64 one_head, i64 one_batch,
                  f64* want_two, f32* size_two, i64 two_row, i64 two_head, i64 two_batch) {
    const u32 at_q = 0, at_k = at_q + ROWS * D * 8, at_v = at_k + ROWS * D * 8, at_o = at_v + ROWS * DV * 8;
    const u32 at_dout = at_o + ROWS * DV * 8, at_pairs = at_dout + ROWS * DV * 8, PAIRS = ROWS * ROWS * 8;
    const i64 own_rows = OF_KEYS ? p.keys : p.queries, other_rows = OF_KEYS ? p.queries : p.keys;
    const int tiles = (int)((own_rows + ROWS - 1) / ROWS), row = thread_id() / ROWS, lane = thread_id() % ROWS;
    const int all = OF_KEYS ? p.heads / p.per_group : p.heads, of = block_id() / tiles % all, batch = block_id() / tiles / all;
    const i64 first = (i64)(block_id() % tiles) * ROWS, group = OF_KEYS ? of : of / p.per_group;
    p.k.offset = batch * p.k_batch + group * p.k_head;
    p.v.offset = batch * p.v_batch + group * p.v_head;
    const f64 most_k = longest(p.k, p.keys, D), most_v = longest(p.v, p.keys, DV);
    Sums one, two;
    clear(one);
    clear(two);
    const int begin = OF_KEYS ? of * p.per_group : of, end = OF_KEYS ? begin + p.per_group : of + 1;
    for (int head = begin; head < end; ++head) {
        p.q.offset = batch * p.q_batch + head * p.q_head;
        p.o.offset = batch * p.o_batch + head * p.o_head;
        p.dout.offset = batch * p.dout_batch + head * p.dout_head;
        for (i64 j = 0; j < other_rows; j += ROWS) {
            const i64 query_first = OF_KEYS ? j : first, key_first = OF_KEYS ? first : j;
            barrier();
            fetch(at_q, p.q, query_first, p.queries, D);
            fetch(at_k, p.k, key_first, p.keys, D);
            fetch(at_v, p.v, key_first, p.keys, DV);
            fetch(at_o, p.o, query_first, p.queries, DV);
            fetch(at_dout, p.dout, query_first, p.queries, DV);
            barrier();
            const int mine = OF_KEYS ? lane : row, its = OF_KEYS ? row : lane;  // of the query, and of the key
            const i64 query = query_first + mine, key = key_first + its, apart = query + p.keys - p.queries - key;
            f64 score = 0, length = 0, dp = 0, delta = 0, terms = 0, size = 0, slope = 1;
            for (int d = 0; d < D; ++d) {
                const f64 x = at_shared(at_q, mine, D, d);
                score += x * at_shared(at_k, its, D, d);
                length += x * x;
            }
            for (int d = 0; d < DV; ++d) {
                const f64 x = at_shared(at_dout, mine, DV, d), term = x * at_shared(at_o, mine, DV, d);
                dp += x * at_shared(at_v, its, DV, d);
                delta += term;
                terms += size_of(term);
                size += x * x;
            }
            score *= p.scale;
#if SOFTCAP
            const f64 share = tanh(score / p.cap);
            score = p.cap * share, slope = 1 - share * share;
#endif
            bool seen = query < p.queries && key < p.keys && (!p.causal || apart >= 0);
            if (p.window) seen = seen && apart < p.window && (p.causal || apart > -(i64)p.window);
            f64 weight = 0, change = 0, weight_off = 0, change_off = 0;
            if (seen) {
                const f64 lse = load_global<f32>(p.lse + ((i64)batch * p.heads + head) * p.queries + query);
                const f64 step = 1.1920928955078125e-07 * (lse - lse == 0 ? size_of(lse) : 0);
                const f64 share_off = p.base + p.by_score * root(length) * most_k * p.scale + step;
                weight = exp(score - lse);
                change = weight * (dp - delta) * slope;
                weight_off = share_off * weight;
                change_off = weight * (share_off * (size_of(dp) + size_of(delta)) + p.by_product * (root(size) * most_v + terms));
            }
            store_shared<f64>(at_pairs + thread_id() * 8, weight);
            store_shared<f64>(at_pairs + PAIRS + thread_id() * 8, weight_off);
            store_shared<f64>(at_pairs + 2 * PAIRS + thread_id() * 8, change);
            store_shared<f64>(at_pairs + 3 * PAIRS + thread_id() * 8, change_off);
            barrier();
            for (int i = 0; i < ROWS; ++i) {
                const u32 pair = at_pairs + (row * ROWS + i) * 8;
                const f64 ds = load_shared<f64>(pair + 2 * PAIRS), ds_off = load_shared<f64>(pair + 3 * PAIRS);
                const f64 own = load_shared<f64>(pair), own_off = load_shared<f64>(pair + PAIRS);
                for (int c = 0; c < COLUMNS; ++c) {
                    const int d = c * ROWS + lane;
                    if (d < D) add(one, c, ds, ds_off, at_shared(OF_KEYS ? at_q : at_k, i, D, d), p.tiny);
                    if (OF_KEYS && d < DV) add(two, c, own, own_off, at_shared(at_dout, i, DV, d), p.tiny);
                }
            }
        }
    }
    if (first + row >= own_rows) return;
    store(one, want_one, size_one, batch * one_batch + of * one_head + (first + row) * one_row, D, p.quad, p.scale);
    if (OF_KEYS)
        store(two, want_two, size_two, batch * two_batch + of * two_head + (first + row) * two_row, DV, p.quad, 1);
}

#define TENSOR(name) const void *name, i64 name##_row, i64 name##_head, i64 name##_batch
#define RESULT(name) f64 *want_##name, f32 *size_##name, i64 name##_row, i64 name##_head, i64 name##_batch
#define OUT(name) want_##name, size_##name, name##_row, name##_head, name##_batch
#define PARAMETERS                                                                                                  \
    TENSOR(q), TENSOR(k), TENSOR(v), TENSOR(o), TENSOR(dout), const f32 *lse, i32 heads, i32 per_group, i32 queries, \
        i32 keys, i32 causal, i32 window, f64 scale, f64 cap, f64 quad, f64 base, f64 by_score, f64 by_product, f64 tiny
#define PROBLEM                                                                                                    \
    {                                                                                                              \
        {q, q_row, 0}, {k, k_row, 0}, {v, v_row, 0}, {o, o_row, 0}, {dout, dout_row, 0}, q_batch, q_head, k_batch, \
            k_head, v_batch, v_head, o_batch, o_head, dout_batch, dout_head, lse, heads, per_group, queries, keys, \
            causal, window, scale, cap, quad, base, by_score, by_product, tiny                                     \
    }

DG_KERNEL reference_keys(PARAMETERS, RESULT(dk), RESULT(dv)) {
    const Problem p = PROBLEM;
    go(p, 1, OUT(dk), OUT(dv));
}

DG_KERNEL reference_queries(PARAMETERS, RESULT(dq)) {
    const Problem p = PROBLEM;
    go(p, 0, OUT(dq), 0, 0, 0, 0, 0);
}
