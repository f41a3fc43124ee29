// Lines of 16 groups: how they come out of either storage.
#ifdef EMULATE
#define PLAIN_LINES  // or tests would never run them where there is AVX-512
#endif
#include "lines.h"

#if defined(__AVX512BW__) && !defined(PLAIN_LINES)
ALWAYS_INLINE line line_shifted(line x) { return _mm512_xor_si512(x, _mm512_set1_epi8(-128)); }

#if INPUT == 2
#define WIDER(x) _mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)
#else
#define WIDER(x) _mm512_castps_si512(_mm512_cvtph_ps(x))
#endif
// The first n numbers of LINE that lie along K; 0 for the others.
ALWAYS_INLINE line line_along(const char *from, long n) {
#if WIDENED
    return WIDER(_mm256_maskz_loadu_epi16(line_mask(n), from));
#else
    return _mm512_maskz_loadu_epi8(line_mask(n * ES), from);
#endif
}

// 16 rows along K of a whole LINE each, turned; groups lie as floats do, which are turned while they are loaded.
ALWAYS_INLINE void lines_turned(line t[16], const char *from, long ld) {
#if WIDENED
    UNROLLED for (int i = 0; i < 16; i++) t[i] = line_along(from + i * ld, LINE);
    turn(t);
#else
    vec v[16];
    load_turned(v, (const float *)from, ld / 4);
    UNROLLED for (int i = 0; i < 16; i++) t[i] = _mm512_castps_si512(v[i]);
#endif
}

// The groups of GROUP times 16 columns, of which `columns` are there, at `k` numbers along K.
ALWAYS_INLINE void lines_across(line out[GROUP], const char *from, long ld, long columns, long k) {
#if WIDENED
    (void)ld;
    out[0] = WIDER(_mm256_maskz_loadu_epi16(k > 0 ? line_mask(columns) : 0, from));
#else
    // Unpacking works within quarters of a register: a permutation first brings each group's columns to their quarter.
    const __mmask64 some = line_mask(columns * ES);
    line x[GROUP];
    UNROLLED for (int e = 0; e < GROUP; e++) {
        x[e] = _mm512_maskz_loadu_epi8(e < k ? some : 0, from + (e < k ? e * ld : 0));
#if INPUT == 0
        x[e] = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), x[e]);
#else
        x[e] = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), x[e]);
#endif
    }
#if INPUT == 0
    line a = _mm512_unpacklo_epi8(x[0], x[1]), b = _mm512_unpackhi_epi8(x[0], x[1]);
    line c = _mm512_unpacklo_epi8(x[2], x[3]), d = _mm512_unpackhi_epi8(x[2], x[3]);
    out[0] = _mm512_unpacklo_epi16(a, c), out[1] = _mm512_unpackhi_epi16(a, c);
    out[2] = _mm512_unpacklo_epi16(b, d), out[3] = _mm512_unpackhi_epi16(b, d);
#else
    out[0] = _mm512_unpacklo_epi16(x[0], x[1]), out[1] = _mm512_unpackhi_epi16(x[0], x[1]);
#endif
#endif
}
#else
ALWAYS_INLINE line line_shifted(line x) {
    for (int i = 0; i < 16; i++) x.at[i] ^= 0x80808080u;
    return x;
}
// A number's place in its group.
static inline uint32_t placed(const char *from, int e) {
    uint32_t x = 0;
    memcpy(&x, from, ES);
#if INPUT == 2
    x <<= 16;
#elif INPUT == 3
    float wide = _cvtsh_ss((uint16_t)x);
    memcpy(&x, &wide, 4);
#endif
    return x << 32 / GROUP * e;
}
static NOINLINE line line_along(const char *from, long n) {
    line x = line_zero();
    for (long i = 0; i < n && i < LINE; i++) x.at[i / GROUP] |= placed(from + i * ES, i % GROUP);
    return x;
}
static NOINLINE void lines_turned(line t[16], const char *from, long ld) {
    for (int i = 0; i < 16; i++) t[i] = line_along(from + i * ld, LINE);
    turn(t);
}
static NOINLINE void lines_across(line out[GROUP], const char *from, long ld, long columns, long k) {
    for (int v = 0; v < GROUP; v++) out[v] = line_zero();
    for (long j = 0; j < columns && j < LINE; j++)
        for (int e = 0; e < GROUP && e < k; e++) out[j / 16].at[j % 16] |= placed(from + e * ld + j * ES, e);
}
#endif
