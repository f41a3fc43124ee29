// The innermost loop: MR rows x NR times 16 columns of sums; a group of a row of the left operand is multiplied with 16
// groups of the right one at once.
#define RIGHT_UNSIGNED (!RIGHT_SIGNED || SHIFTED)

#ifdef EMULATE
#define PIECE 16  // sums in a vector
typedef sum sums __attribute__((vector_size(64)));
typedef uint32_t groups __attribute__((vector_size(64)));
static inline groups same(uint32_t x) { return (groups){0} + x; }
static NOINLINE sums dot(sums s, groups left, groups right) {
#if WIDENED
    return s + (sums)left * (sums)right;
#else
    for (int lane = 0; lane < 16; lane++)
        for (int e = 0; e < GROUP; e++) {
#if INPUT == 1
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
#endif
}
#elif defined(__AVX512F__)
#define PIECE 16
typedef sum sums __attribute__((vector_size(64)));
typedef __m512i groups;
ALWAYS_INLINE groups same(uint32_t x) { return _mm512_set1_epi32((int)x); }
ALWAYS_INLINE sums dot(sums s, groups left, groups right) {
#if WIDENED
    return (sums)_mm512_fmadd_ps((__m512)left, (__m512)right, (__m512)s);
#elif INPUT == 1
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

// Distances are in bytes.
typedef struct {
    const char *left;
    long left_row;
    const char *right;
    long right_row, columns;  // of a right operand that is read where it lies: distance of its rows, columns it has left
    long groups, last;        // whole ones, and numbers along K in one more; packed groups are all whole
    const int32_t *start;  // what the sums of each row begin with, where there is such a thing
    const char *sums_in;   // or null
    char *sums_out;
    long sums_in_row, sums_row, rows;
} product;

#if !ALONG
// A group of nr times 16 columns of the right operand. Where it is read as it lies, `columns` and `k` numbers along K are
// there.
ALWAYS_INLINE void take_right(groups r[NR * PIECES], int nr, const char *right, long row, long columns, long k) {
#if DIRECT
    UNROLLED for (int j = 0; j < nr; j += GROUP) {
        const char *from = right + j * 16 * ES;
        if (PACK_AHEAD)
            UNROLLED for (int e = 0; e < GROUP; e++) __builtin_prefetch(from + e * row + PACK_AHEAD * 64, 0, 3);
        line some[GROUP];
        lines_across(some, from, row, columns - j * 16, k);
        UNROLLED for (int v = 0; v < GROUP; v++)
            if (j + v < nr) {
                line x = shifted(some[v]);
                memcpy(&r[j + v], &x, 64);
            }
    }
#else
    (void)row, (void)columns, (void)k;
    UNROLLED for (int j = 0; j < nr * PIECES; j++) memcpy(&r[j], right + j * PIECE * 4, sizeof(groups));
    if (PREFETCH)
        UNROLLED for (int j = 0; j < nr; j++) __builtin_prefetch(right + PREFETCH * GROUP_BYTES + j * 64, 0, 3);
#endif
}

ALWAYS_INLINE void add_group(sums s[MR][NR * PIECES], int nr, const char *left, long row, const groups r[NR * PIECES]) {
    UNROLLED for (int i = 0; i < MR; i++) {
        uint32_t x;
        memcpy(&x, left + i * row, 4);
        groups l = same(x);
        UNROLLED for (int j = 0; j < nr * PIECES; j++) s[i][j] = dot(s[i][j], l, r[j]);
    }
}

// A number of columns that the compiler knows spares it the masks.
ALWAYS_INLINE void add_groups(sums s[MR][NR * PIECES], int nr, const product *p, long columns) {
    const char *left = p->left, *right = p->right;
    const long left_row = p->left_row, right_row = p->right_row, step = DIRECT ? GROUP * right_row : GROUP_BYTES;
    groups r[NR * PIECES];
    UNROLLED_BY_4 for (long g = p->groups; g > 0; g--, left += 4, right += step) {
        take_right(r, nr, right, right_row, columns, GROUP);
        add_group(s, nr, left, left_row, r);
    }
    if (DIRECT && p->last) {
        take_right(r, nr, right, right_row, columns, p->last);
        add_group(s, nr, left, left_row, r);
    }
}

ALWAYS_INLINE void product_of(int nr, const product *p) {
    sums s[MR][NR * PIECES];
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int j = 0; j < nr * PIECES; j++) {
        s[i][j] = (sums){0};
        if (SHIFTED) s[i][j] = s[i][j] + (sum)p->start[i];
    }
    if (PREFETCH_C)
        UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int j = 0; j < nr; j++)
            __builtin_prefetch(p->sums_out + (i < p->rows ? i * p->sums_row : 0) + j * 64, 1, 3);
    const long whole = (nr + GROUP - 1) / GROUP * LINE;
    if (!DIRECT || p->columns >= whole)
        add_groups(s, nr, p, whole);
    else
        add_groups(s, nr, p, p->columns);
    static const char nothing[NR * 64];  // a branch for each vector would take the compiler long
    const char *in = p->sums_in ? p->sums_in : nothing;
    const long in_row = p->sums_in ? p->sums_in_row : 0;
    UNROLLED for (int i = 0; i < MR; i++) {
        if (i >= p->rows) break;
        UNROLLED for (int j = 0; j < nr * PIECES; j++) {
            sums before;
            memcpy(&before, in + i * in_row + j * PIECE * 4, sizeof(sums));
            s[i][j] += before;
            memcpy(p->sums_out + i * p->sums_row + j * PIECE * 4, &s[i][j], sizeof(sums));
        }
    }
}

// A function for each number of vectors, or the compiler would keep one loop that asks for it again and again.
#define PRODUCT(nr) \
    static __attribute__((noinline)) void product_##nr(const product *p) { product_of(nr, p); }
PRODUCT(1)
#if NR > 1
PRODUCT(2)
#endif
#if NR > 2
PRODUCT(3)
#endif
#if NR > 3
PRODUCT(4)
#endif
#if NR > 4
PRODUCT(5)
PRODUCT(6)
#endif

static void multiply(long columns, const product *p) {
    static void (*const of[])(const product *) = {
        product_1,
#if NR > 1
        product_2,
#endif
#if NR > 2
        product_3,
#endif
#if NR > 3
        product_4,
#endif
#if NR > 4
        product_5, product_6,
#endif
    };
    of[least(ceil_div(columns, 16), NR) - 1](p);
}
#endif

// -128 times the sums of the rows of a product's left operand: what the 128 added to the right one must not add.
static void start_sums(int32_t *to, const product *p, long bytes) {
    for (int i = 0; i < p->rows; i++) {
        const char *from = p->left + i * p->left_row;
        int32_t total = 0;
#if INPUT == 0 && defined(__AVX512VNNI__) && defined(__AVX512BW__) && !defined(EMULATE)
        __m512i t = _mm512_setzero_si512();
        for (long b = 0; b < bytes; b += 64)
            t = _mm512_dpbusd_epi32(t, _mm512_set1_epi8(1), _mm512_maskz_loadu_epi8(line_mask(bytes - b), from + b));
        total = _mm512_reduce_add_epi32(t);
#else
        for (long b = 0; b < bytes; b++) total += (int8_t)from[b];
#endif
        to[i] = -128 * total;
    }
    for (long i = p->rows; i < MR; i++) to[i] = 0;
}
