// The innermost loop with vectors: MR rows x NR times 16 columns of sums; a group of 4 bytes of a row of the left
// operand is multiplied with 16 groups of the right one at once.
//
// 8-bit dot products take unsigned by signed. Where both operands are signed, the right one is packed with 128 added,
// and 128 times the sum of each row of the left one is subtracted from the result.
#define RIGHT_UNSIGNED (!RIGHT_SIGNED || SHIFTED)

#ifdef EMULATE
#define PIECE 16  // sums in a vector
typedef sum sums __attribute__((vector_size(64)));
typedef uint32_t groups __attribute__((vector_size(64)));
static inline groups same(uint32_t x) { return (groups){0} + x; }
static inline sums dot(sums s, groups left, groups right) {
    for (int lane = 0; lane < 16; lane++)
        for (int e = 0; e < GROUP; e++) {
#if BF16
            uint32_t l = left[lane] >> 16 * e << 16, r = right[lane] >> 16 * e << 16;
            float x, y;
            memcpy(&x, &l, 4);
            memcpy(&y, &r, 4);
            s[lane] += x * y;
#else
            int l = left[lane] >> 8 * e & 255, r = right[lane] >> 8 * e & 255;
            s[lane] += (LEFT_SIGNED ? (int8_t)l : l) * (RIGHT_UNSIGNED ? r : (int8_t)r);
#endif
        }
    return s;
}
#elif defined(__AVX512F__)
#define PIECE 16
typedef sum sums __attribute__((vector_size(64)));
typedef __m512i groups;
ALWAYS_INLINE groups same(uint32_t x) { return _mm512_set1_epi32((int)x); }
ALWAYS_INLINE sums dot(sums s, groups left, groups right) {
#if BF16
    return (sums)_mm512_dpbf16_ps((__m512)s, (__m512bh)left, (__m512bh)right);
#elif RIGHT_UNSIGNED
    return (sums)_mm512_dpbusd_epi32((__m512i)s, right, left);
#else
    return (sums)_mm512_dpbusd_epi32((__m512i)s, left, right);
#endif
}
#else
#define PIECE 8
typedef sum sums __attribute__((vector_size(32)));
typedef __m256i groups;
ALWAYS_INLINE groups same(uint32_t x) { return _mm256_set1_epi32((int)x); }
ALWAYS_INLINE sums dot(sums s, groups left, groups right) {
#if RIGHT_UNSIGNED
    return (sums)_mm256_dpbusd_avx_epi32((__m256i)s, right, left);
#else
    return (sums)_mm256_dpbusd_avx_epi32((__m256i)s, left, right);
#endif
}
#endif
#define PIECES (16 / PIECE)  // of 16 columns

static void begin_thread(void) {}
static void end_thread(void) {}

ALWAYS_INLINE void dots(int nr, sums s[MR][NR * PIECES], const char *left, long row, const char *right) {
    UNROLLED_BY_4 for (int g = 0; g < 16; g++) {
        groups r[NR * PIECES];
        UNROLLED for (int j = 0; j < nr * PIECES; j++)
            memcpy(&r[j], right + j / PIECES * 1024 + g * 64 + j % PIECES * PIECE * 4, sizeof(groups));
        UNROLLED for (int i = 0; i < MR; i++) {
            uint32_t x;
            memcpy(&x, left + i * row + g * 4, 4);
            groups l = same(x);
            UNROLLED for (int j = 0; j < nr * PIECES; j++) s[i][j] = dot(s[i][j], l, r[j]);
        }
    }
}

// 128 times the sums of the rows of a product's left operand.
static void correct(int32_t *to, const product *p) {
    for (int i = 0; i < MR; i++) {
        int32_t total = 0;
        for (long t = 0; t < p->depth; t++)
            for (int e = 0; e < 64; e++) total += (int8_t)p->left[i * p->left_row + t * p->left_step + e];
        if (p->edge)
            for (int e = 0; e < 64; e++) total += (int8_t)p->edge[i * 64 + e];
        to[i] = 128 * total;
    }
}

ALWAYS_INLINE void product_of(int nr, const product *p) {
    sums s[MR][NR * PIECES];
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int j = 0; j < nr * PIECES; j++) {
        s[i][j] = (sums){0};
        if (p->sums_in != ZERO_SUMS) memcpy(&s[i][j], p->sums_in + i * p->sums_in_row + j * PIECE * 4, sizeof(sums));
    }
    const char *left = p->left, *right = p->right;
    for (long t = 0; t < p->depth; t++, left += p->left_step, right += NR * 1024) {
        dots(nr, s, left, p->left_row, right);
        step_aside(&p->aside);
    }
    if (p->edge) dots(nr, s, p->edge, 64, right);
    if (SHIFTED)
        UNROLLED for (int i = 0; i < MR; i++)
            UNROLLED for (int j = 0; j < nr * PIECES; j++) s[i][j] -= (sum)p->correction[i];
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int j = 0; j < nr * PIECES; j++)
        memcpy(p->sums_out + i * p->sums_row + j * PIECE * 4, &s[i][j], sizeof(sums));
}

static void multiply(long rows, long columns, const product *p) {
    (void)rows;
    int nr = columns > (NR - 1) * 16 ? NR : (int)ceil_div(columns, 16);
    UNROLLED for (int j = NR; j > 0; j--)
        if (j == nr) {
            product_of(j, p);
            return;
        }
}
