// Sums along K, in vectors: nothing is packed, and B is read once, row after row, as fast as memory gives it.
//
// For few rows of C. A tile is MR rows of A with NR rows of B; a step loads a vector of each for MR * NR multiply-adds.
// Each sum of a tile is a whole vector, added up at the end.

#if VL == 16
static inline float total(vec x) { return _mm512_reduce_add_ps(x); }
#else
static inline float total(vec x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
#endif

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
    enum { SETS = MR * NR < 8 ? 8 / (MR * NR) : 1 };
    vec acc[SETS][MR][NR];
    UNROLLED for (int s = 0; s < SETS; s++) UNROLLED for (int i = 0; i < MR; i++)
        UNROLLED for (int j = 0; j < NR; j++) acc[s][i][j] = all(0);
    long k = 0;
    for (; k + SETS * VL <= kc; k += SETS * VL)
        UNROLLED for (int s = 0; s < SETS; s++) dot_step(acc[s], a, b, k + s * VL, 0, first(VL));
    for (; k < kc; k += VL) dot_step(acc[0], a, b, k, 1, first(kc - k));
    UNROLLED for (int s = 1; s < SETS; s++) UNROLLED for (int i = 0; i < MR; i++)
        UNROLLED for (int j = 0; j < NR; j++) acc[0][i][j] += acc[s][i][j];
    float sums[MR][VL];  // a row of C at a time is finished like a tile's
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int j = 0; j < NR; j++) sums[i][j] = total(acc[0][i][j]);
    for (long i = 0; i < rows; i++)
        finish(load_part(sums[i], first(cols)), r->c + i * r->ldc, 0, first(cols), r);
}

static void dot_gemm(const float *A, long lda, const float *B, long ldb, long m, long n, long k, result r) {
    result part = r;
    for (long j = 0; j < n; j += NR) {
        for (long i = 0; i < m; i += MR) {
            part.c = r.c + i * r.ldc + j;
            part.bias = r.bias + j;
            dot_tile(A + i * lda, lda, least(MR, m - i), B + j * ldb, ldb, least(NR, n - j), k, &part);
        }
    }
}
