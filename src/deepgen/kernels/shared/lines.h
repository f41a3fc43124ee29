// An operand as it lies in memory, and the lines of 64 bytes in which it is packed: 16 groups of 4 bytes along K.
//
// A matrix lies either along K (a row of it is one piece) or across (the numbers of one k are a piece, and groups are
// interleaved from several of them).

// `at` is the first number, in rows (of A, or columns of B) and k.
typedef struct {
    const char *at;
    long ld;  // bytes
} matrix;

ALWAYS_INLINE const char *place(matrix x, int across, long row, long k) {
    return across ? x.at + k * x.ld + row * ES : x.at + row * x.ld + k * ES;
}

#if defined(__AVX512BW__) && !defined(PLAIN_LINES)
typedef __m512i line;
ALWAYS_INLINE void line_put(void *to, line x) { _mm512_storeu_si512(to, x); }
ALWAYS_INLINE line line_zero(void) { return _mm512_setzero_si512(); }
ALWAYS_INLINE __mmask64 line_mask(long n) { return n >= 64 ? ~0ull : n <= 0 ? 0 : (1ull << n) - 1; }

// Groups of 16 lines the other way round.
ALWAYS_INLINE void turn(line t[16]) {
    vec v[16];
    UNROLLED for (int i = 0; i < 16; i++) v[i] = _mm512_castsi512_ps(t[i]);
    transpose(v);
    UNROLLED for (int i = 0; i < 16; i++) t[i] = _mm512_castps_si512(v[i]);
}
#else
#define NOINLINE __attribute__((noinline))  // or they would be compiled sixteen times over
typedef struct {
    uint32_t at[16];
} line;
ALWAYS_INLINE void line_put(void *to, line x) { memcpy(to, &x, 64); }
ALWAYS_INLINE line line_zero(void) { return (line){{0}}; }
static NOINLINE void turn(line t[16]) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < i; j++) {
            uint32_t x = t[i].at[j];
            t[i].at[j] = t[j].at[i];
            t[j].at[i] = x;
        }
}
#endif
