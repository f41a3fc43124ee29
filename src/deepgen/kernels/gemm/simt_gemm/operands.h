// A, B and C of a product: what a kernel is given, how tiles come from it, and where results go.
#pragma once

// The run-time arguments, as they are passed.
struct Problem {
    const TYPE_A* a;
    const TYPE_B* b;
    TYPE_C* c;
    TYPE_ACC* partial;  // sums that another block, or the next step, adds up
    u32* arrived;       // counters that are zero before and after every run
    int m, n, k, batch;
    int lda, ldb, ldc;
    i64 stride_a, stride_b, stride_c;
    TYPE_SCALE alpha, beta;
    int splits;  // of K over the grid
#if BANDED
    int least, most;  // as in band.h
#endif
};

#if BANDED
#include "work.h"
#include "band.h"

#endif
typedef Tile<TYPE_A, BM, ScatterA, TM, THREAD_SCATTER_A, !A_T, INNER_K_A, PAD_A, LOAD_A, EDGE_M == 1> TileA;
typedef Tile<TYPE_B, BN, ScatterB, TN, THREAD_SCATTER_B, B_T, INNER_K_B, PAD_B, LOAD_B, EDGE_N == 1> TileB;

DG_DEVICE TileA::Loader loader_a(const Problem& p, int batch, int row, int step) {
    return {p.a + batch * p.stride_a, p.lda, p.m, p.k, row, step};
}
DG_DEVICE TileB::Loader loader_b(const Problem& p, int batch, int column, int step) {
    return {p.b + batch * p.stride_b, p.ldb, p.n, p.k, column, step};
}

// alpha * sums + beta * C, for COUNT neighbours of a row.
template <int COUNT>
DG_DEVICE void finish(const Problem& p, TYPE_C* to, const TYPE_ACC* sums) {
    TYPE_SCALE scaled[COUNT];
    DG_UNROLL for (int e = 0; e < COUNT; ++e) scaled[e] = p.alpha * (TYPE_SCALE)sums[e];
#if BETA
    if (p.beta != 0) {
        Vec<TYPE_C, COUNT> old = load_fresh<Vec<TYPE_C, COUNT>>(to);
        DG_UNROLL for (int e = 0; e < COUNT; ++e) {
            TYPE_ACC wide;
            widen(old.v[e], wide);
            scaled[e] += p.beta * (TYPE_SCALE)wide;
        }
    }
#endif
    Vec<TYPE_C, COUNT> out;
    DG_UNROLL for (int e = 0; e < COUNT; ++e) narrow((TYPE_ACC)scaled[e], out.v[e]);
    store_global(to, out);
}

// The same at a place of C.
template <int COUNT>
DG_DEVICE void finish_at(const Problem& p, int batch, int m, int n, const TYPE_ACC* sums) {
#if BANDED
    TYPE_ACC kept[COUNT];
    DG_UNROLL for (int e = 0; e < COUNT; ++e) kept[e] = in_band(p, m, n + e) ? sums[e] : 0;
    finish<COUNT>(p, p.c + batch * p.stride_c + m * (i64)p.ldc + n, kept);
#else
    finish<COUNT>(p, p.c + batch * p.stride_c + m * (i64)p.ldc + n, sums);
#endif
}
