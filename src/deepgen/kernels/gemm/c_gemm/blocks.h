// Strips of A pass over panels of B, both packed, a register tile after the other.

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
                        finish(sums[0], COLS, c, g->ldc, bias, MR, COLS, g->alpha, beta, last);
                    else
                        finish(sums[0], COLS, c, g->ldc, bias, rows, least(COLS, nc - j), g->alpha, beta, last);
                }
            }
        }
    }
}
