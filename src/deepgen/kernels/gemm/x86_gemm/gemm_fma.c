// f32 GEMM for AVX2 and AVX-512: C = activation(alpha * op(A) op(B) + beta * C + bias), row-major, any M, N, K, batch,
// all four layouts. The knobs are macros.
//
// Levels, from the inside out, a file each:
//   fma_region.h  where parts of A and B lie
//   fma_later.h   what later tiles will need
//   fma_tile.h    MR rows x NR vectors of C in registers; the loops: tile.py. Few rows of C: fma_thin.h instead
//   fma_result.h  what becomes of a finished tile
//   fma_pack.h    operands in the order in which tiles read them
//   fma_blocks.h  cache blocks
//   this file     tasks, a part of C (or of K) each, which threads draw; the entries
#include <stdint.h>
#include <string.h>

#include "x86_call.h"
#include "x86_vector.h"
#include "fma_knobs.h"
#include "fma_region.h"
#include "fma_result.h"
#if DOT || THIN
typedef int work;  // nothing that another thread could help with
#include "fma_thin.h"
#else
#include "fma_later.h"
#include "fma_tile.h"
#include "fma_pack.h"
#endif
#include "x86_seldom.h"
#include "x86_curve.h"
#include "x86_pages.h"
#include "x86_pool.h"
#include "x86_offer.h"
#if !DOT && !THIN
#include "fma_blocks.h"
#endif

typedef struct {
    const float *A, *B, *bias;
    float *C, *scratch, *partial;
    long M, N, K, batch, lda, ldb, ldc, stride_a, stride_b, stride_c;
    float alpha, beta;
    long parts_m, parts_n, parts_k, parts_batch;
    _Atomic long next;        // the task to draw
    _Atomic long unfinished;  // tasks
    long threads;
    work *at_work;  // what each thread is at
} job;

static void one_task(const job *g, work *w, float *scratch, long t) {
    long slice = t % g->parts_k;
    t /= g->parts_k;
    long at_n = t % g->parts_n, at_m = t / g->parts_n % g->parts_m;
    if (CURVE && g->parts_m == g->parts_n) on_curve(__builtin_ctzl((unsigned long)g->parts_m), t, &at_m, &at_n);
    pool_range k = pool_part(g->K, 1, g->parts_k, slice);
    pool_range n = pool_part(g->N, DOT ? NR : NR * VL, g->parts_n, at_n);
    pool_range m = pool_part(g->M, MR, g->parts_m, at_m);
    pool_range e = pool_part(g->batch, 1, g->parts_batch, t / g->parts_n / g->parts_m);
    if (!m.size || !n.size) return;
    for (long x = e.from; x < e.from + e.size; x++) {
        region a = region_of_a(g->A + x * g->stride_a, g->lda, m.from, k.from, m.size, k.size);
        region b = region_of_b(g->B + x * g->stride_b, g->ldb, k.from, n.from, k.size, n.size);
        long row = SWAP ? n.from : m.from, column = SWAP ? m.from : n.from;
        result r = {.c = g->C + x * g->stride_c + row * g->ldc + column,
                    .ldc = g->ldc,
                    .bias = BIAS ? g->bias + column : 0,
                    .alpha = g->alpha,
                    .beta = g->beta,
                    .last = g->parts_k == 1};
        if (slice) {  // the first slice of K writes C, the others what is added to it afterwards
            long columns = SWAP ? g->M : g->N;
            r.c = g->partial + ((slice - 1) * g->batch + x) * g->M * g->N + row * columns + column;
            r.ldc = columns;
            r.beta = 0;
        }
#if DOT || THIN
        (void)w;
        few_rows(scratch, a.at, a.ld, b.at, b.ld, m.size, n.size, k.size, r);
#else
        coming next = {0};
        if (NEXT && x + 1 < e.from + e.size) {
            region c = {r.c + g->stride_c, g->ldc, SWAP ? n.size : m.size, SWAP ? m.size : n.size};
            expect(&next, 0, (region){a.at + g->stride_a, a.ld, a.rows, a.width});
            expect(&next, 1, (region){b.at + g->stride_b, b.ld, b.rows, b.width});
            expect(&next, 2, c);
        }
        serial_gemm(w, scratch, a.at, a.ld, b.at, b.ld, m.size, n.size, k.size, r, &next);
#endif
    }
}

static void draw_tasks(void *arg, int thread) {
    job *g = arg;
    long tasks = g->parts_m * g->parts_n * g->parts_k * g->parts_batch;
    for (long t; (t = atomic_fetch_add(&g->next, 1)) < tasks;) {
        one_task(g, g->at_work + thread, g->scratch + thread * (long)SLOT_FLOATS, t);
        if (HELP) atomic_fetch_sub(&g->unfinished, 1);
    }
#if HELP
    for (int spins = 0; atomic_load(&g->unfinished); spins++) {
        for (long other = 0; other < g->threads; other++)
            if (help(g->at_work + other)) spins = 0;
        pool_wait(spins);
    }
#endif
}

#if PARTITION == 3
// Adds the slices of K to C and finishes it, a few rows of C at a time.
static void draw_rows(void *arg, int thread) {
    job *g = arg;
    (void)thread;
    long height = SWAP ? g->N : g->M, width = SWAP ? g->M : g->N;
    long at_once = ceil_div(4096, width), rows = height * g->batch;
    for (long i; (i = atomic_fetch_add(&g->next, at_once)) < rows;) {
        for (long row = i; row < least(rows, i + at_once); row++) {
            float *c = g->C + row / height * g->stride_c + row % height * g->ldc;
            const float *p = g->partial + row * width;
            result r = {.c = c, .bias = g->bias, .alpha = 1, .last = 1};
            for (long j = 0; j < width; j += VL) {
                mask m = first(width - j);
                vec x = load_part(c + j, m);
                for (long slice = 0; slice < g->parts_k - 1; slice++)
                    x += load_part(p + slice * rows * width + j, m);
                finish(x, c, j, m, &r);
            }
        }
    }
}
#endif

static void cut(job *g, long tasks) {
    g->parts_m = g->parts_n = g->parts_k = g->parts_batch = 1;
    if (PARTITION == 0) g->parts_m = tasks;
    if (PARTITION == 1) g->parts_n = tasks;
    if (PARTITION == 3) g->parts_k = least(tasks, g->K);
    if (PARTITION == 4) g->parts_batch = least(tasks, g->batch);
    if (PARTITION != 2) return;
    if (CURVE) {  // a square of parts, at least as many as tasks were asked for
        for (long side = 1; side * side < 2 * tasks; side *= 2) g->parts_m = g->parts_n = side;
        return;
    }
    long best = 0;
    for (long m = 1; m <= tasks; m++) {  // the cut that reads least: A once for each part of N, B for each part of M
        long reads = m * g->N + tasks / m * g->M;
        if (tasks % m || (best && reads >= best)) continue;
        best = reads;
        g->parts_m = m;
        g->parts_n = tasks / m;
    }
}

// `workspace` holds SLOT_FLOATS for each thread (and with HUGE_PAGES up to two such pages more), then M * N * batch
// numbers for each slice of K but the first. Where B was packed ahead of time, ldb is the distance of its panels.
void deepgen_gemm(const float *A, const float *B, const float *bias, float *C, float *workspace, int64_t M, int64_t N,
                  int64_t K, int64_t batch, int64_t lda, int64_t ldb, int64_t ldc, int64_t stride_a, int64_t stride_b,
                  int64_t stride_c, float alpha, float beta, int32_t threads) {
    long slots = threads * (long)SLOT_FLOATS * 4;
    float *scratch = HUGE_PAGES ? in_huge_pages(workspace, slots) : workspace;
    long taken = HUGE_PAGES ? whole_pages(slots) + HUGE_PAGE : slots;
    job g = {.A = A, .B = B, .bias = bias, .C = C, .M = M, .N = N, .K = K, .batch = batch, .lda = lda, .ldb = ldb,
             .ldc = ldc, .stride_a = stride_a, .stride_b = stride_b, .stride_c = stride_c, .alpha = alpha,
             .beta = beta, .scratch = scratch, .partial = workspace + taken / 4};
    if (SWAP) {
        g.A = B, g.B = A, g.M = N, g.N = M, g.lda = ldb, g.ldb = lda, g.stride_a = stride_b, g.stride_b = stride_a;
    }
    cut(&g, threads * TASKS);
    work at_work[threads];
    for (int i = 0; HELP && i < threads; i++) at_work[i] = (work){0};
    g.at_work = at_work, g.threads = threads, g.unfinished = g.parts_m * g.parts_n * g.parts_k * g.parts_batch;
    pool_run(threads, draw_tasks, &g);
#if PARTITION == 3
    if (g.parts_k > 1) {
        g.next = 0;
        pool_run(M * N * batch * g.parts_k < WORTH_A_THREAD ? 1 : threads, draw_rows, &g);
    }
#endif
}

// The same with all arguments in one block.
void deepgen_gemm_block(const slot *a) {
    deepgen_gemm(a[0].p, a[1].p, a[2].p, a[3].p, a[4].p, a[5].i64, a[6].i64, a[7].i64, a[8].i64, a[9].i64, a[10].i64,
                 a[11].i64, a[12].i64, a[13].i64, a[14].i64, a[15].f32, a[16].f32, a[17].i32);
}

#if PACK_B == 3
// All of a constant B, ahead of time: panels over the whole of K, one after the other.
void deepgen_gemm_pack(const float *B, float *packed, int64_t N, int64_t K, int64_t batch, int64_t ldb,
                       int64_t stride_b) {
    long panel = K * COLS, matrix = ceil_div(N, COLS) * panel;
    for (long x = 0; x < batch; x++) pack_b(packed + x * matrix, panel, B + x * stride_b, ldb, N, K);
}
#endif
