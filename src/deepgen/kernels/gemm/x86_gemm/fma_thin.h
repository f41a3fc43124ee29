// Few rows of C: B is read once and where it lies, as fast as memory gives it. MR rows of A at a time pass over it.

enum { HEIGHT = 2 * MR };  // rows of A whose turns come while a part of B is in the cache

#if DOT
// B is stored N x K. A tile is MR rows of A with NR rows of B; a step loads a vector of each for MR * NR multiply-adds.
// Each sum is a vector along K, whose lanes are added up at the end.

// One stage of adding up: of two vectors the lanes that are d apart, each in a place that the other leaves free.
#define FOLD(t, d, count)                                                       \
    UNROLLED for (int i = 0; i < VL; i += 2 * d) if (i < count) t[i] =          \
        LANES(t[i], t[i + d], LOW##d) + LANES(t[i], t[i + d], HIGH##d);

// Lane i is the sum of the lanes of t[i], of which there are `count`.
ALWAYS_INLINE vec totals(vec t[VL], int count) {
    FOLD(t, 1, count)
    FOLD(t, 2, count)
    FOLD(t, 4, count)
#if VL == 16
    FOLD(t, 8, count)
#endif
    return t[0];
}

ALWAYS_INLINE void dot_step(vec acc[MR][NR], const float *const a[MR], const float *const b[NR], long k, int part,
                            mask m) {
    vec y[NR];
    UNROLLED for (int j = 0; j < NR; j++) {
        y[j] = part ? load_part(b[j] + k, m) : load(b[j] + k);
        if (PREFETCH && !part) __builtin_prefetch(b[j] + k + PREFETCH * VL);
    }
    UNROLLED for (int i = 0; i < MR; i++) {
        vec x = part ? load_part(a[i] + k, m) : load(a[i] + k);
        UNROLLED for (int j = 0; j < NR; j++) acc[i][j] = madd(x, y[j], acc[i][j]);
    }
}

// Rows that are missing at the edge are read as the last one there is, and their sums are dropped.
static void dot_tile(const float *A, long lda, long rows, const float *B, long ldb, long cols, long kc,
                     const result *r) {
    const float *a[MR], *b[NR];
    UNROLLED for (int i = 0; i < MR; i++) a[i] = A + least(i, rows - 1) * lda;
    UNROLLED for (int j = 0; j < NR; j++) b[j] = B + least(j, cols - 1) * ldb;
    // Few sums would wait for each other: short tiles take turns between two sets.
    enum { SETS = MR * NR < 8 ? 8 / (MR * NR) : 1, SUMS = MR * NR };
    vec acc[SETS][MR][NR];
    UNROLLED for (int s = 0; s < SETS; s++) UNROLLED for (int i = 0; i < MR; i++)
        UNROLLED for (int j = 0; j < NR; j++) acc[s][i][j] = all(0);
    long k = 0;
    for (; k + SETS * VL <= kc; k += SETS * VL)
        UNROLLED for (int s = 0; s < SETS; s++) dot_step(acc[s], a, b, k + s * VL, 0, first(VL));
    for (; k < kc; k += VL) dot_step(acc[0], a, b, k, 1, first(kc - k));
    UNROLLED for (int s = 1; s < SETS; s++) UNROLLED for (int i = 0; i < MR; i++)
        UNROLLED for (int j = 0; j < NR; j++) acc[0][i][j] += acc[s][i][j];
    float sums[SUMS + VL];  // side by side as in C
    UNROLLED for (int s = 0; s < SUMS; s += VL) {
        vec t[VL];
        UNROLLED for (int e = 0; e < VL; e++) {
            int at = s + e < SUMS ? s + e : 0;
            t[e] = s + e < SUMS ? acc[0][SWAP ? at % MR : at / NR][SWAP ? at / MR : at % NR] : all(0);
        }
        store(sums + s, totals(t, SUMS - s));
    }
    mask inside = first(SWAP ? rows : cols);
    for (long i = 0; i < (SWAP ? cols : rows); i++)
        finish(load_part(sums + i * (SWAP ? MR : NR), inside), r->c + i * r->ldc, 0, inside, r);
}

// An A that is stored K x M is turned first, KC steps of it.
static void few_rows(float *scratch, const float *A, long lda, const float *B, long ldb, long m, long n, long k,
                     result r) {
    for (long from = 0, rows; from < m; from += rows) {
        rows = least(HEIGHT, m - from);
        for (long p = 0, kc; p < k; p += kc) {
            kc = A_T ? least(KC, k - p) : k;
            const float *a = A_T ? scratch : A + from * lda;
            long ld = A_T ? A_ROW : lda;
            for (long i = 0; A_T && i < rows; i += MR)
                for (long q = 0; q < kc; q += VL)
                    pack_transposed(scratch + i * ld + q, ld, A + (p + q) * lda + from + i, lda, kc - q,
                                    least(MR, rows - i), 0);
            result whole = r;
            if (p) whole.beta = 1;
            whole.last = r.last && p + kc == k;
            for (long j = 0; j < n; j += NR)
                for (long i = 0; i < rows; i += MR) {
                    result part = tile_at(whole, from + i, j);
                    dot_tile(a + i * ld, ld, least(MR, rows - i), B + j * ldb + p, ldb, least(NR, n - j), kc, &part);
                }
        }
    }
}
#else
// B is stored K x N: UNROLL rows of it at a time, from end to end. The sums of NC columns wait in L1.

// Numbers of A for some rows of B: each is at its place, whichever way A lies.
#define NUMBER(x, i, u) (x)[A_T ? (u) * MR + (i) : (i) * UNROLL + (u)]

static inline void numbers_of(float *x, const float *a, long lda, long rows, long steps) {
    if (A_T)  // whole vectors, in order, so that the next sets right what is too much
        for (long u = 0; u < steps; u++) store(x + u * MR, load_part(a + u * lda, first(rows)));
    else
        for (long i = 0; i < MR; i++)  // a row that is missing is another one again, and its sums are dropped
            store(x + i * UNROLL, load_part(a + least(i, rows - 1) * lda, first(steps)));
}

// One row of B.
ALWAYS_INLINE void thin_step(vec acc[MR][NR], const float *x, int u, const float *b, long ldb, int vectors, int part,
                             mask m) {
    vec y[NR];
    UNROLLED for (int j = 0; j < vectors; j++) {
        y[j] = part ? load_part(b + j * VL, m) : load(b + j * VL);
        if (PREFETCH && !part) __builtin_prefetch(b + (j + PREFETCH) * VL);
        if (NEXT_BLOCK && !part) __builtin_prefetch(b + UNROLL * ldb + j * VL, 0, 2);
    }
    UNROLLED for (int i = 0; i < MR; i++) {
        vec number = all(NUMBER(x, i, u));
        UNROLLED for (int j = 0; j < vectors; j++) acc[i][j] = madd(number, y[j], acc[i][j]);
    }
    __asm__ volatile("" ::: "memory");  // rows of B, loaded ahead of their turn, would not fit in registers
}

// `steps` rows of B for `vectors` vectors of C, of the last of which `m` are the lanes. `r` where they are the last rows.
ALWAYS_INLINE void thin_tile(float *sums, const float *x, const float *b, long ldb, int vectors, int part, mask m,
                             long steps, int unrolled, int begins, const result *r, long rows, long j0) {
    vec acc[MR][NR];
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int j = 0; j < vectors; j++)
        acc[i][j] = begins ? all(0) : load(sums + i * SUMS_ROW + j * VL);
    if (unrolled)
        UNROLLED for (int u = 0; u < UNROLL; u++, b += ldb) thin_step(acc, x, u, b, ldb, vectors, part, m);
    else
        ROLLED for (int u = 0; u < steps; u++, b += ldb) thin_step(acc, x, u, b, ldb, vectors, part, m);
    if (!SWAP && r) {
        UNROLLED for (int i = 0; i < MR; i++)
            if (i < rows)
                UNROLLED for (int j = 0; j < vectors; j++) finish(acc[i][j], r->c + i * r->ldc, j0 + j * VL, m, r);
    } else {
        UNROLLED for (int i = 0; i < MR; i++)
            UNROLLED for (int j = 0; j < vectors; j++) store(sums + i * SUMS_ROW + j * VL, acc[i][j]);
    }
}

static void sweep(float *sums, const float *x, const float *b, long ldb, long nc, long steps, int begins,
                  const result *r, long rows) {
    long j = 0;
    if (steps == UNROLL)
        for (; j + COLS <= nc; j += COLS)
            thin_tile(sums + j, x, b + j, ldb, NR, 0, first(VL), steps, 1, begins, r, rows, j);
    for (; j + COLS <= nc; j += COLS)
        thin_tile(sums + j, x, b + j, ldb, NR, 0, first(VL), steps, 0, begins, r, rows, j);
    for (; j < nc; j += VL)
        thin_tile(sums + j, x, b + j, ldb, 1, 1, first(nc - j), steps, 0, begins, r, rows, j);
}

static void few_rows(float *scratch, const float *A, long lda, const float *B, long ldb, long m, long n, long k,
                     result r) {
    float x[MR * UNROLL + VL];
    for (long from = 0, rows; from < m; from += rows) {
        rows = least(HEIGHT, m - from);
        for (long j = 0, nc; j < n; j += nc) {
            nc = least(NC, n - j);
            for (long p = 0; p < k; p += UNROLL)
                for (long i = 0; i < rows; i += MR) {
                    long steps = least(UNROLL, k - p), height = least(MR, rows - i);
                    result part = tile_at(r, from + i, j);
                    numbers_of(x, region_of_a(A, lda, from + i, p, height, steps).at, lda, height, steps);
                    sweep(scratch + i * SUMS_ROW, x, B + p * ldb + j, ldb, nc, steps, p == 0,
                          p + steps == k ? &part : 0, height);
                }
            for (long i = 0; SWAP && i < rows; i += MR) {
                result part = tile_at(r, from + i, j);
                put(scratch + i * SUMS_ROW, SUMS_ROW, least(MR, rows - i), nc, &part);
            }
        }
    }
}
#endif
