// A convolution as a product: A are filters in lines that a first step has packed, B are pixels that are gathered as
// they are loaded, and C is the result. A block's columns are pixels of one class: those that the same taps meet.
#pragma once
#include "finished.h"

// A line of B: an input channel and a tap.
typedef Vec<i32, 2> Line;  // numbers from the pixel that the first tap meets to this one; the tap, a byte a dimension

struct Problem {
    const TYPE_A* a;   // m numbers for each line, of each group
    const TYPE_B* b;
    TYPE_C* c;
    const Line* lines;
    const TYPE_C* bias;
    const TYPE_C* residual;
    TYPE_ACC* partial;  // sums that another block adds up
    u32* arrived;       // counters that are zero before and after every run
    int m, n, k, batch;
    int first[3];   // the pixel that the first tap of the class's first pixel meets
    int origin[3];  // where the class's first pixel lies in the result
    int splits;
};

constexpr int IMAGE = IN_D * IN_H * IN_W, RESULT = OUT_D * OUT_H * OUT_W;

typedef Tile<TYPE_A, BM, ScatterA, TM, THREAD_SCATTER_A, false, INNER_K_A, PAD_A, LOAD_A, EDGE_M == 1> TileA;

#include "gather.h"

DG_DEVICE TileA::Loader loader_a(const Problem& p, int batch, int row, int step) {
    return {p.a + (i64)(batch % CONV_GROUPS) * ALL_LINES * p.m, p.m, p.m, p.k, row, step};
}
DG_DEVICE TileB::Loader loader_b(const Problem& p, int batch, int column, int step) {
    return {p, p.b + (i64)batch * CHANNELS * IMAGE, column, step};
}

// One number of the result.
DG_DEVICE void finish_one(const Problem& p, i64 at, TYPE_ACC sum, TYPE_ACC bias) {
    TYPE_ACC residual = RESIDUAL ? load_global<TYPE_C>(p.residual + at) : 0;
    store_global(p.c + at, finished(sum, bias, residual));
}
DG_DEVICE TYPE_ACC bias_of(const Problem& p, int batch, int m) {
    return BIAS ? load_global<TYPE_C>(p.bias + batch % CONV_GROUPS * FILTERS + m) : 0;
}

// COUNT neighbours of a filter's pixels.
template <int COUNT>
DG_DEVICE void finish_at(const Problem& p, int batch, int m, int n, const TYPE_ACC* sums) {
    if (FILTERS % 4 && m >= FILTERS) return;  // there for whole loads
    TYPE_ACC bias = bias_of(p, batch, m);
    i64 plane = ((i64)batch * FILTERS + m) * RESULT;
#if SCATTERED
    DG_UNROLL for (int e = 0; e < COUNT; ++e) {
        int row = (n + e) / PIXELS_W;
        int d = row / PIXELS_H * APART_D + p.origin[0], h = row % PIXELS_H * APART_H + p.origin[1];
        int w = (n + e) % PIXELS_W * APART_W + p.origin[2];
        if (d >= OUT_D || h >= OUT_H || w >= OUT_W) continue;
        finish_one(p, plane + (d * OUT_H + h) * OUT_W + w, sums[e], bias);
    }
#else
    Vec<TYPE_C, COUNT> out, residual = {};
    if (RESIDUAL) residual = load_global<Vec<TYPE_C, COUNT>>(p.residual + plane + n);
    DG_UNROLL for (int e = 0; e < COUNT; ++e) out.v[e] = finished(sums[e], bias, residual.v[e]);
    store_global(p.c + plane + n, out);
#endif
}
