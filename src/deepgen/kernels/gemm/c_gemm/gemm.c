// GEMM in plain C with the compiler's own vectors, for any processor: C = activation(alpha * op(A) op(B) + beta * C +
// bias), row-major, f32 or f64, any M, N, K, batch, all four layouts. The knobs are macros with defaults, so this file
// compiles alone:
//     cc -O3 -std=gnu11 -shared -fPIC -pthread -I.. gemm.c -o gemm.so -lm
//
// Threads draw tasks, each a part of C. A task goes through C in blocks of NC columns and through K in blocks of KC
// steps. In a block, strips of MR rows of A, packed one after the other, pass over panels of NR vectors of B.
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cpu_pool.h"
#if EPILOGUE
#include "epilogue_text.h"
#endif

#ifndef REAL  // float or double
#define REAL float
#endif
#ifndef VECTOR_BYTES
#define VECTOR_BYTES 16
#endif
#ifndef A_T  // layouts: 1 when A is stored K x M
#define A_T 0
#endif
#ifndef B_T  // 1 when B is stored N x K
#define B_T 0
#endif
#ifndef MR  // register tile: rows
#define MR 8
#endif
#ifndef NR  // register tile: vectors in a row
#define NR 2
#endif
#ifndef KC  // cache block: steps of K
#define KC 256
#endif
#ifndef NC  // cache block: columns of C (at least one tile)
#define NC 256
#endif
#ifndef PACK_B  // 1: a block of B is copied into panels first; 0: read in place (B must be stored K x N)
#define PACK_B 1
#endif
#ifndef UNROLL  // steps of K in one turn of the innermost loop
#define UNROLL 4
#endif
#ifndef BY_LANE  // 1: numbers of A are lanes of vectors, as Arm multiplies by one; 0: each is loaded into all lanes
#define BY_LANE 0
#endif
#ifndef THIN  // 1: for few rows, without blocks (thin.h); UNROLL rows of B at a time where it is stored K x N
#define THIN 0
#endif
#ifndef PREFETCH  // where it is thin: so many numbers ahead in rows of B; 0: leave it to the hardware
#define PREFETCH 0
#endif
#ifndef PARTITION  // what tasks divide, beside the batch: 0 M, 1 N
#define PARTITION 0
#endif
#ifndef TASKS  // for each thread: more balance better, fewer repeat less packing
#define TASKS 1
#endif
#ifndef BIAS  // 1: a number for each column is added
#define BIAS 0
#endif
#ifndef ACTIVATION  // 0 none, 1 relu, 2 gelu (in its tanh form), 3 silu
#define ACTIVATION 0
#endif
#if B_T && !PACK_B && !THIN
#error "B stored N x K has no vectors along N to read in place"
#endif
#if BY_LANE && !defined(__aarch64__)
#error "only Arm multiplies by a lane"
#endif

#define TEXT(words) #words
#define UNROLL_BY(times) _Pragma(TEXT(GCC unroll times))
#define ALL UNROLL_BY(32)
#define ALWAYS_INLINE static inline __attribute__((always_inline))

typedef REAL vec __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));

enum {
    VL = VECTOR_BYTES / sizeof(REAL),
    COLS = NR * VL,                               // of a tile
    NC_WHOLE = NC / COLS * COLS,                  // blocks are whole tiles
    STRIP = MR * KC,                              // numbers
    PANEL = COLS * KC,                            // numbers
    // Numbers of scratch for a thread.
    SLOT = THIN ? MR * (B_T ? NR : 2 * (NC + VL)) : STRIP + (PACK_B ? NC_WHOLE / COLS : 1) * PANEL,
};

typedef struct {
    const REAL *A, *B, *bias;
    REAL *C, *scratch;
    long M, N, K, batch, lda, ldb, ldc, stride_a, stride_b, stride_c;
    REAL alpha, beta;
    long parts;          // of a matrix
    _Atomic long next;  // the task to draw
#if EPILOGUE
    operands more;
    long matrix;  // of the batch, whose C begins at C
#endif
} job;

static inline long least(long a, long b) { return a < b ? a : b; }

#if BY_LANE
// By name: given the choice, compilers move sums from one register to another, and run out of them.
ALWAYS_INLINE void madd(vec *sum, vec y, vec x, int lane) {
    if (sizeof(REAL) == 4)
        __asm__("fmla %0.4s, %1.4s, %2.s[%3]" : "+w"(*sum) : "w"(y), "w"(x), "i"(lane));
    else
        __asm__("fmla %0.2d, %1.2d, %2.d[%3]" : "+w"(*sum) : "w"(y), "w"(x), "i"(lane));
}
#endif

static inline REAL activated(REAL x) {
    if (ACTIVATION == 1) return x < 0 ? 0 : x;  // NaN stays NaN
    if (ACTIVATION == 2) {                      // x (1 + tanh u) / 2 is x / (1 + e^-2u)
        REAL u = x * ((REAL)0.79788456080286536 + (REAL)0.035677408136300125 * x * x);
        return x / (1 + (sizeof(REAL) == 4 ? (REAL)expf((float)(-2 * u)) : (REAL)exp((double)(-2 * u))));
    }
    if (ACTIVATION == 3) return x / (1 + (sizeof(REAL) == 4 ? (REAL)expf((float)-x) : (REAL)exp((double)-x)));
    return x;
}

// What becomes of a tile's sums. Bias and activation follow the last block of K. Rows and columns are constants where
// the tile is whole.
ALWAYS_INLINE void finish(const REAL *sums, long ld, REAL *restrict c, long ldc, const REAL *bias, long rows, long cols,
                          REAL alpha, REAL beta, int last) {
    for (long i = 0; i < rows; i++, sums += ld, c += ldc) {
        for (long j = 0; j < cols; j++) {
            REAL x = alpha * sums[j];
            if (beta != 0) x += beta * c[j];  // a C that is not asked for may hold anything, NaN too
            if (BIAS && last) x += bias[j];
            c[j] = last ? activated(x) : x;
        }
    }
}

#if EPILOGUE
// A tile's place in C tells which elements it has: the text comes after the last block of K.
static void finish_text(const job *g, const REAL *sums, long ld, REAL *c, long rows, long cols, REAL beta, int last) {
    finish(sums, ld, c, g->ldc, 0, rows, cols, g->alpha, beta, 0);
    if (!last) return;
    long row = (c - g->C) / g->ldc, column = (c - g->C) % g->ldc;
    for (long i = 0; i < rows; i++) apply_epilogue(&g->more, g->matrix, row + i, column, cols, c + i * g->ldc);
}
#define finish(sums, ld, c, ldc, bias, rows, cols, alpha, beta, last) finish_text(g, sums, ld, c, rows, cols, beta, last)

#endif
#if THIN
#include "thin.h"
#else
#include "blocks.h"
#endif

static void draw_tasks(void *arg, int thread) {
    job *g = arg;
    for (long t; (t = atomic_fetch_add(&g->next, 1)) < g->parts * g->batch;) {
        long x = t / g->parts, at = t % g->parts;
        const REAL *A = g->A + x * g->stride_a, *B = g->B + x * g->stride_b;
        REAL *C = g->C + x * g->stride_c, *scratch = g->scratch + thread * (long)SLOT;
#if EPILOGUE
        job own;
        memcpy(&own, g, sizeof own);
        own.C = C, own.matrix = x;
        g = &own;
#endif
#if THIN
        thin(g, scratch, A, B, C, pool_part(g->N, 64 / sizeof(REAL), g->parts, at));
#else
        pool_range m = pool_part(g->M, MR, PARTITION ? 1 : g->parts, PARTITION ? 0 : at);
        pool_range n = pool_part(g->N, COLS, PARTITION ? g->parts : 1, PARTITION ? at : 0);
        part(g, scratch, A, B, C, m, n);
#endif
#if EPILOGUE
        g = arg;
#endif
    }
}

// `workspace` holds SLOT numbers for each thread.
void deepgen_gemm(const REAL *A, const REAL *B, const REAL *bias, REAL *C, REAL *workspace, int64_t M, int64_t N,
                  int64_t K, int64_t batch, int64_t lda, int64_t ldb, int64_t ldc, int64_t stride_a, int64_t stride_b,
#if EPILOGUE
                  int64_t stride_c, REAL alpha, REAL beta, int32_t threads EPILOGUE_PARAMETERS) {
#else
                  int64_t stride_c, REAL alpha, REAL beta, int32_t threads) {
#endif
    job g = {.A = A, .B = B, .bias = bias, .C = C, .scratch = workspace, .M = M, .N = N, .K = K, .batch = batch,
             .lda = lda, .ldb = ldb, .ldc = ldc, .stride_a = stride_a, .stride_b = stride_b, .stride_c = stride_c,
             .alpha = alpha, .beta = beta, .parts = threads * TASKS};
#if EPILOGUE
    g.more = (operands)EPILOGUE_GIVEN;
#endif
    pool_run(threads, draw_tasks, &g);
}
