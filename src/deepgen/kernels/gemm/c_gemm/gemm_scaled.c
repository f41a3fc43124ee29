// GEMM of 8-bit floats with factors of blocks, in plain C with the compiler's own vectors, for any processor:
// C = activation(alpha * (A * factors) (B * factors) + beta * C + bias), any M, N, K, batch, all four layouts.
//
// Threads draw tiles of C, HIGH x WIDE. For each block of K they widen a part of A and one of B to f32, times its factors,
// and multiply these: strips of MR rows of A pass over panels of NR vectors of B. Sums stay in f32 until K ends.
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cpu_pool.h"

#define TEXT(words) #words
#define UNROLL_BY(times) _Pragma(TEXT(GCC unroll times))
#define ALL UNROLL_BY(32)
#define ALWAYS_INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
#if C_TYPE == 0
typedef float number;
static inline float wide(number x) { return x; }
static inline number narrow(float x) { return x; }
#elif C_TYPE == 1  // bf16
typedef uint16_t number;
static inline float wide(number x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}
static inline number narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
#else  // f16
typedef _Float16 number;
static inline float wide(number x) { return (float)x; }
static inline number narrow(float x) { return (number)x; }
#endif

enum {
    VL = VECTOR_BYTES / 4,
    COLS = NR * VL,  // of a panel
    HIGH = STRIPS * MR,
    WIDE = PANELS * COLS,
    BLOCK = 128,  // steps of K that share a factor
    SLOT = (HIGH + WIDE) * BLOCK + HIGH * WIDE,  // numbers of scratch for a thread
};

// A, or B with its columns as lines: how far lines and steps of K are apart, and the same of factors.
typedef struct {
    const uint8_t *at;
    const float *factors;
    long line, step, matrix, factor_line, factor_step, factor_matrix, each;
    float meaning[256];
} operand;

typedef struct {
    operand a, b;
    const number *bias;
    number *C;
    float *scratch;
    long M, N, K, batch, ldc, stride_c;
    float alpha, beta;
    _Atomic long next;  // the tile to draw
} job;

static inline long least(long a, long b) { return a < b ? a : b; }

// What the bits of an 8-bit float mean; `whole`: the highest exponent has numbers, too, but for one NaN.
static void meanings(float *to, int fractions, int whole) {
    int top = (1 << (7 - fractions)) - 1, last = (1 << fractions) - 1, bias = top >> 1;
    for (int bits = 0; bits < 256; bits++) {
        int exponent = bits >> fractions & top, fraction = bits & last;
        float x = ldexpf((float)(exponent ? fraction + last + 1 : fraction), (exponent ? exponent : 1) - bias - fractions);
        if (exponent == top && (!whole || fraction == last)) x = !whole && !fraction ? INFINITY : NAN;
        to[bits] = bits & 128 ? -x : x;
    }
}

// `count` lines from `first` on, `steps` of K from `k` on, to strips of `each` lines; zeros behind the last line.
ALWAYS_INLINE void widen(const operand *o, long x, long first, long count, long k, long steps, float *to, int each) {
    const uint8_t *from = o->at + x * o->matrix + k * o->step;
    const float *factors = o->factors + x * o->factor_matrix + k / BLOCK * o->factor_step;
    for (long strip = 0; strip < count; strip += each, to += each * BLOCK)
        for (int i = 0; i < each; i++) {
            long line = first + strip + i;
            if (strip + i >= count) {
                for (long j = 0; j < steps; j++) to[j * each + i] = 0;
                continue;
            }
            float factor = factors[line / o->each * o->factor_line];
            const uint8_t *row = from + line * o->line;
            for (long j = 0; j < steps; j++) to[j * each + i] = o->meaning[row[j * o->step]] * factor;
        }
}

ALWAYS_INLINE void multiply(const float *a, const float *b, float *sums, long steps) {
    vec s[MR][NR];
    ALL for (int i = 0; i < MR; i++)
        ALL for (int j = 0; j < NR; j++) s[i][j] = *(const vec *)(sums + i * WIDE + j * VL);
    for (long k = 0; k < steps; k++, a += MR, b += COLS) {
        vec y[NR];
        ALL for (int j = 0; j < NR; j++) y[j] = *(const vec *)(b + j * VL);
        ALL for (int i = 0; i < MR; i++)
            ALL for (int j = 0; j < NR; j++) s[i][j] += a[i] * y[j];
    }
    ALL for (int i = 0; i < MR; i++)
        ALL for (int j = 0; j < NR; j++) *(vec *)(sums + i * WIDE + j * VL) = s[i][j];
}

static inline float activated(float x) {
    if (ACTIVATION == 1) return x < 0 ? 0 : x;  // NaN stays NaN
    if (ACTIVATION == 2)                        // x (1 + tanh u) / 2 is x / (1 + e^-2u)
        return x / (1 + expf(-2 * x * (0.79788456f + 0.035677408f * x * x)));
    if (ACTIVATION == 3) return x / (1 + expf(-x));
    return x;
}

static void tile(const job *g, float *scratch, long x, long row, long column) {
    float *a = scratch, *b = a + HIGH * BLOCK, *sums = b + WIDE * BLOCK;
    long rows = least(HIGH, g->M - row), columns = least(WIDE, g->N - column);
    memset(sums, 0, sizeof(float) * HIGH * WIDE);
    for (long k = 0; k < g->K; k += BLOCK) {
        long steps = least(BLOCK, g->K - k);
        widen(&g->a, x, row, rows, k, steps, a, MR);
        widen(&g->b, x, column, columns, k, steps, b, COLS);
        for (long j = 0; j < columns; j += COLS)
            for (long i = 0; i < rows; i += MR) multiply(a + i * BLOCK, b + j * BLOCK, sums + i * WIDE + j, steps);
    }
    for (long i = 0; i < rows; i++) {
        number *c = g->C + x * g->stride_c + (row + i) * g->ldc + column;
        for (long j = 0; j < columns; j++) {
            float y = g->alpha * sums[i * WIDE + j];
            if (g->beta != 0) y += g->beta * wide(c[j]);  // a C that is not asked for may hold anything, NaN too
            if (BIAS) y += wide(g->bias[column + j]);
            c[j] = narrow(activated(y));
        }
    }
}

static void draw_tiles(void *arg, int thread) {
    job *g = arg;
    long high = (g->M + HIGH - 1) / HIGH, wide = (g->N + WIDE - 1) / WIDE;
    for (long t; (t = atomic_fetch_add(&g->next, 1)) < high * wide * g->batch;)
        tile(g, g->scratch + thread * (long)SLOT, t / (high * wide), t % high * HIGH, t / high % wide * WIDE);
}

// `workspace` holds SLOT numbers for each thread.
void deepgen_gemm(const uint8_t *A, const uint8_t *B, const float *scale_a, const float *scale_b, const number *bias,
                  number *C, float *workspace, int64_t M, int64_t N, int64_t K, int64_t batch, int64_t lda, int64_t ldb,
                  int64_t ldc, int64_t stride_a, int64_t stride_b, int64_t stride_c, int64_t a_matrix, int64_t a_row,
                  int64_t a_step, int64_t b_matrix, int64_t b_row, int64_t b_step, float alpha, float beta,
                  int32_t threads) {
    job g = {.a = {A, scale_a, A_T ? 1 : lda, A_T ? lda : 1, stride_a, a_row, a_step, a_matrix, BLOCK_A, {0}},
             .b = {B, scale_b, B_T ? ldb : 1, B_T ? 1 : ldb, stride_b, b_row, b_step, b_matrix, BLOCK_B, {0}},
             .bias = bias, .C = C, .scratch = workspace, .M = M, .N = N, .K = K, .batch = batch, .ldc = ldc,
             .stride_c = stride_c, .alpha = alpha, .beta = beta};
    meanings(g.a.meaning, FRACTIONS_A, FRACTIONS_A == 3);
    meanings(g.b.meaning, FRACTIONS_B, FRACTIONS_B == 3);
    pool_run(threads, draw_tiles, &g);
}
