// Grouped GEMM in plain C: C = A op(B[e]) for the rows of each expert e, which end before row offsets[e]; or, where
// GRADIENT is 1, C[e] = A^T B over those rows. Tiles and packing are those of gemm.c, and so are the knobs.
//
// Threads draw tasks, each a part of an expert's result: some of its rows or of its columns.
#include "gemm.c"

typedef struct {
    job whole;
    const int32_t *offsets;
    long experts, rows;  // of all experts together
} grouped_job;

static inline long grouped_within(const grouped_job *g, long row) { return row < 0 ? 0 : least(row, g->rows); }

static void grouped_tasks(void *arg, int thread) {
    grouped_job *all = arg;
    job *g = &all->whole;
    for (long t; (t = atomic_fetch_add(&g->next, 1)) < g->parts * all->experts;) {
        long e = t / g->parts, at = t % g->parts;
        long begin = e ? grouped_within(all, all->offsets[e - 1]) : 0, end = grouped_within(all, all->offsets[e]);
        long rows = end > begin ? end - begin : 0;
        REAL *scratch = g->scratch + thread * (long)SLOT;
        job own = {.M = GRADIENT ? g->M : rows, .N = g->N, .K = GRADIENT ? rows : g->K, .lda = g->lda, .ldb = g->ldb,
                   .ldc = g->ldc, .alpha = 1, .beta = 0};
        const REAL *A = g->A + begin * g->lda, *B = g->B + (GRADIENT ? begin * g->ldb : e * g->stride_b);
        REAL *C = g->C + (GRADIENT ? e * g->stride_c : begin * g->ldc);
        pool_range m = pool_part(own.M, MR, PARTITION ? 1 : g->parts, PARTITION ? 0 : at);
        pool_range n = pool_part(own.N, COLS, PARTITION ? g->parts : 1, PARTITION ? at : 0);
        if (own.K > 0)
            part(&own, scratch, A, B, C, m, n);
        else
            for (long i = m.from; i < m.from + m.size; i++)
                memset(C + i * g->ldc + n.from, 0, (size_t)n.size * sizeof(REAL));
    }
}

// `workspace` holds SLOT numbers for each thread.
void deepgen_grouped(const REAL *A, const REAL *B, REAL *C, const int32_t *offsets, REAL *workspace, int64_t E,
                     int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, int64_t stride_b,
                     int64_t stride_c, int32_t threads) {
    grouped_job g = {.whole = {.A = A, .B = B, .C = C, .scratch = workspace, .M = M, .N = N, .K = K, .lda = lda,
                               .ldb = ldb, .ldc = ldc, .stride_b = stride_b, .stride_c = stride_c,
                               .parts = threads * TASKS},
                     .offsets = offsets, .experts = E, .rows = GRADIENT ? K : M};
    pool_run(threads, grouped_tasks, &g);
}
