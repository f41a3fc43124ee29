// The two products of attention, with a matrix for each head of each batch: A, B and C as simt_gemm's main loop asks for
// them.
// SCORES  1: C = Q K^T, scaled and masked, in a workspace that has only some heads at a time, the first of them `first`
//         0: C = P V, where the weights P are in that workspace; rows are divided by the sums of their weights
#pragma once
#if SOFTCAP
#include "exponential.h"
#endif

struct Strides {
    i64 row, head, batch;
};

// The run-time arguments.
struct Problem {
    const TYPE_A* a;
    const TYPE_B* b;
    TYPE_C* c;
    int m, n, k, batch;
    int first, heads, per_group;  // per_group: heads of Q that share a head of K and V
    Strides own, shared;          // of Q or O, and of K or V
    int least, most;              // as in band.h
    f32 scale, cap;
    const TYPE_C* bias;
    i64 bias_batch, bias_head, bias_row, bias_key;
    const f32* slopes;
    const f32* totals;  // of the weights of a row
    int shift;  // the last query is at the last key
    int splits;
    TYPE_ACC* partial;
    u32* arrived;
};

#if BANDED
#include "work.h"
#include "band.h"
#endif

typedef Tile<TYPE_A, BM, ScatterA, TM, THREAD_SCATTER_A, !A_T, INNER_K_A, PAD_A, LOAD_A, EDGE_M == 1> TileA;
typedef Tile<TYPE_B, BN, ScatterB, TN, THREAD_SCATTER_B, B_T, INNER_K_B, PAD_B, LOAD_B, EDGE_N == 1> TileB;

// Where the matrix of a head begins, of which `sharing` heads have one.
DG_DEVICE i64 begin_of(const Problem& p, const Strides& strides, int matrix, int sharing) {
    int head = p.first + matrix, batch = head / p.heads;
    return batch * strides.batch + (head - batch * p.heads) / sharing * strides.head;
}

DG_DEVICE TileA::Loader loader_a(const Problem& p, int matrix, int row, int step) {
#if SCORES
    return {p.a + begin_of(p, p.own, matrix, 1), (int)p.own.row, p.m, p.k, row, step};
#else
    return {p.a + (i64)matrix * p.m * p.k, p.k, p.m, p.k, row, step};
#endif
}
DG_DEVICE TileB::Loader loader_b(const Problem& p, int matrix, int column, int step) {
    return {p.b + begin_of(p, p.shared, matrix, p.per_group), (int)p.shared.row, p.n, p.k, column, step};
}

#if SCORES
// What becomes of a product. A key that the query does not see has minus infinity.
DG_DEVICE f32 score(const Problem& p, int matrix, int query, int key, f32 x) {
    int head = p.first + matrix, batch = head / p.heads;
    head -= batch * p.heads;
#if BANDED
    if (!in_band(p, query, key)) return bit_cast<f32>(0xff800000u);
#endif
    x *= p.scale;
#if SOFTCAP
    f32 least = exponential((x < 0 ? x : -x) * (2 / p.cap)), bent = p.cap * ((1 - least) / (1 + least));
    x = x < 0 ? -bent : bent;
#endif
#if ALIBI
    int apart = query + p.shift - key;
    x -= load_global<f32>(p.slopes + head) * (f32)(apart < 0 ? -apart : apart);
#endif
#if BIAS
    x += load_global<TYPE_C>(p.bias + batch * p.bias_batch + head * p.bias_head + query * p.bias_row + key * p.bias_key);
#endif
    return x;
}
#endif

// COUNT neighbours of a row of the result.
template <int COUNT>
DG_DEVICE void finish_at(const Problem& p, int matrix, int m, int n, const TYPE_ACC* sums) {
    Vec<TYPE_C, COUNT> out;
#if SCORES
    DG_UNROLL for (int e = 0; e < COUNT; ++e) out.v[e] = score(p, matrix, m, n + e, sums[e]);
    store_global(p.c + ((i64)matrix * p.m + m) * p.n + n, out);
#else
    f32 total = load_global<f32>(p.totals + (i64)matrix * p.m + m), scale = total == 0 ? 0 : 1 / total;
    DG_UNROLL for (int e = 0; e < COUNT; ++e) out.v[e] = sums[e] * scale;
    store_global(p.c + begin_of(p, p.own, matrix, 1) + m * p.own.row + n, out);
#endif
}
