// What becomes of a finished tile: C = activation(alpha * sums + beta * C + bias), vector by vector.

typedef struct {
    float *c;           // where the part lies in C
    long ldc;
    const float *bias;  // of the part's first column in C; null until the last block of K
    float alpha, beta;
    int last;           // the last block of K: bias and activation follow
    int stream;
} result;

// The part at row i and column j of what `r` describes.
ALWAYS_INLINE result tile_at(result r, long i, long j) {
    r.c += SWAP ? j * r.ldc + i : i * r.ldc + j;
    if (BIAS) r.bias += SWAP ? i : j;
    return r;
}

#if VL == 16
ALWAYS_INLINE vec nearest(vec x) { return _mm512_roundscale_ps(x, 0); }
ALWAYS_INLINE vec larger(vec a, vec b) { return _mm512_max_ps(a, b); }
ALWAYS_INLINE vec smaller(vec a, vec b) { return _mm512_min_ps(a, b); }
ALWAYS_INLINE vec scaled(vec x, vec n) { return _mm512_scalef_ps(x, n); }
#else
ALWAYS_INLINE vec nearest(vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
ALWAYS_INLINE vec larger(vec a, vec b) { return _mm256_max_ps(a, b); }
ALWAYS_INLINE vec smaller(vec a, vec b) { return _mm256_min_ps(a, b); }
ALWAYS_INLINE vec power(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
// x * 2^n in two factors, because 2^n alone may lie outside the range in which x * 2^n still is.
ALWAYS_INLINE vec scaled(vec x, vec n) {
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    return x * power(half) * power(_mm256_sub_epi32(whole, half));
}
#endif

// e^x to about one unit in the last place. What overflows becomes infinite and NaN stays NaN: the second operand of
// larger() and smaller() is the one that a NaN passes through.
ALWAYS_INLINE vec exponential(vec x) {
    x = smaller(all(89.5f), larger(all(-104.0f), x));
    vec n = nearest(x * all(1.44269504f));
    vec r = madd(n, all(-0.693359375f), x);  // ln 2 in two parts, the first exact in few bits
    r = madd(n, all(2.12194440e-4f), r);
    vec p = all(1.0f / 5040);
    p = madd(p, r, all(1.0f / 720));
    p = madd(p, r, all(1.0f / 120));
    p = madd(p, r, all(1.0f / 24));
    p = madd(p, r, all(1.0f / 6));
    p = madd(p, r, all(0.5f));
    p = madd(p, r, all(1.0f));
    p = madd(p, r, all(1.0f));
    return scaled(p, n);
}

ALWAYS_INLINE vec activated(vec x) {
    if (ACTIVATION == 1) return larger(all(0), x);
    if (ACTIVATION == 2) {  // x (1 + tanh u) / 2 is x / (1 + e^-2u)
        vec u = x * madd(all(0.0356774081f), x * x, all(0.797884561f));
        return x / (all(1) + exponential(all(-2) * u));
    }
    if (ACTIVATION == 3) return x / (all(1) + exponential(all(0) - x));
    return x;
}

// Vector of sums `x` at column `j` of a row of C, of which the lanes in `m` belong to it.
ALWAYS_INLINE void finish(vec x, float *c, long j, mask m, const result *r) {
    x = all(r->alpha) * x;
    if (r->beta != 0)  // a C that is not asked for may hold anything, NaN too
        x = madd(all(r->beta), load_part(c + j, m), x);
    if ((BIAS || ACTIVATION) && r->last) {
        if (BIAS) x = x + load_part(r->bias + j, m);
        x = activated(x);
    }
    store_part(c + j, m, x);
}

// Sums that are in memory: of a tile with more to be done than to scale it. Rows of `width` numbers.
static inline void put(const float *sums, long width, long rows, long cols, const result *r) {
#if SWAP  // columns of C: squares of the tile are turned in registers
    mask filled = first(rows);
    for (long j = 0; j < cols; j += VL) {
        vec t[VL];
        UNROLLED for (int i = 0; i < VL; i++) t[i] = i < MR ? load(sums + (i < MR ? i : 0) * width + j) : all(0);
        transpose(t);
        UNROLLED for (int i = 0; i < VL; i++)
            if (i < cols - j) finish(t[i], r->c + (j + i) * r->ldc, 0, filled, r);
    }
#else
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < cols; j += VL)
            finish(load(sums + i * width + j), r->c + i * r->ldc, j, first(cols - j), r);
#endif
}
