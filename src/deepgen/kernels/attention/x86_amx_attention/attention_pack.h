// Copies of Q, K and V as tiles read them, with zeros where there is nothing.

// A line of up to 32 numbers.
ALWAYS vec line_of(const stored *from, long count) {
#if defined(__AVX512BW__)
    __mmask32 some = count >= 32 ? ~0u : count <= 0 ? 0 : (1u << count) - 1;
    return (vec)_mm512_maskz_loadu_epi16(some, from);
#else
    vec x = {0};
    if (count > 0) memcpy(&x, from, (count < 32 ? count : 32) * sizeof *from);
    return x;
#endif
}

// 16 rows of Q, or zeros where there are fewer.
ALONE static void pack_queries(stored *to, const stored *q, long row, long rows) {
    for (long d = 0; d < DEPTHS; d++)
        for (long e = 0; e < 16; e++, to += 32)
            put((num *)to, e < rows ? line_of(q + e * row + d * 32, D - d * 32) : fill(0));
}

// 16 keys become columns: pairs of their numbers are turned like single ones of f32.
ALONE static void pack_keys(block *to, const stored *k, long row, long count) {
    for (long tile = 0; tile < 2 * ((count + 31) / 32); tile++)
        for (long d = 0; d < DEPTHS; d++) {
            vec t[LANES];
            UNROLLED EACH(LANES, e) {
                long key = tile * 16 + e;
                t[e] = key < count ? line_of(k + key * row + d * 32, D - d * 32) : fill(0);
            }
            transpose(t);
            UNROLLED EACH(LANES, e) put((num *)(to->k[tile][d] + e * 32), t[e]);
        }
}

// The first and the last 16 numbers of two rows of V, in turn.
typedef stored halves __attribute__((vector_size(64)));
#define FIRST_PAIRS \
    0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, \
    45, 14, 46, 15, 47
#define LAST_PAIRS \
    16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, \
    60, 29, 61, 30, 62, 31, 63
#if defined(__clang__)
#define PAIRED(a, b, ...) (vec) __builtin_shufflevector((halves)(a), (halves)(b), __VA_ARGS__)
#else
#define PAIRED(a, b, ...) (vec) __builtin_shuffle((halves)(a), (halves)(b), (halves){__VA_ARGS__})
#endif

ALONE static void pack_values(block *to, const stored *v, long row, long count) {
    for (long key = 0; key < (count + 31) / 32 * 32; key += 2, v += 2 * row) {
        stored *at = to->v[0][key / 32] + key % 32 * 16;
        for (long c = 0; c < COLUMNS; c += 2) {
            vec even = key < count ? line_of(v + c * 16, DV - c * 16) : fill(0);
            vec odd = key + 1 < count ? line_of(v + row + c * 16, DV - c * 16) : fill(0);
            put((num *)(at + c * PAIRS * HALVES), PAIRED(even, odd, FIRST_PAIRS));
            put((num *)(at + (c + 1) * PAIRS * HALVES), PAIRED(even, odd, LAST_PAIRS));
        }
    }
}
