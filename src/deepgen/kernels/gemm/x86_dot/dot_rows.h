// Few rows of A by rows of B, both along K: sums along K in vectors, nothing packed, B read once and in order. MR rows of
// A and NR of B at a time.

static inline sum reduced(sums x) {
#if defined(__AVX512F__) && !defined(EMULATE) && INPUT == 0
    return _mm512_reduce_add_epi32((__m512i)x);
#elif defined(__AVX512F__) && !defined(EMULATE)
    return _mm512_reduce_add_ps((__m512)x);
#else
    sum total = 0;
    for (int i = 0; i < PIECE; i++) total += x[i];
    return total;
#endif
}

// MR x NR sums into `to`, whose rows are COLS apart. Rows that are missing repeat the last one.
static void rows_tile(sum *to, const product *p, matrix b, long columns, long K) {
    sums s[MR][NR];
    const char *left[MR], *right[NR];
    UNROLLED for (int i = 0; i < MR; i++) left[i] = p->left + least(i, p->rows - 1) * p->left_row;
    UNROLLED for (int j = 0; j < NR; j++) right[j] = b.at + least(j, columns - 1) * b.ld;
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int j = 0; j < NR; j++) s[i][j] = (sums){0};
    for (long k = 0; k < K; k += LINE) {
        // Past the end of a row comes the beginning of the row that follows NR later.
        long ahead = k + PACK_AHEAD * LINE, wrapped = ahead < K ? ahead * ES : NR * b.ld + (ahead - K) * ES;
        groups r[NR];
        UNROLLED for (int j = 0; j < NR; j++) {
            if (PACK_AHEAD) __builtin_prefetch(right[j] + wrapped, 0, 3);
            line x = shifted(line_along(right[j] + k * ES, K - k));
            memcpy(&r[j], &x, 64);
        }
        UNROLLED for (int i = 0; i < MR; i++) {
            line x = line_along(left[i] + k * ES, K - k);
            groups l;
            memcpy(&l, &x, 64);
            UNROLLED for (int j = 0; j < NR; j++) s[i][j] = dot(s[i][j], l, r[j]);
        }
    }
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int j = 0; j < NR; j++)
        to[i * COLS + j] = reduced(s[i][j]) + (SHIFTED ? (sum)p->start[i] : 0);
}

// MC rows of A at a time: COLS rows of B, once read, serve all of them.
static void serial_gemm(const course *g) {
    scratch *s = g->s;
    for (long first_row = 0; first_row < g->P; first_row += MC_WHOLE) {
        const long end = least(g->P, first_row + MC_WHOLE);
        for (long column = 0; column < g->Q; column += COLS)
            for (long row = first_row; row < end; row += MR) {
                product p = {.left = place(g->left, 0, row, 0), .left_row = g->left.ld, .rows = least(MR, end - row)};
                p.start = s->starts + row - first_row;
                if (SHIFTED && column == 0) start_sums(s->starts + row - first_row, &p, g->K);
                const long columns = least(COLS, g->Q - column);
                for (long j = 0; j < columns; j += NR) {
                    matrix b = {place(g->right, 0, column + j, 0), g->right.ld};
                    rows_tile((sum *)s->sums + j, &p, b, columns - j, g->K);
                }
                finish(s, p.rows, columns, row, column, g->r);
            }
    }
}
