// Grouped GEMM for AVX2 and AVX-512: C = A op(B[e]) for the rows of each expert e, which end before row offsets[e]; or,
// where GRADIENT is 1, C[e] = A^T B over those rows. Blocks, packing and tiles are those of gemm_fma.c, and so are knobs.
//
// Threads draw tasks, each a part of an expert's result. Operands of fewer bits are widened to f32: A once, B in blocks
// of columns by the task that needs them, so that B crosses memory as it is stored. Sums are narrowed a few rows at a time.
#include "gemm_fma.c"

#ifndef FORMAT  // of A and B: 0 f32, 1 bf16, 2 f16, 3 f8e4m3, 4 f8e5m2
#define FORMAT 0
#endif
#ifndef RESULT  // of C: 0 f32, 1 bf16, 2 f16
#define RESULT 0
#endif
#ifndef FACTORS  // of results: 0 none, 1 for each expert, 2 for each row, 3 for each column of an expert
#define FACTORS 0
#endif

#if FORMAT == 0
typedef float stored;
#elif FORMAT < 3
typedef uint16_t stored;
#else
typedef uint8_t stored;
#endif
#if RESULT == 0
typedef float number;
#else
typedef uint16_t number;
#endif

enum {
    STAGED = RESULT != 0 || FACTORS,      // sums wait until they are narrowed
    WIDE = FORMAT != 0,                   // operands are widened
    UNIT = SWAP ? MR : DOT ? NR : NR * VL,  // columns of the caller's C
    WIDENED = WIDE ? 1 << 17 : 0,         // numbers of B, if so few are at least UNIT columns
    SUMS = STAGED ? 1 << 16 : 0,
    WIDEST = 512 / UNIT * UNIT,           // columns of staged sums
};

typedef struct {
    const stored *A, *B;
    number *C;
    const int32_t *offsets;
    const float *factors;
    float *scratch, *wide_a;
    float meaning[256];  // of 8-bit floats
    long E, M, N, K, lda, ldb, ldc, stride_b, stride_c, slot, parts;
    _Atomic long next;
} grouped_job;

// --- widening and narrowing ------------------------------------------------------------------------------------------

static inline void widen(const grouped_job *g, float *to, const stored *from, long count) {
    (void)g;
#if FORMAT == 0
    memcpy(to, from, count * sizeof *to);
#elif FORMAT == 1
    uint32_t *bits = (uint32_t *)(void *)to;
    for (long i = 0; i < count; i++) bits[i] = (uint32_t)from[i] << 16;
#elif FORMAT == 2
    for (long i = 0; i < count; i++) to[i] = _cvtsh_ss(from[i]);
#else
    for (long i = 0; i < count; i++) to[i] = g->meaning[from[i]];
#endif
}

#if FORMAT > 2
// What the bits of an 8-bit float mean: of f8e4m3 the highest exponent has numbers, too, but for one NaN.
static void meanings(float *to) {
    const int fractions = FORMAT == 3 ? 3 : 2, top = (1 << (7 - fractions)) - 1, last = (1 << fractions) - 1;
    for (int bits = 0; bits < 256; bits++) {
        int exponent = bits >> fractions & top, fraction = bits & last;
        float x = (float)(exponent ? fraction + last + 1 : fraction);
        for (int e = (exponent ? exponent : 1) - (top >> 1) - fractions; e; e += e < 0 ? 1 : -1) x *= e < 0 ? 0.5f : 2;
        if (exponent == top && (FORMAT == 4 || fraction == last))
            x = FORMAT == 4 && !fraction ? __builtin_inff() : __builtin_nanf("");
        to[bits] = bits & 128 ? -x : x;
    }
}
#endif

static inline number narrow(float x) {
#if RESULT == 0
    return x;
#elif RESULT == 1
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return x != x ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#else
    return _cvtss_sh(x, 0);
#endif
}

// Sums of rows and columns from `row` and `column` of expert e on.
static void put_sums(const grouped_job *g, const float *sums, long e, long row, long column, long rows, long columns) {
    number *c = g->C + (GRADIENT ? e * g->stride_c : 0) + row * g->ldc + column;
    const float *own = FACTORS == 3 ? g->factors + e * g->N + column : 0;
    for (long i = 0; i < rows; i++, sums += columns, c += g->ldc) {
        float factor = FACTORS == 1 ? g->factors[e] : FACTORS == 2 ? g->factors[row + i] : 1;
        for (long j = 0; j < columns; j++) c[j] = narrow(sums[j] * (FACTORS == 3 ? own[j] : factor));
    }
}

// --- products --------------------------------------------------------------------------------------------------------

static void product(work *w, float *scratch, const float *A, long lda, const float *B, long ldb, float *C, long ldc,
                    long rows, long columns, long steps) {
    result r = {.c = C, .ldc = ldc, .alpha = 1, .beta = 0, .last = 1};
    const float *a = SWAP ? B : A, *b = SWAP ? A : B;
    long a_row = SWAP ? ldb : lda, b_row = SWAP ? lda : ldb, m = SWAP ? columns : rows, n = SWAP ? rows : columns;
#if DOT || THIN
    (void)w;
    few_rows(scratch, a, a_row, b, b_row, m, n, steps, r);
#else
    coming next = {0};
    serial_gemm(w, scratch, a, a_row, b, b_row, m, n, steps, r, &next);
#endif
}

// A part of an expert's result. Its rows begin at `begin`, of A (and, in a gradient, of B).
static void expert_part(const grouped_job *g, work *w, float *scratch, long e, long begin, long count, pool_range m,
                        pool_range n) {
    float *wide_b = scratch + SLOT_FLOATS, *sums = wide_b + g->slot - SLOT_FLOATS - SUMS;
    long steps = GRADIENT ? count : g->K, lda = WIDE ? (GRADIENT ? g->M : g->K) : g->lda;
    const float *A = WIDE ? g->wide_a : (const float *)(const void *)g->A;
    A += GRADIENT ? begin * lda + m.from : (begin + m.from) * lda;
    const stored *B = g->B + (GRADIENT ? begin * g->ldb : e * g->stride_b);
    long row = GRADIENT ? m.from : begin + m.from, most = n.size;
    if (WIDE || STAGED) most = WIDE ? least(WIDEST, WIDENED / steps / UNIT * UNIT) : WIDEST;
    if (most < UNIT) most = UNIT;
    for (long j = n.from, columns; j < n.from + n.size; j += columns) {
        columns = least(most, n.from + n.size - j);
        const stored *own = B + (TURNED ? j * g->ldb : j);
        const float *b = (const float *)(const void *)own;
        long ldb = g->ldb;
        if (WIDE) {
            b = wide_b, ldb = TURNED ? steps : columns;
            for (long line = 0; line < (TURNED ? columns : steps); line++)
                widen(g, wide_b + line * ldb, own + line * g->ldb, ldb);
        }
        long at_once = STAGED ? SUMS / columns : m.size;
        for (long i = 0; i < m.size; i += at_once) {
            long rows = least(at_once, m.size - i);
            const float *a = A + (GRADIENT ? i : i * lda);
            number *to = g->C + (GRADIENT ? e * g->stride_c : 0) + (row + i) * g->ldc + j;
            float *c = STAGED ? sums : (float *)(void *)to;
            product(w, scratch, a, lda, b, ldb, c, STAGED ? columns : g->ldc, rows, columns, steps);
            if (STAGED) put_sums(g, sums, e, row + i, j, rows, columns);
        }
    }
}

static inline long grouped_within(const grouped_job *g, long row) {
    return row < 0 ? 0 : least(row, GRADIENT ? g->K : g->M);
}

static void grouped_tasks(void *arg, int thread) {
    grouped_job *g = arg;
    work w;
    memset(&w, 0, sizeof w);
    // PARTITION 0 divides what tiles have as rows, 1 what they have as columns.
    const int by_columns = PARTITION != (SWAP ? 1 : 0);
    for (long t; (t = atomic_fetch_add(&g->next, 1)) < g->parts * g->E;) {
        long e = t / g->parts, at = t % g->parts;
        long begin = e ? grouped_within(g, g->offsets[e - 1]) : 0, end = grouped_within(g, g->offsets[e]);
        long count = end > begin ? end - begin : 0;
        long high = GRADIENT ? g->M : count, of_m = by_columns ? 1 : g->parts, of_n = by_columns ? g->parts : 1;
        pool_range m = pool_part(high, SWAP ? NR * VL : MR, of_m, by_columns ? 0 : at);
        pool_range n = pool_part(g->N, UNIT, of_n, by_columns ? at : 0);
        if (!m.size || !n.size) continue;
        if (!GRADIENT || count) {
            expert_part(g, &w, g->scratch + thread * g->slot, e, begin, count, m, n);
        } else {
            number *c = g->C + e * g->stride_c + m.from * g->ldc + n.from;
            for (long i = 0; i < m.size; i++) memset(c + i * g->ldc, 0, n.size * sizeof *c);
        }
    }
}

#if FORMAT
static void widen_lines(void *arg, int thread) {
    grouped_job *g = arg;
    (void)thread;
    long lines = GRADIENT ? g->K : g->M, width = GRADIENT ? g->M : g->K, at_once = 16;
    for (long i; (i = atomic_fetch_add(&g->next, at_once)) < lines;)
        for (long line = i; line < least(lines, i + at_once); line++)
            widen(g, g->wide_a + line * width, g->A + line * g->lda, width);
}
#endif

// `workspace` holds for each thread SLOT_FLOATS, WIDENED, SUMS and, where operands are widened, UNIT * K numbers; then A.
void deepgen_grouped(const stored *A, const stored *B, number *C, const int32_t *offsets, const float *factors,
                     float *workspace, int64_t E, int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb,
                     int64_t ldc, int64_t stride_b, int64_t stride_c, int32_t threads) {
    long slot = SLOT_FLOATS + WIDENED + SUMS + (WIDE ? UNIT * K : 0);
    grouped_job g = {.A = A, .B = B, .C = C, .offsets = offsets, .factors = factors, .scratch = workspace,
                     .wide_a = workspace + threads * slot, .E = E, .M = M, .N = N, .K = K, .lda = lda, .ldb = ldb,
                     .ldc = ldc, .stride_b = stride_b, .stride_c = stride_c, .slot = slot, .parts = threads * TASKS};
#if FORMAT > 2
    meanings(g.meaning);
#endif
#if FORMAT
    pool_run(M * K < WORTH_A_THREAD ? 1 : threads, widen_lines, &g);
    g.next = 0;
#endif
    pool_run(threads, grouped_tasks, &g);
}
