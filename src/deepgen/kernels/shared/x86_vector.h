// Vectors of floats, one spelling for AVX2 and AVX-512, and the transposition of squares of them.
#include <immintrin.h>

#ifdef __AVX512F__
#define VL 16
typedef __m512 vec;
typedef __mmask16 mask;
static inline mask first(long n) { return n >= VL ? 0xffff : n <= 0 ? 0 : (1u << n) - 1; }
static inline vec load(const float *p) { return _mm512_loadu_ps(p); }
static inline vec load_part(const float *p, mask m) { return _mm512_maskz_loadu_ps(m, p); }
static inline void store(float *p, vec v) { _mm512_storeu_ps(p, v); }
static inline void store_part(float *p, mask m, vec v) { _mm512_mask_storeu_ps(p, m, v); }
static inline void stream(float *p, vec v) { _mm512_stream_ps(p, v); }
static inline vec madd(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec all(float x) { return _mm512_set1_ps(x); }
#else
#define VL 8
typedef __m256 vec;
typedef __m256i mask;
static inline mask first(long n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n > VL ? VL : (int)n), lane);
}
static inline vec load(const float *p) { return _mm256_loadu_ps(p); }
static inline vec load_part(const float *p, mask m) { return _mm256_maskload_ps(p, m); }
static inline void store(float *p, vec v) { _mm256_storeu_ps(p, v); }
static inline void store_part(float *p, mask m, vec v) { _mm256_maskstore_ps(p, m, v); }
static inline void stream(float *p, vec v) { _mm256_stream_ps(p, v); }
static inline vec madd(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec all(float x) { return _mm256_set1_ps(x); }
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLLED _Pragma("unroll")
#define ROLLED _Pragma("nounroll")
#else
#define UNROLLED _Pragma("GCC unroll 64")
#define ROLLED _Pragma("GCC unroll 1")
#endif

static inline long least(long a, long b) { return a < b ? a : b; }
static inline long ceil_div(long a, long b) { return (a + b - 1) / b; }

// --- transposition --------------------------------------------------------------------------------------------------

#if VL == 16
#define EACH(d) d(0), d(1), d(2), d(3), d(4), d(5), d(6), d(7), d(8), d(9), d(10), d(11), d(12), d(13), d(14), d(15)
#else
#define EACH(d) d(0), d(1), d(2), d(3), d(4), d(5), d(6), d(7)
#endif
#if defined(__clang__)
#define LANES(a, b, d) __builtin_shufflevector(a, b, EACH(d))
#else  // which gcc has from version 12 on only
typedef int lanes __attribute__((vector_size(VL * 4)));
#define LANES(a, b, d) __builtin_shuffle(a, b, (lanes){EACH(d)})
#endif
// One stage of a transposition exchanges the off-diagonal squares of size d.
#define LOW(e, d) ((e) & (d) ? (e) - (d) + VL : (e))
#define HIGH(e, d) ((e) & (d) ? (e) + VL : (e) + (d))
#define LOW1(e) LOW(e, 1)
#define LOW2(e) LOW(e, 2)
#define LOW4(e) LOW(e, 4)
#define LOW8(e) LOW(e, 8)
#define HIGH1(e) HIGH(e, 1)
#define HIGH2(e) HIGH(e, 2)
#define HIGH4(e) HIGH(e, 4)
#define HIGH8(e) HIGH(e, 8)
#define STAGE(t, d)                                                                                                 \
    UNROLLED for (int i = 0; i < VL; i++) if (!(i & d)) {                                                          \
        vec low = LANES(t[i], t[i + d], LOW##d), high = LANES(t[i], t[i + d], HIGH##d);                             \
        t[i] = low;                                                                                                 \
        t[i + d] = high;                                                                                            \
    }

ALWAYS_INLINE void transpose(vec t[VL]) {
    STAGE(t, 1)
    STAGE(t, 2)
    STAGE(t, 4)
#if VL == 16
    STAGE(t, 8)
#endif
}

// A whole square of rows, turned. The pieces of four numbers come to their places as they are loaded, which spares half
// of the shuffles: 40 cycles a square instead of 64.
#if VL == 16
// Four numbers of each of 16 rows that lie `ld` bytes apart, as four rows.
ALWAYS_INLINE void load_four_turned(vec t[4], const char *from, long ld) {
    vec x[4], y[4];
    UNROLLED for (int i = 0; i < 4; i++) {
        const char *at = from + i * ld;
        x[i] = _mm512_castps128_ps512(_mm_loadu_ps((const float *)at));
        x[i] = _mm512_insertf32x4(x[i], _mm_loadu_ps((const float *)(at + 4 * ld)), 1);
        x[i] = _mm512_insertf32x4(x[i], _mm_loadu_ps((const float *)(at + 8 * ld)), 2);
        x[i] = _mm512_insertf32x4(x[i], _mm_loadu_ps((const float *)(at + 12 * ld)), 3);
    }
    y[0] = _mm512_unpacklo_ps(x[0], x[1]), y[1] = _mm512_unpackhi_ps(x[0], x[1]);
    y[2] = _mm512_unpacklo_ps(x[2], x[3]), y[3] = _mm512_unpackhi_ps(x[2], x[3]);
#define PAIRS(f, a, b) _mm512_castpd_ps(f(_mm512_castps_pd(a), _mm512_castps_pd(b)))
    t[0] = PAIRS(_mm512_unpacklo_pd, y[0], y[2]), t[1] = PAIRS(_mm512_unpackhi_pd, y[0], y[2]);
    t[2] = PAIRS(_mm512_unpacklo_pd, y[1], y[3]), t[3] = PAIRS(_mm512_unpackhi_pd, y[1], y[3]);
}

ALWAYS_INLINE void load_turned(vec t[VL], const float *from, long ld) {
    UNROLLED for (int p = 0; p < VL; p += 4) load_four_turned(t + p, (const char *)(from + p), ld * 4);
}
#else
ALWAYS_INLINE void load_turned(vec t[VL], const float *from, long ld) {
    UNROLLED for (int i = 0; i < VL; i++) t[i] = load(from + i * ld);
    transpose(t);
}
#endif

// Rows of `from` become columns of `to`: to[k * step + i] = from[i * ld + k]. Writes whole vectors: up to VL - 1
// numbers past the last one in each row of `to`, in order, so that the next row sets them right. Missing rows are 0.
// With `ahead` the same numbers of the next VL rows are asked for: rows are often a page, past which no hardware looks.
ALWAYS_INLINE void pack_transposed(float *to, long step, const float *from, long ld, long rows, long kc, int ahead) {
    long k = 0;
    vec t[VL];
    for (; rows >= VL && k + VL <= kc; k += VL) {
        if (ahead)
            UNROLLED for (int i = 0; i < VL; i++) __builtin_prefetch(from + (i + VL) * ld + k, 0, 2);
        load_turned(t, from + k, ld);
        UNROLLED for (int i = 0; i < VL; i++) store(to + (k + i) * step, t[i]);
    }
    for (; k < kc; k += VL) {
        mask part = first(kc - k);
        UNROLLED for (int i = 0; i < VL; i++) t[i] = i < rows ? load_part(from + i * ld + k, part) : all(0);
        transpose(t);
        long n = least(VL, kc - k);
        UNROLLED for (int i = 0; i < VL; i++) if (i < n) store(to + (k + i) * step, t[i]);
    }
}
