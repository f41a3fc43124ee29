// Packing. A group is the 4 bytes along K that dot products take at once: 2 numbers in bf16, 4 in 8 bits.
//
// Squares of 16 x 16 groups are read along K or across, and written by rows (the left operand) or by groups (the right
// operand): one of the two is transposed.
#define GROUP (4 / ES)          // numbers in a group
#define DEPTH (64 / ES)         // numbers along K in a square: one line of a row

#include "lines.h"

#if defined(__AVX512BW__)
ALWAYS_INLINE line line_part(const void *from, long bytes) { return _mm512_maskz_loadu_epi8(line_mask(bytes), from); }
ALWAYS_INLINE line line_whole(const void *from) { return _mm512_loadu_si512(from); }

// The groups of 16 columns from GROUP lines of numbers that lie across: 16 numbers of each.
#if ES == 2
#define NUMBERS __m256i
#define WIDE(x) _mm512_cvtepu16_epi32(x)
#define GET(from) _mm256_loadu_si256((const __m256i *)(from))
#define GET_PART(mask, from) _mm256_maskz_loadu_epi16(mask, from)
#else
#define NUMBERS __m128i
#define WIDE(x) _mm512_cvtepu8_epi32(x)
#define GET(from) _mm_loadu_si128((const __m128i *)(from))
#define GET_PART(mask, from) _mm_maskz_loadu_epi8(mask, from)
#endif
ALWAYS_INLINE line interleave(int whole, const char *from, long ld, long columns, long k) {
    const __mmask16 some = columns >= 16 ? 0xffff : columns <= 0 ? 0 : (1u << columns) - 1;
    line x = _mm512_setzero_si512();
    UNROLLED for (int e = 0; e < GROUP; e++) {
        if (!whole && e >= k) break;
        NUMBERS n = whole ? GET(from + e * ld) : GET_PART(some, from + e * ld);
        x = _mm512_or_si512(x, _mm512_slli_epi32(WIDE(n), 8 * ES * e));
    }
    return x;
}

// The groups of 16 * GROUP columns from 64 bytes of GROUP lines that lie across: whole lines in, whole lines out.
ALWAYS_INLINE void interleave_lines(line t[GROUP], const char *from, long ld) {
    line a = line_whole(from), b = line_whole(from + ld);
#if ES == 2
    const line low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    line x = _mm512_unpacklo_epi16(a, b), y = _mm512_unpackhi_epi16(a, b);
    t[0] = _mm512_permutex2var_epi64(x, low, y);
    t[1] = _mm512_permutex2var_epi64(x, high, y);
#else
    line c = line_whole(from + 2 * ld), d = line_whole(from + 3 * ld);
    line ab = _mm512_unpacklo_epi8(a, b), cd = _mm512_unpacklo_epi8(c, d);
    line x0 = _mm512_unpacklo_epi16(ab, cd), x1 = _mm512_unpackhi_epi16(ab, cd);  // 4 columns in each 16 bytes
    ab = _mm512_unpackhi_epi8(a, b), cd = _mm512_unpackhi_epi8(c, d);
    line x2 = _mm512_unpacklo_epi16(ab, cd), x3 = _mm512_unpackhi_epi16(ab, cd);
    a = _mm512_shuffle_i32x4(x0, x1, 0x44), b = _mm512_shuffle_i32x4(x2, x3, 0x44);
    c = _mm512_shuffle_i32x4(x0, x1, 0xee), d = _mm512_shuffle_i32x4(x2, x3, 0xee);
    t[0] = _mm512_shuffle_i32x4(a, b, 0x88), t[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    t[2] = _mm512_shuffle_i32x4(c, d, 0x88), t[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
#endif
}
#else
ALWAYS_INLINE line line_part(const void *from, long bytes) {
    line x = {{0}};
    if (bytes > 0) memcpy(&x, from, bytes < 64 ? bytes : 64);
    return x;
}
ALWAYS_INLINE line line_whole(const void *from) { return line_part(from, 64); }

static line interleave(int whole, const char *from, long ld, long columns, long k) {
    (void)whole;
    line x = {{0}};
    for (long j = 0; j < columns && j < 16; j++)
        for (long e = 0; e < GROUP && e < k; e++)
            memcpy((char *)&x.at[j] + e * ES, from + e * ld + j * ES, ES);
    return x;
}

static inline void interleave_lines(line t[GROUP], const char *from, long ld) {
    for (int e = 0; e < GROUP; e++) t[e] = interleave(1, from + e * 16 * ES, ld, 16, GROUP);
}
#endif

// A whole square: 16 rows along K, or 16 columns across DEPTH lines.
ALWAYS_INLINE void copy_square(char *to, int across, int by_groups, const char *from, long ld) {
    line t[16];
    UNROLLED for (int i = 0; i < 16; i++)
        t[i] = across ? interleave(1, from + i * GROUP * ld, ld, 16, GROUP) : line_whole(from + i * ld);
    if (across != by_groups) turn(t);
    UNROLLED for (int i = 0; i < 16; i++) line_put(to + i * 64, t[i]);
}

// What a square at the edge has, its rows one after the other, and 0 for what lies outside the matrix. Writes 64 bytes
// for each row, in order, so that the next row sets them right.
static __attribute__((noinline)) void pad_square(char *to, int across, const char *from, long ld, long rows, long k) {
    long row = across ? 16 * ES : 64, bytes = (across ? least(rows, 16) : k) * ES, filled = across ? k : rows;
    for (long i = 0; i < 1024 / row; i++)
        line_put(to + i * row, i < filled ? line_part(from + i * ld, bytes) : line_zero());
}

typedef void (*copy)(char *to, const char *from, long ld);

ALWAYS_INLINE void copy_some(copy whole, int by_groups, char *to, int across, const char *from, long ld, long rows,
                             long k) {
    char padded[1024 + 64];
    if (rows < 16 || k < DEPTH) {
        int as_it_is = !across && !by_groups;
        pad_square(as_it_is ? to : padded, across, from, ld, rows, k);
        if (as_it_is) return;
        from = padded, ld = across ? 16 * ES : 64;
    }
    whole(to, from, ld);
}
