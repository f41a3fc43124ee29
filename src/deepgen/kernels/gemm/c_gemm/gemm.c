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
#if B_T && !PACK_B
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
    SLOT = STRIP + (PACK_B ? NC_WHOLE / COLS : 1) * PANEL,  // numbers of scratch for a thread
};

typedef struct {
    const REAL *A, *B, *bias;
    REAL *C, *scratch;
    long M, N, K, batch, lda, ldb, ldc, stride_a, stride_b, stride_c;
    REAL alpha, beta;
    long parts;          // of a matrix
    _Atomic long next;  // the task to draw
} job;

static inline long least(long a, long b) { return a < b ? a : b; }

#if BY_LANE
// A square of numbers, its rows as columns: first the halves of two rows are woven, then those of two such.
ALWAYS_INLINE void pack_square(REAL *to, const REAL *a, long lda) {
    vec t[VL], u[VL];
    ALL for (int i = 0; i < VL; i++) t[i] = *(const vec *)(a + i * lda);
    ALL for (int i = 0; i < VL / 2; i++) {
        if (sizeof(REAL) == 4) {
            __asm__("zip1 %0.4s, %1.4s, %2.4s" : "=w"(u[2 * i]) : "w"(t[i]), "w"(t[i + VL / 2]));
            __asm__("zip2 %0.4s, %1.4s, %2.4s" : "=w"(u[2 * i + 1]) : "w"(t[i]), "w"(t[i + VL / 2]));
        } else {
            __asm__("zip1 %0.2d, %1.2d, %2.2d" : "=w"(u[2 * i]) : "w"(t[i]), "w"(t[i + VL / 2]));
            __asm__("zip2 %0.2d, %1.2d, %2.2d" : "=w"(u[2 * i + 1]) : "w"(t[i]), "w"(t[i + VL / 2]));
        }
    }
    if (sizeof(REAL) == 4)
        ALL for (int i = 0; i < VL / 2; i++) {
            __asm__("zip1 %0.4s, %1.4s, %2.4s" : "=w"(t[2 * i]) : "w"(u[i]), "w"(u[i + VL / 2]));
            __asm__("zip2 %0.4s, %1.4s, %2.4s" : "=w"(t[2 * i + 1]) : "w"(u[i]), "w"(u[i + VL / 2]));
        }
    ALL for (int i = 0; i < VL; i++) *(vec *)(to + i * MR) = sizeof(REAL) == 4 ? t[i] : u[i];
}
#endif

// `rows` rows of A over kc steps, step after step; rows that are missing are zeros.
static void pack_strip(REAL *to, const REAL *a, long lda, long rows, long kc) {
    if (rows < MR) memset(to, 0, (size_t)(kc * MR) * sizeof(REAL));
    if (A_T)
        for (long k = 0; k < kc; k++)
            for (long i = 0; i < rows; i++) to[k * MR + i] = a[k * lda + i];
    else {
        long done = 0;
#if BY_LANE
        if (rows == MR)
            for (; done + VL <= kc; done += VL)
                ALL for (int i = 0; i < MR; i += VL) pack_square(to + done * MR + i, a + i * lda + done, lda);
#endif
        for (long i = 0; i < rows; i++)
            for (long k = done; k < kc; k++) to[k * MR + i] = a[i * lda + k];
    }
}

// `cols` columns of B over kc steps, step after step; columns that are missing are zeros.
static void pack_panel(REAL *to, const REAL *b, long ldb, long cols, long kc) {
    if (cols < COLS) memset(to, 0, (size_t)(kc * COLS) * sizeof(REAL));
    if (B_T)
        for (long j = 0; j < cols; j++)
            for (long k = 0; k < kc; k++) to[k * COLS + j] = b[j * ldb + k];
    else if (cols == COLS)
        for (long k = 0; k < kc; k++)
            ALL for (int j = 0; j < COLS; j += VL) *(vec *)(to + k * COLS + j) = *(const vec *)(b + k * ldb + j);
    else
        for (long k = 0; k < kc; k++) memcpy(to + k * COLS, b + k * ldb, (size_t)cols * sizeof(REAL));
}

#if BY_LANE
// By name: given the choice, compilers move sums from one register to another, and run out of them.
ALWAYS_INLINE void madd(vec *sum, vec y, vec x, int lane) {
    if (sizeof(REAL) == 4)
        __asm__("fmla %0.4s, %1.4s, %2.s[%3]" : "+w"(*sum) : "w"(y), "w"(x), "i"(lane));
    else
        __asm__("fmla %0.2d, %1.2d, %2.d[%3]" : "+w"(*sum) : "w"(y), "w"(x), "i"(lane));
}
#endif

// One step of K.
ALWAYS_INLINE void step(vec acc[MR][NR], const REAL *column, const REAL *row) {
    vec y[NR];
    ALL for (int j = 0; j < NR; j++) y[j] = *(const vec *)(row + j * VL);
#if BY_LANE
    vec x[MR / VL];
    ALL for (int i = 0; i < MR / VL; i++) x[i] = *(const vec *)(column + i * VL);
    ALL for (int i = 0; i < MR; i++) ALL for (int j = 0; j < NR; j++) madd(&acc[i][j], y[j], x[i / VL], i % VL);
    __asm__ volatile("" ::: "memory");  // vectors of a later step, loaded ahead of their turn, would not fit
#else
    ALL for (int i = 0; i < MR; i++) {
        ALL for (int j = 0; j < NR; j++) acc[i][j] += column[i] * y[j];
        __asm__ volatile("" ::: "memory");  // nor would numbers of later rows
    }
#endif
}

// The sums of one tile.
static void tile(REAL sums[MR][COLS], const REAL *a, const REAL *b, long ldb, long kc) {
    vec acc[MR][NR];
    ALL for (int i = 0; i < MR; i++) ALL for (int j = 0; j < NR; j++) acc[i][j] = (vec){0};
    UNROLL_BY(UNROLL)
    for (long k = 0; k < kc; k++) step(acc, a + k * MR, b + k * ldb);
    ALL for (int i = 0; i < MR; i++) ALL for (int j = 0; j < NR; j++) *(vec *)(sums[i] + j * VL) = acc[i][j];
}

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
ALWAYS_INLINE void finish(REAL sums[MR][COLS], REAL *restrict c, long ldc, const REAL *bias, long rows, long cols, REAL alpha,
                   REAL beta, int last) {
    for (long i = 0; i < rows; i++, c += ldc) {
        for (long j = 0; j < cols; j++) {
            REAL x = alpha * sums[i][j];
            if (beta != 0) x += beta * c[j];  // a C that is not asked for may hold anything, NaN too
            if (BIAS && last) x += bias[j];
            c[j] = last ? activated(x) : x;
        }
    }
}

// Rows m and columns n of one matrix.
static void part(const job *g, REAL *strip, const REAL *A, const REAL *B, REAL *C, pool_range m, pool_range n) {
    REAL *panels = strip + STRIP;
    for (long j0 = n.from, nc; j0 < n.from + n.size; j0 += nc) {
        nc = least(NC_WHOLE, n.from + n.size - j0);
        for (long k0 = 0, kc; k0 < g->K; k0 += kc) {
            kc = least(KC, g->K - k0);
            const REAL *b = B_T ? B + j0 * g->ldb + k0 : B + k0 * g->ldb + j0;
            long edge = nc / COLS * COLS;  // where a panel that is not whole begins
            for (long j = PACK_B ? 0 : edge; j < nc; j += COLS)
                pack_panel(panels + (PACK_B ? j * KC : 0), b + (B_T ? j * g->ldb : j), g->ldb, least(COLS, nc - j), kc);
            for (long i = m.from; i < m.from + m.size; i += MR) {
                long rows = least(MR, m.from + m.size - i);
                pack_strip(strip, A_T ? A + k0 * g->lda + i : A + i * g->lda + k0, g->lda, rows, kc);
                for (long j = 0; j < nc; j += COLS) {
                    int in_place = !PACK_B && j < edge;
                    const REAL *panel = in_place ? b + j : panels + (PACK_B ? j * KC : 0);
                    REAL sums[MR][COLS];
                    tile(sums, strip, panel, in_place ? g->ldb : COLS, kc);
                    REAL *c = C + i * g->ldc + j0 + j, beta = k0 ? 1 : g->beta;
                    const REAL *bias = BIAS ? g->bias + j0 + j : 0;
                    int last = k0 + kc == g->K;
                    if (rows == MR && nc - j >= COLS)
                        finish(sums, c, g->ldc, bias, MR, COLS, g->alpha, beta, last);
                    else
                        finish(sums, c, g->ldc, bias, rows, least(COLS, nc - j), g->alpha, beta, last);
                }
            }
        }
    }
}

static void draw_tasks(void *arg, int thread) {
    job *g = arg;
    for (long t; (t = atomic_fetch_add(&g->next, 1)) < g->parts * g->batch;) {
        long x = t / g->parts, at = t % g->parts;
        pool_range m = pool_part(g->M, MR, PARTITION ? 1 : g->parts, PARTITION ? 0 : at);
        pool_range n = pool_part(g->N, COLS, PARTITION ? g->parts : 1, PARTITION ? at : 0);
        part(g, g->scratch + thread * (long)SLOT, g->A + x * g->stride_a, g->B + x * g->stride_b,
             g->C + x * g->stride_c, m, n);
    }
}

// `workspace` holds SLOT numbers for each thread.
void deepgen_gemm(const REAL *A, const REAL *B, const REAL *bias, REAL *C, REAL *workspace, int64_t M, int64_t N,
                  int64_t K, int64_t batch, int64_t lda, int64_t ldb, int64_t ldc, int64_t stride_a, int64_t stride_b,
                  int64_t stride_c, REAL alpha, REAL beta, int32_t threads) {
    job g = {.A = A, .B = B, .bias = bias, .C = C, .scratch = workspace, .M = M, .N = N, .K = K, .batch = batch,
             .lda = lda, .ldb = ldb, .ldc = ldc, .stride_a = stride_a, .stride_b = stride_b, .stride_c = stride_c,
             .alpha = alpha, .beta = beta, .parts = threads * TASKS};
    pool_run(threads, draw_tasks, &g);
}
