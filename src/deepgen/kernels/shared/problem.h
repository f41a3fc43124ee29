// What a kernel is given, and what becomes of a sum: scale, beta * C, bias, activation, rounding.
#pragma once
#include "dialect_mma.h"
#if EPILOGUE
#include "epilogue_text.h"
#endif

// The run-time arguments, as they are passed.
struct Problem {
    const TYPE_A* a;
    const TYPE_B* b;
    TYPE_C* c;
    const TYPE_C* bias;  // one a column
    const f32* scale;    // one, one a row or one a column
    TYPE_ACC* partial;   // sums that another block, or the next step, adds up
    u32* arrived;        // counters that are zero before and after every run
    int m, n, k, batch;
    int lda, ldb, ldc;
    i64 stride_a, stride_b, stride_c;
    TYPE_WORK alpha, beta;
    int splits;  // of K over the grid
#if EPILOGUE
    Operands operands;
#endif
};

#if EPILOGUE
#define DG_PROBLEM                                                                                                   \
    const TYPE_A *a, const TYPE_B *b, TYPE_C *c, const TYPE_C *bias, const f32 *scale, TYPE_ACC *partial,            \
        u32 *arrived, int m, int n, int k, int batch, int lda, int ldb, int ldc, i64 stride_a, i64 stride_b,         \
        i64 stride_c, TYPE_WORK alpha, TYPE_WORK beta, int splits EPILOGUE_PARAMETERS
#define DG_GIVEN                                                                                                     \
    {a, b, c, bias, scale, partial, arrived, m, n, k, batch, lda, ldb, ldc, stride_a, stride_b, stride_c, alpha, beta, splits \
     , EPILOGUE_GIVEN}
#else
#define DG_PROBLEM                                                                                                   \
    const TYPE_A *a, const TYPE_B *b, TYPE_C *c, const TYPE_C *bias, const f32 *scale, TYPE_ACC *partial,            \
        u32 *arrived, int m, int n, int k, int batch, int lda, int ldb, int ldc, i64 stride_a, i64 stride_b,         \
        i64 stride_c, TYPE_WORK alpha, TYPE_WORK beta, int splits
#define DG_GIVEN                                                                                                     \
    {a, b, c, bias, scale, partial, arrived, m, n, k, batch, lda, ldb, ldc, stride_a, stride_b, stride_c, alpha, beta, splits}
#endif

#define RELU 1
#define GELU 2
#define SILU 3
#define BY_TENSOR 1
#define BY_ROW 2
#define BY_COLUMN 3

DG_DEVICE f32 activate(f32 x) {
    if (ACTIVATION == RELU) return x < 0.0f ? 0.0f : x;
    if (ACTIVATION == GELU) return x / (1.0f + exponential(-1.5957691216f * (x + 0.044715f * x * x * x)));
    if (ACTIVATION == SILU) return x / (1.0f + exponential(-x));
    return x;
}
DG_DEVICE i32 activate(i32 x) { return x; }

// COUNT neighbours of a row of C from their sums. They all exist.
template <int COUNT>
DG_DEVICE void finish(const Problem& p, int batch, int row, int column, const TYPE_ACC* sums) {
    typedef Vec<TYPE_C, COUNT> Run;
    TYPE_C* to = p.c + batch * p.stride_c + row * (i64)p.ldc + column;
    TYPE_WORK x[COUNT], wide;
    DG_UNROLL for (int e = 0; e < COUNT; ++e) {
        to_work(sums[e], x[e]);
        x[e] *= p.alpha;
    }
#if SCALES == BY_COLUMN
    DG_UNROLL for (int e = 0; e < COUNT; ++e) x[e] *= load_global<f32>(p.scale + column + e);
#elif SCALES
    f32 scale = load_global<f32>(p.scale + (SCALES == BY_ROW ? row : 0));
    DG_UNROLL for (int e = 0; e < COUNT; ++e) x[e] *= scale;
#endif
#if BETA
    Run old = load_fresh<Run>(to);
    DG_UNROLL for (int e = 0; e < COUNT; ++e) {
        widen(old.v[e], wide);
        x[e] += p.beta * wide;
    }
#endif
#if BIAS
    Run more = load_global<Run>(p.bias + column);
    DG_UNROLL for (int e = 0; e < COUNT; ++e) {
        widen(more.v[e], wide);
        x[e] += wide;
    }
#endif
#if EPILOGUE
    apply_epilogue<COUNT>(p.operands, batch, row, column, x);
#else
    DG_UNROLL for (int e = 0; e < COUNT; ++e) x[e] = activate(x[e]);
#endif
    Run out;
    if constexpr (COUNT == 1) narrow(x[0], out.v[0]);
    else
        DG_UNROLL for (int e = 0; e < COUNT; e += 2) {
            Vec<TYPE_C, 2> two;
            narrow_two(x[e], x[e + 1], two);
            out.v[e] = two.v[0];
            out.v[e + 1] = two.v[1];
        }
    store_global(to, out);
}

// A run of neighbours in stores of STORE; none of those past the edge.
template <int COUNT>
DG_DEVICE void finish_run(const Problem& p, int batch, int row, int column, const TYPE_ACC* sums) {
    if (EDGE_M && row >= p.m) return;
    DG_UNROLL for (int e = 0; e < COUNT; e += STORE)
        if (!EDGE_N || column + e < p.n) finish<STORE>(p, batch, row, column + e, sums + e);
}
