// f32 GEMM for AVX2 and AVX-512: C = alpha * op(A) op(B) + beta * C, row-major, any M, N, K, all four layouts.
//
// The knobs are macros; every one has a default, so this file compiles alone:
//     cc -O3 -std=gnu11 -mavx512f -mfma -shared -fPIC -pthread x86_gemm.c -o gemm.so
//
// Levels, from the inside out:
//   tile    MR rows x NR vectors of C in registers; one K step loads NR vectors of B and broadcasts MR numbers of A
//   block   MC x NC of C over KC of K: the operands of many tiles, packed or as they lie, held in L1 and L2
//   task    a part of C (or of K) with all of its blocks: what one thread draws at a time
#include <stdint.h>
#include <string.h>

#include "x86_pool.h"
#include "x86_vector.h"

// --- knobs -------------------------------------------------------------------------------------------------------

#ifndef A_T  // layouts: 1 when A is stored K x M
#define A_T 0
#endif
#ifndef B_T  // 1 when B is stored N x K
#define B_T 0
#endif
#ifndef MR  // register tile: rows
#define MR 12
#endif
#ifndef NR  // register tile: vectors in a row
#define NR 2
#endif
#ifndef MC  // cache block: rows of C (at least MR)
#define MC 240
#endif
#ifndef NC  // cache block: columns of C (at least one tile)
#define NC 512
#endif
#ifndef KC  // cache block: steps of K
#define KC 384
#endif
#ifndef PACK_A  // 0: read in place; 1: copied row by row; 2: transposed to K x MR panels
#define PACK_A 1
#endif
#ifndef PACK_B  // 0: read in place (B must be stored K x N); 1: copied to K x NR-vector panels
#define PACK_B 1
#endif
#ifndef OUTER_A  // 0: a block of B stays while blocks of A pass; 1: a block of A stays while blocks of B pass
#define OUTER_A 0
#endif
#ifndef INNER_A  // in a block, 1: a panel of B stays in L1 while A passes; 0: a strip of A stays while B passes
#define INNER_A 1
#endif
#ifndef UNROLL  // K steps in one turn of the innermost loop
#define UNROLL 4
#endif
#ifndef PREFETCH  // how many vectors of B ahead to prefetch; 0: leave it to the hardware
#define PREFETCH 0
#endif
#ifndef AHEAD  // 1: ask for all of A and B before the work begins, where they are small
#define AHEAD 0
#endif
#ifndef PARTITION  // what tasks divide: 0 M, 1 N, 2 both, 3 K, 4 the batch
#define PARTITION 0
#endif
#ifndef TASKS  // tasks for each thread: more balance better, fewer repeat less packing
#define TASKS 1
#endif
#ifndef STREAM_C  // 1: write C past the caches where one K block gives the whole result
#define STREAM_C 0
#endif

#if B_T && !PACK_B
#error "B stored N x K has no vectors along N to read in place"
#endif
#if A_T && PACK_A == 1
#error "rows of A do not lie in one piece when A is stored K x M"
#endif

// --- sizes -------------------------------------------------------------------------------------------------------

enum {
    COLS = NR * VL,                    // of a tile
    MC_WHOLE = MC / MR * MR,           // blocks are whole tiles
    NC_WHOLE = NC / COLS * COLS,
    A_ROW = KC + 16,                   // of a packed row; the odd cache line keeps rows out of each other's sets
    A_STRIP = MR * A_ROW,              // MR rows of A, packed
    B_PANEL = KC * COLS,               // one panel of B, packed
    A_FLOATS = (PACK_A ? MC_WHOLE / MR : 1) * A_STRIP + VL,  // in place, the last rows still need one strip
    B_FLOATS = PACK_B ? NC_WHOLE / COLS * B_PANEL : 0,
    SLOT_FLOATS = (A_FLOATS + B_FLOATS + 15) / 16 * 16,      // scratch of one thread
};

#define AHEAD_BYTES (256 << 10)  // operands up to this size are asked for at once

// Where number (i, k) of a strip of A lies.
#if PACK_A == 2
#define A_AT(a, lda, i, k) a[(k) * MR + (i)]
#elif PACK_A == 1
#define A_AT(a, lda, i, k) a[(i) * A_ROW + (k)]
#elif A_T
#define A_AT(a, lda, i, k) a[(k) * (lda) + (i)]
#else
#define A_AT(a, lda, i, k) a[(i) * (lda) + (k)]
#endif

// --- tile --------------------------------------------------------------------------------------------------------

typedef struct {
    float *c;
    long ldc;
    float alpha, beta;
    int stream;
} result;

ALWAYS_INLINE void step(vec acc[MR][NR], int nv, int part, mask last, const float *a, long lda, const float *b) {
    (void)lda;  // of no use when A is packed
    vec row[NR];
    UNROLLED for (int j = 0; j < nv; j++) {
        row[j] = !PACK_B && part && j == nv - 1 ? load_part(b + j * VL, last) : load(b + j * VL);
        if (PREFETCH) __builtin_prefetch(b + (j + PREFETCH) * VL);
    }
    UNROLLED for (int i = 0; i < MR; i++) {
        vec x = all(A_AT(a, lda, i, 0));
        UNROLLED for (int j = 0; j < nv; j++) acc[i][j] = madd(x, row[j], acc[i][j]);
    }
}

// nv vectors wide; `part` when the last one is not whole. Both are constants where this is inlined.
ALWAYS_INLINE void tile(int nv, int part, mask last, long rows, long kc, const float *a, long lda, const float *b,
                        long ldb, const result *r) {
    vec acc[MR][NR];
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int j = 0; j < nv; j++) acc[i][j] = all(0);
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int j = 0; j < nv; j++)
        if (i < rows) __builtin_prefetch(r->c + i * r->ldc + j * VL, 1);
    long k = 0;
    for (; !part && k + UNROLL <= kc; k += UNROLL)  // parts are few: not worth the compiler's time
        UNROLLED for (int u = 0; u < UNROLL; u++)
            step(acc, nv, part, last, &A_AT(a, lda, 0, k + u), lda, b + (k + u) * ldb);
    for (; k < kc; k++) step(acc, nv, part, last, &A_AT(a, lda, 0, k), lda, b + k * ldb);

    vec alpha = all(r->alpha), beta = all(r->beta);
    UNROLLED for (int i = 0; i < MR; i++) {
        if (i >= rows) break;
        float *c = r->c + i * r->ldc;
        UNROLLED for (int j = 0; j < nv; j++) {
            vec x = alpha * acc[i][j];
            int whole = !(part && j == nv - 1);
            if (r->beta != 0)  // a C that is not asked for may hold anything, NaN too
                x = madd(beta, whole ? load(c + j * VL) : load_part(c + j * VL, last), x);
            if (!whole)
                store_part(c + j * VL, last, x);
            else if (STREAM_C && r->stream)
                stream(c + j * VL, x);
            else
                store(c + j * VL, x);
        }
    }
}

#define TILE(name, nv, part)                                                                                        \
    __attribute__((noinline)) static void name(mask last, long rows, long kc, const float *a, long lda,            \
                                               const float *b, long ldb, const result *r) {                        \
        tile(nv, part, last, rows, kc, a, lda, b, ldb, r);                                                          \
    }
TILE(whole_tile, NR, 0)
TILE(part_tile_1, 1, 1)
#if NR > 1
TILE(part_tile_2, 2, 1)
#endif
#if NR > 2
TILE(part_tile_3, 3, 1)
#endif
#if NR > 3
TILE(part_tile_4, 4, 1)
#endif
#if NR > 4
TILE(part_tile_5, 5, 1)
#endif
#if NR > 5
TILE(part_tile_6, 6, 1)
#endif
#if NR > 6
TILE(part_tile_7, 7, 1)
#endif
#if NR > 7
TILE(part_tile_8, 8, 1)
#endif

typedef void (*tile_kernel)(mask, long, long, const float *, long, const float *, long, const result *);
static const tile_kernel part_tiles[] = {
    part_tile_1,
#if NR > 1
    part_tile_2,
#endif
#if NR > 2
    part_tile_3,
#endif
#if NR > 3
    part_tile_4,
#endif
#if NR > 4
    part_tile_5,
#endif
#if NR > 5
    part_tile_6,
#endif
#if NR > 6
    part_tile_7,
#endif
#if NR > 7
    part_tile_8,
#endif
};

// --- packing -----------------------------------------------------------------------------------------------------

static void pack_a_strip(float *to, const float *a, long lda, long rows, long kc) {
    if (A_T) {  // K x M: numbers of one k lie side by side
        for (long k = 0; k < kc; k++)
            for (long i = 0; i < MR; i += VL) store(to + k * MR + i, load_part(a + k * lda + i, first(rows - i)));
    } else if (PACK_A == 2) {
        pack_transposed(to, MR, a, lda, rows, kc);
    } else {
        for (long i = 0; i < rows; i++) memcpy(to + i * A_ROW, a + i * lda, kc * sizeof(float));
        for (long i = rows; i < MR; i++) memset(to + i * A_ROW, 0, kc * sizeof(float));
    }
}

static void pack_b(float *to, const float *b, long ldb, long nc, long kc) {
    if (B_T) {
        for (long j = 0; j < nc; j += VL)
            pack_transposed(to + j / COLS * B_PANEL + j % COLS, COLS, b + j * ldb, ldb, nc - j, kc);
        return;
    }
    // Whole rows: memory is read in order, and the panels are written a few lines at a time.
    for (long k = 0; k < kc; k++) {
        const float *row = b + k * ldb;
        float *panel = to + k * COLS;
        for (long j = 0; j < nc; j += COLS, panel += B_PANEL) {
            if (nc - j >= COLS) {
                UNROLLED for (int v = 0; v < NR; v++) store(panel + v * VL, load(row + j + v * VL));
            } else {
                for (long v = 0; v < nc - j; v += VL) store(panel + v, load_part(row + j + v, first(nc - j - v)));
            }
        }
    }
}

// --- block -------------------------------------------------------------------------------------------------------

// One operand of a block: where it is, the distance of its rows, and from which strip or panel to the next.
typedef struct {
    const float *at;
    long ld, next;
} operand;

static inline void one_tile(const float *strip, long lda, const float *panel, long ldb, float *edge, long rows,
                            long cols, long kc, result *r) {
    if (!PACK_A && rows < MR) {  // in place a tile would read rows that A does not have
        pack_a_strip(edge, strip, lda, rows, kc);
        strip = edge;
        lda = A_T ? MR : A_ROW;
    }
    if (cols >= COLS)
        whole_tile(first(VL), rows, kc, strip, lda, panel, ldb, r);
    else
        part_tiles[(cols - 1) / VL](first((cols - 1) % VL + 1), rows, kc, strip, lda, panel, ldb, r);
}

static void block(operand a, operand b, float *edge, long mc, long nc, long kc, result r) {
    float *c = r.c;
#if INNER_A
    for (long j = 0; j < nc; j += COLS, b.at += b.next) {
        const float *strip = a.at;
        for (long i = 0; i < mc; i += MR, strip += a.next) {
            r.c = c + i * r.ldc + j;
            one_tile(strip, a.ld, b.at, b.ld, edge, least(MR, mc - i), nc - j, kc, &r);
        }
    }
#else
    for (long i = 0; i < mc; i += MR, a.at += a.next) {
        const float *panel = b.at;
        for (long j = 0; j < nc; j += COLS, panel += b.next) {
            r.c = c + i * r.ldc + j;
            one_tile(a.at, a.ld, panel, b.ld, edge, least(MR, mc - i), nc - j, kc, &r);
        }
    }
#endif
}

static operand operand_a(float *scratch, const float *a, long lda, long mc, long kc) {
    if (!PACK_A) return (operand){a, lda, A_T ? MR : MR * lda};
    for (long i = 0; i < mc; i += MR)
        pack_a_strip(scratch + i / MR * A_STRIP, A_T ? a + i : a + i * lda, lda, least(MR, mc - i), kc);
    return (operand){scratch, 0, A_STRIP};
}

static operand operand_b(float *scratch, const float *b, long ldb, long nc, long kc) {
    if (!PACK_B) return (operand){b, ldb, COLS};
    pack_b(scratch, b, ldb, nc, kc);
    return (operand){scratch, COLS, B_PANEL};
}

// --- task --------------------------------------------------------------------------------------------------------

// Asks memory for a matrix, all lines at once: what the hardware would fetch ahead by itself comes a few at a time.
static void ask_for(const float *at, long ld, long rows, long cols) {
    for (; rows > 0; rows--, at += ld)
        for (long j = 0; j < cols; j += 16) __builtin_prefetch(at + j);
}

// A whole GEMM on one thread. Blocks of a dimension are of nearly equal size, none above the knob.
static void serial_gemm(float *scratch, const float *A, long lda, const float *B, long ldb, long m, long n, long k,
                        result r) {
    long mc = ceil_div(ceil_div(m, ceil_div(m, MC_WHOLE)), MR) * MR;
    long nc = ceil_div(ceil_div(n, ceil_div(n, NC_WHOLE)), COLS) * COLS;
    long kc = ceil_div(k, ceil_div(k, KC));
    float *scratch_a = scratch, *scratch_b = scratch + SLOT_FLOATS - B_FLOATS;
    if (STREAM_C)
        r.stream = kc == k && r.beta == 0 && ((uintptr_t)r.c | (uintptr_t)(r.ldc * 4)) % sizeof(vec) == 0;
    long outer = OUTER_A ? m : n, outer_step = OUTER_A ? mc : nc;
    long inner = OUTER_A ? n : m, inner_step = OUTER_A ? nc : mc;
    int inner_stays = inner <= inner_step && kc == k;  // packed once for all
    if (AHEAD && (m + n) * k * 4 <= AHEAD_BYTES) {
        ask_for(A, lda, A_T ? k : m, A_T ? m : k);
        ask_for(B, ldb, B_T ? n : k, B_T ? k : n);
    }
    operand a = {0}, b = {0};
    for (long o = 0; o < outer; o += outer_step) {
        for (long p = 0; p < k; p += kc) {
            long depth = least(kc, k - p);
            for (long q = 0; q < inner; q += inner_step) {
                long i = OUTER_A ? o : q, j = OUTER_A ? q : o;
                long rows = least(mc, m - i), cols = least(nc, n - j);
                int new_outer = q == 0, new_inner = o == 0 || !inner_stays;
                if (OUTER_A ? new_outer : new_inner)
                    a = operand_a(scratch_a, A_T ? A + p * lda + i : A + i * lda + p, lda, rows, depth);
                if (OUTER_A ? new_inner : new_outer)
                    b = operand_b(scratch_b, B_T ? B + j * ldb + p : B + p * ldb + j, ldb, cols, depth);
                result part = r;
                part.c += i * r.ldc + j;
                if (p) part.beta = 1;
                block(a, b, scratch_a, rows, cols, depth, part);
            }
        }
    }
    if (STREAM_C) _mm_sfence();
}

typedef struct {
    const float *A, *B;
    float *C, *scratch, *partial;
    long M, N, K, batch, lda, ldb, ldc, stride_a, stride_b, stride_c;
    float alpha, beta;
    long parts_m, parts_n, parts_k, parts_batch;
    _Atomic long next;  // the task to draw
} job;

typedef struct {
    long from, size;
} range;

// Part t of `parts` equal ones, cut at multiples of `unit`.
static range part_of(long size, long unit, long parts, long t) {
    long units = ceil_div(size, unit);
    long from = units * t / parts * unit, to = least(size, units * (t + 1) / parts * unit);
    return (range){from, to > from ? to - from : 0};
}

static void one_task(const job *g, float *scratch, long t) {
    range k = part_of(g->K, 1, g->parts_k, t % g->parts_k);
    long slice = t % g->parts_k;
    t /= g->parts_k;
    range n = part_of(g->N, COLS, g->parts_n, t % g->parts_n);
    t /= g->parts_n;
    range m = part_of(g->M, MR, g->parts_m, t % g->parts_m);
    range e = part_of(g->batch, 1, g->parts_batch, t / g->parts_m);
    if (!m.size || !n.size) return;
    for (long x = e.from; x < e.from + e.size; x++) {
        const float *A = g->A + x * g->stride_a + (A_T ? k.from * g->lda + m.from : m.from * g->lda + k.from);
        const float *B = g->B + x * g->stride_b + (B_T ? n.from * g->ldb + k.from : k.from * g->ldb + n.from);
        result r = {g->C + x * g->stride_c + m.from * g->ldc + n.from, g->ldc, g->alpha, g->beta, 0};
        if (slice) {  // the first slice of K writes C, the others what is added to it afterwards
            r.c = g->partial + ((slice - 1) * g->batch + x) * g->M * g->N + m.from * g->N + n.from;
            r.ldc = g->N;
            r.beta = 0;
        }
        serial_gemm(scratch, A, g->lda, B, g->ldb, m.size, n.size, k.size, r);
    }
}

static void draw_tasks(void *arg, int thread) {
    job *g = arg;
    long tasks = g->parts_m * g->parts_n * g->parts_k * g->parts_batch;
    for (long t; (t = atomic_fetch_add(&g->next, 1)) < tasks;) one_task(g, g->scratch + thread * (long)SLOT_FLOATS, t);
}

// Adds the slices of K to C, a few rows of C at a time.
static void draw_rows(void *arg, int thread) {
    job *g = arg;
    (void)thread;
    long at_once = ceil_div(4096, g->N), rows = g->M * g->batch;
    for (long i; (i = atomic_fetch_add(&g->next, at_once)) < rows;) {
        for (long row = i; row < least(rows, i + at_once); row++) {
            float *c = g->C + row / g->M * g->stride_c + row % g->M * g->ldc;
            for (long slice = 0; slice < g->parts_k - 1; slice++) {
                const float *p = g->partial + (slice * rows + row) * g->N;
                for (long j = 0; j < g->N; j++) c[j] += p[j];
            }
        }
    }
}

static void cut(job *g, long tasks) {
    g->parts_m = g->parts_n = g->parts_k = g->parts_batch = 1;
    if (PARTITION == 0) g->parts_m = tasks;
    if (PARTITION == 1) g->parts_n = tasks;
    if (PARTITION == 3) g->parts_k = least(tasks, g->K);
    if (PARTITION == 4) g->parts_batch = least(tasks, g->batch);
    if (PARTITION != 2) return;
    long best = 0;
    for (long m = 1; m <= tasks; m++) {  // the cut that reads least: A once for each part of N, B for each part of M
        long reads = m * g->N + tasks / m * g->M;
        if (tasks % m || (best && reads >= best)) continue;
        best = reads;
        g->parts_m = m;
        g->parts_n = tasks / m;
    }
}

// `workspace` holds SLOT_FLOATS for each thread, then M * N * batch numbers for each slice of K but the first.
void deepgen_gemm(const float *A, const float *B, float *C, float *workspace, int64_t M, int64_t N, int64_t K,
                  int64_t batch, int64_t lda, int64_t ldb, int64_t ldc, int64_t stride_a, int64_t stride_b,
                  int64_t stride_c, float alpha, float beta, int32_t threads) {
    job g = {A, B, C, workspace, workspace + threads * (long)SLOT_FLOATS, M, N, K, batch, lda, ldb, ldc,
             stride_a, stride_b, stride_c, alpha, beta, 1, 1, 1, 1, 0};
    cut(&g, threads * TASKS);
    pool_run(threads, draw_tasks, &g);
    if (g.parts_k > 1) {
        g.next = 0;
        pool_run(threads, draw_rows, &g);
    }
}
