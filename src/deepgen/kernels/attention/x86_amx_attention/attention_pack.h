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

// 16 columns of two rows of V: their numbers in turn.
ALWAYS vec interleaved(const stored *v, long row, long columns, long rows) {
    vec first = rows > 0 && columns > 0 ? get_part(v, columns) : fill(0);
    vec second = rows > 1 && columns > 0 ? get_part(v + row, columns) : fill(0);
    return (vec)(((bits)first >> 16 & 0xffff) | (bits)second);
}

ALONE static void pack_values(block *to, const stored *v, long row, long count) {
    for (long pair = 0; pair < (count + 31) / 32; pair++)
        for (long e = 0; e < 16; e++)
            for (long c = 0; c < COLUMNS; c++) {
                long key = pair * 32 + e * 2;
                put((num *)(to->v[c][pair] + e * 32), interleaved(v + key * row + c * 16, row, DV - c * 16, count - key));
            }
}
