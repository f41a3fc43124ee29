// The register tile: MR rows x NR vectors of C; a K step loads NR vectors of B and broadcasts MR numbers of A.

// Where number (i, k) of a strip of A lies.
#if PACK_A == 2
#define A_AT(a, lda, i, k) a[(k) * MR + (i)]
#elif PACK_A == 1
#define A_AT(a, lda, i, k) a[(i) * A_ROW + (k)]
#elif A_T
#define A_AT(a, lda, i, k) a[(k) * (lda) + (i)]
#else
#define A_AT(a, lda, i, k) a[(i) * (lda) + (k)]
#endif

// With `copy`, elsewhere a null constant, the row of B comes from where it lies and goes to its place in a packed one.
ALWAYS_INLINE void step(vec acc[MR][NR], int nv, int part, mask last, const float *a, long lda, const float *b,
                        long ldb, float *copy) {
    (void)lda, (void)ldb;  // of no use when A is packed, or nothing is copied
    vec row[NR];
    UNROLLED for (int j = 0; j < nv; j++) {
        row[j] = !PACK_B && part && j == nv - 1 ? load_part(b + j * VL, last) : load(b + j * VL);
        if (PREFETCH && !copy) __builtin_prefetch(b + (j + PREFETCH) * VL);
        if (PACK_FETCH && copy) __builtin_prefetch(b + ROWS_AHEAD * ldb + j * VL);
        if (copy) store(copy + j * VL, row[j]);
    }
    UNROLLED for (int i = 0; i < MR; i++) {
        vec x = all(A_AT(a, lda, i, 0));
        UNROLLED for (int j = 0; j < nv; j++) acc[i][j] = madd(x, row[j], acc[i][j]);
    }
}

// The sums of a tile as rows of C. Swapped, a tile holds columns of C: squares of it are turned in registers.
ALWAYS_INLINE void put(vec acc[MR][NR], int nv, int part, mask last, long rows, long cols, const result *r) {
#if SWAP
    (void)part, (void)last;
    mask filled = first(rows);
    UNROLLED for (int j = 0; j < nv; j++) {
        vec t[VL];
        UNROLLED for (int i = 0; i < VL; i++) t[i] = i < MR ? acc[i < MR ? i : 0][j] : all(0);
        transpose(t);
        long n = least(VL, cols - j * VL);
        UNROLLED for (int i = 0; i < VL; i++)
            if (i < n) finish(t[i], r->c + (j * VL + i) * r->ldc, 0, 1, filled, r);
    }
#else
    (void)cols;
    UNROLLED for (int i = 0; i < MR; i++) {
        if (i >= rows) break;
        float *c = r->c + i * r->ldc;
        UNROLLED for (int j = 0; j < nv; j++) finish(acc[i][j], c, j * VL, part && j == nv - 1, last, r);
    }
#endif
}

// `unroll` steps, and what is asked for meanwhile: A some steps ahead, and what other tiles will need. A few lines at a
// time: many at once would keep those waiting that this tile needs.
ALWAYS_INLINE void turn(vec acc[MR][NR], int nv, int part, int unroll, mask last, const float *a, long lda,
                        const float *b, long ldb, float *copy, lines *later) {
    if (PREFETCH_A && !A_T && !PACK_A)
        UNROLLED for (int i = 0; i < MR; i++) __builtin_prefetch(&A_AT(a, lda, i, PREFETCH_A));
    if (ASKS) UNROLLED for (int i = 0; i < NEXT_LINES; i++) ask_for_line(later);
    UNROLLED for (int u = 0; u < unroll; u++)
        step(acc, nv, part, last, &A_AT(a, lda, 0, u), lda, b + u * ldb, ldb, copy ? copy + u * COLS : 0);
}

// The tile at row `row` and column `column` of what `r` describes. nv vectors wide; `part` when the last one is not
// whole. Both are constants where this is inlined.
ALWAYS_INLINE void tile(int nv, int part, int unroll, mask last, long rows, long cols, long kc, const float *a,
                        long lda, const float *b, long ldb, float *copy, lines *later, const result *r, long row,
                        long column) {
#define COPY(k) (copy ? copy + (k) * COLS : 0)
    vec acc[MR][NR];
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int j = 0; j < nv; j++) acc[i][j] = all(0);
    result own = tile_at(*r, row, column);  // so that no store to C seems to change it
    lines asked = *later;
    long k = 0;
    if (!SWAP) {  // C is asked for a row at a time
        float *c = own.c;
        for (long i = 0; i < rows && k + unroll <= kc; i++, k += unroll, c += own.ldc) {
            UNROLLED for (int j = 0; j < nv; j++) __builtin_prefetch(c + j * VL, 1);
            turn(acc, nv, part, unroll, last, &A_AT(a, lda, 0, k), lda, b + k * ldb, ldb, COPY(k), &asked);
        }
    }
    for (; k + unroll <= kc; k += unroll)
        turn(acc, nv, part, unroll, last, &A_AT(a, lda, 0, k), lda, b + k * ldb, ldb, COPY(k), &asked);
    *later = asked;
    for (; k < kc; k++) step(acc, nv, part, last, &A_AT(a, lda, 0, k), lda, b + k * ldb, ldb, COPY(k));
    put(acc, nv, part, last, rows, cols, &own);
}

// Widths that the shape which the kernel was made for does not have are not worth the compiler's time.
#define TILE(name, nv, part, unroll)                                                                                \
    __attribute__((noinline)) static void name(mask last, long rows, long cols, long kc, const float *a, long lda, \
                                               const float *b, long ldb, lines *later, const result *r,      \
                                               long row, long column) {                                            \
        tile(nv, part, unroll, last, rows, cols, kc, a, lda, b, ldb, 0, later, r, row, column);                     \
    }
#define PART_TILE(nv) TILE(part_tile_##nv, nv, 1, (nv == TAIL ? UNROLL : 1))
TILE(whole_tile, NR, 0, UNROLL)
PART_TILE(1)
#if NR > 1
PART_TILE(2)
#endif
#if NR > 2
PART_TILE(3)
#endif
#if NR > 3
PART_TILE(4)
#endif
#if NR > 4
PART_TILE(5)
#endif
#if NR > 5
PART_TILE(6)
#endif
#if NR > 6
PART_TILE(7)
#endif
#if NR > 7
PART_TILE(8)
#endif

#if PACK_B == 4
// The tile of the first strip of A: it reads B where it lies, and packs it for the strips that follow.
__attribute__((noinline)) static void packing_tile(long rows, long kc, const float *a, long lda, const float *b,
                                                   long ldb, float *copy, lines *later, const result *r,
                                                   long row, long column) {
    tile(NR, 0, UNROLL, first(VL), rows, COLS, kc, a, lda, b, ldb, copy, later, r, row, column);
}
#endif

typedef void (*tile_kernel)(mask, long, long, long, const float *, long, const float *, long, lines *,
                            const result *, long, long);
static const tile_kernel part_tiles[] = {
    part_tile_1,
#if NR > 1
    part_tile_2,
#endif
#if NR > 2
    part_tile_3,
#endif
#if NR > 3
    part_tile_4,
#endif
#if NR > 4
    part_tile_5,
#endif
#if NR > 5
    part_tile_6,
#endif
#if NR > 6
    part_tile_7,
#endif
#if NR > 7
    part_tile_8,
#endif
};
