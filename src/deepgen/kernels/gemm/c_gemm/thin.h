// Products of a few rows: B is read once and where it lies, MR rows of A at a time pass over it.

// Row i of A, of those that there are: a row that is missing is another one again, and its sums are dropped.
#define ROW(i) least(i, rows - 1)

#if B_T
enum { CHAINS = MR * NR < 8 ? 8 / (MR * NR) : 1 };  // of sums, so that none waits for the one before

// Rows of B from end to end, NR at a time. Sums are vectors along K, whose lanes are added up at last.
static void thin(const job *g, REAL *sums, const REAL *A, const REAL *B, REAL *C, pool_range n) {
    for (long i0 = 0; i0 < g->M; i0 += MR) {
        long rows = least(MR, g->M - i0);
        for (long j0 = 0, columns; j0 < n.size; j0 += columns) {
            columns = least(NR, n.size - j0);
            const REAL *a[MR], *b[NR];
            ALL for (int i = 0; i < MR; i++) a[i] = A + (i0 + ROW(i)) * g->lda;
            ALL for (int j = 0; j < NR; j++) b[j] = B + (n.from + j0 + least(j, columns - 1)) * g->ldb;
            vec acc[CHAINS][MR][NR] = {0};
            long k = 0;
            UNROLL_BY(UNROLL)
            for (; k + CHAINS * VL <= g->K; k += CHAINS * VL)
                ALL for (int c = 0; c < CHAINS; c++) {
                    vec y[NR];
                    ALL for (int j = 0; j < NR; j++) {
                        if (PREFETCH) __builtin_prefetch(b[j] + k + c * VL + PREFETCH);
                        y[j] = *(const vec *)(b[j] + k + c * VL);
                    }
                    ALL for (int i = 0; i < MR; i++) {
                        vec x = *(const vec *)(a[i] + k + c * VL);
                        ALL for (int j = 0; j < NR; j++) acc[c][i][j] += x * y[j];
                        __asm__ volatile("" ::: "memory");  // rows of A, loaded ahead of their turn, would not fit
                    }
                }
            ALL for (int i = 0; i < MR; i++) ALL for (int j = 0; j < NR; j++) {
                REAL sum = 0;
                ALL for (int c = 1; c < CHAINS; c++) acc[0][i][j] += acc[c][i][j];
                ALL for (int lane = 0; lane < VL; lane++) sum += acc[0][i][j][lane];
                for (long rest = k; rest < g->K; rest++) sum += a[i][rest] * b[j][rest];
                sums[i * NR + j] = sum;
            }
            finish(sums, NR, C + i0 * g->ldc + n.from + j0, g->ldc, BIAS ? g->bias + n.from + j0 : 0, rows, columns,
                   g->alpha, g->beta, 1);
        }
    }
}
#else
enum { WIDTH = NC + VL };  // of a row of sums

// `steps` steps of K for `vectors` vectors of C, of which the sums are in memory.
ALWAYS_INLINE void add_steps(REAL *sums, REAL numbers[MR][UNROLL], const REAL *b, long ldb, int vectors, int steps,
                             int ahead) {
    vec acc[MR][NR];
    ALL for (int i = 0; i < MR; i++)
        ALL for (int j = 0; j < vectors; j++) acc[i][j] = *(vec *)(sums + i * WIDTH + j * VL);
#if BY_LANE
    vec x[MR][UNROLL / VL];
    ALL for (int i = 0; i < MR; i++)
        ALL for (int u = 0; u < (steps + VL - 1) / VL; u++) x[i][u] = *(const vec *)(numbers[i] + u * VL);
#endif
    ALL for (int u = 0; u < steps; u++) {
        vec y[NR];
        ALL for (int j = 0; j < vectors; j++) {
            if (ahead) __builtin_prefetch(b + u * ldb + j * VL + ahead);
            y[j] = *(const vec *)(b + u * ldb + j * VL);
        }
        ALL for (int i = 0; i < MR; i++) ALL for (int j = 0; j < vectors; j++)
#if BY_LANE
            madd(&acc[i][j], y[j], x[i][u / VL], u % VL);
#else
            acc[i][j] += numbers[i][u] * y[j];
#endif
    }
    ALL for (int i = 0; i < MR; i++)
        ALL for (int j = 0; j < vectors; j++) *(vec *)(sums + i * WIDTH + j * VL) = acc[i][j];
}

// `steps` steps of K over nc columns; of the last vector, which is not whole, there is a copy with zeros.
ALWAYS_INLINE void pass_over(REAL *sums, const REAL *a, long lda, long rows, const REAL *b, long ldb, long nc, int steps) {
    REAL numbers[MR][UNROLL];
    ALL for (int i = 0; i < MR; i++)
        ALL for (int u = 0; u < steps; u++) numbers[i][u] = A_T ? a[u * lda + ROW(i)] : a[ROW(i) * lda + u];
    long j = 0;
    for (; j + NR * VL <= nc; j += NR * VL) add_steps(sums + j, numbers, b + j, ldb, NR, steps, PREFETCH);
    for (; j + VL <= nc; j += VL) add_steps(sums + j, numbers, b + j, ldb, 1, steps, 0);
    if (j < nc) {
        REAL edge[UNROLL * VL] = {0};
        for (int u = 0; u < steps; u++)
            for (long i = j; i < nc; i++) edge[u * VL + i - j] = b[u * ldb + i];
        add_steps(sums + j, numbers, edge, VL, 1, steps, 0);
    }
}

// A few rows of B at a time, each from end to end, for two groups of rows of A: both find them in the cache.
static void thin(const job *g, REAL *sums, const REAL *A, const REAL *B, REAL *C, pool_range n) {
    for (long from = 0, to; from < g->M; from = to) {
        to = least(from + 2 * MR, g->M);
        for (long j0 = n.from, nc; j0 < n.from + n.size; j0 += nc) {
            nc = least(NC, n.from + n.size - j0);
            memset(sums, 0, sizeof(REAL) * 2 * MR * WIDTH);
            for (long k = 0, steps; k < g->K; k += steps) {
                steps = k + UNROLL <= g->K ? UNROLL : 1;
                for (long i = from; i < to; i += MR) {
                    const REAL *a = A_T ? A + k * g->lda + i : A + i * g->lda + k, *b = B + k * g->ldb + j0;
                    REAL *own = sums + (i - from) * WIDTH;
                    if (steps == 1)
                        pass_over(own, a, g->lda, least(MR, to - i), b, g->ldb, nc, 1);
                    else
                        pass_over(own, a, g->lda, least(MR, to - i), b, g->ldb, nc, UNROLL);
                }
            }
            finish(sums, WIDTH, C + from * g->ldc + j0, g->ldc, BIAS ? g->bias + j0 : 0, to - from, nc, g->alpha,
                   g->beta, 1);
        }
    }
}
#endif
