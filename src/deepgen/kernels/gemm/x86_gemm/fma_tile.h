// The register tile: MR rows x NR vectors of C; a K step loads NR vectors of B and broadcasts MR numbers of A.

// Where a tile is on its way along K. Rows that lie any distance apart are reached from a pointer for every three of
// them: an address takes a register once or twice, and a pointer to each row would leave none for anything else.
enum { A_POINTERS = PACK_A ? 1 : ((A_T ? UNROLL : MR) + 2) / 3, B_POINTERS = (UNROLL + 2) / 3 };

typedef struct {
    const float *a[A_POINTERS], *b[B_POINTERS];
    long lda, ldb;  // bytes, which an address takes as they are
    float *copy;  // where B is packed meanwhile, if it is
} place;

ALWAYS_INLINE place start(const float *a, long lda, const float *b, long ldb, float *copy) {
    place at = {.lda = lda * 4, .ldb = ldb * 4, .copy = copy};
    UNROLLED for (int i = 0; i < A_POINTERS; i++) at.a[i] = a + 3 * i * lda;
    UNROLLED for (int i = 0; i < B_POINTERS; i++) at.b[i] = b + 3 * i * ldb;
    return at;
}

ALWAYS_INLINE void move(const float **p, long bytes) {
    *p = (const float *)((const char *)*p + bytes);
    __asm__("" : "+r"(*p));
}

// So many steps on. The compiler learns nothing of pointers and distances: it would keep sums of them, in more
// registers than there are.
ALWAYS_INLINE void advance(place *at, int copying, int steps) {
    UNROLLED for (int i = 0; i < A_POINTERS; i++)
        move(&at->a[i], steps * (PACK_A == 2 ? MR * 4 : A_T && !PACK_A ? at->lda : 4));
    UNROLLED for (int i = 0; i < B_POINTERS; i++) move(&at->b[i], steps * at->ldb);
    __asm__("" : "+r"(at->lda), "+r"(at->ldb));
    if (copying) at->copy += steps * COLS;
}

ALWAYS_INLINE const float *row_of(const float *const from[], long bytes, int i) {
    return (const float *)((const char *)from[i / 3] + i % 3 * bytes);
}

// Number (i, u) of A from here.
ALWAYS_INLINE const float *number(const place *at, int i, int u) {
    if (PACK_A == 2) return at->a[0] + u * MR + i;
    if (PACK_A == 1) return at->a[0] + i * A_ROW + u;
    return A_T ? row_of(at->a, at->lda, u) + i : row_of(at->a, at->lda, i) + u;
}

// In its own register: given the choice, the compiler moves sums from one to another, runs out of them and spills.
ALWAYS_INLINE void add(vec *sum, vec x, vec y) { __asm__("vfmadd231ps %2, %1, %0" : "+v"(*sum) : "v"(x), "v"(y)); }

// Step u from here. Whether B is packed on the way is a constant, or every step would have a branch.
ALWAYS_INLINE void step(vec acc[MR][NR], int nv, int part, int copying, mask last, const place *at, int u) {
    vec row[NR];
    const float *b = PACK_B && !copying ? at->b[0] + u * COLS : row_of(at->b, at->ldb, u);
    UNROLLED for (int j = 0; j < nv; j++) {
        row[j] = (!PACK_B || copying) && part && j == nv - 1 ? load_part(b + j * VL, last) : load(b + j * VL);
        if (PREFETCH && !copying) __builtin_prefetch(b + (j + PREFETCH) * VL);
        if (PACK_FETCH && copying) __builtin_prefetch(b + ROWS_AHEAD * at->ldb / 4 + j * VL);
        if (copying) store(at->copy + u * COLS + j * VL, row[j]);
    }
    UNROLLED for (int i = 0; i < MR; i++) {
        vec x = all(*number(at, i, u));
        UNROLLED for (int j = 0; j < nv; j++) add(&acc[i][j], x, row[j]);
    }
  // loads of a later step brought forward to this one would not fit in registers
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
ALWAYS_INLINE void turn(vec acc[MR][NR], int nv, int part, int copying, int unroll, mask last, place *at,
                        lines *later) {
    if (PREFETCH_A && !A_T && !PACK_A)
        UNROLLED for (int i = 0; i < MR; i++) __builtin_prefetch(number(at, i, PREFETCH_A));
    UNROLLED for (int u = 0; u < unroll; u++) {
        UNROLLED for (int i = 0; i < NEXT_LINES; i++)
            if (ASKS && i * unroll / NEXT_LINES == u) ask_for_line(later, i);
        step(acc, nv, part, copying, last, at, u);
    }
    if (ASKS) pass(later);
    advance(at, copying, unroll);
}

// The tile at row `row` and column `column` of what `r` describes. nv vectors wide; `part` when the last one is not
// whole; `copying` when B is packed meanwhile. All are constants where this is inlined. An unrolled loop stands here
// once, because a compiler takes as long as its text; a short one twice, because gcc then moves no sums about.
ALWAYS_INLINE void tile(int nv, int part, int copying, int unroll, mask last, long rows, long cols, long kc, place at,
                        lines *later, const result *r, long row, long column) {
    vec acc[MR][NR];
    UNROLLED for (int i = 0; i < MR; i++) UNROLLED for (int j = 0; j < nv; j++) acc[i][j] = all(0);
    lines asked = *later;
    long turns = kc / unroll;
    const float *c = tile_at(*r, row, column).c;
    if (!SWAP && unroll > 1) {  // C is asked for a row at a time: a turn after each, and after the last one the rest
        for (long i = 1; turns > 0; i++, c += r->ldc) {
            UNROLLED for (int j = 0; j < nv; j++) __builtin_prefetch(c + j * VL, 1);
            long now = i < rows ? 1 : turns;
            turns -= now;
            do turn(acc, nv, part, copying, unroll, last, &at, &asked);
            while (--now);
        }
    } else {
        for (long i = 0; !SWAP && i < rows && turns > 0; i++, turns--, c += r->ldc) {
            UNROLLED for (int j = 0; j < nv; j++) __builtin_prefetch(c + j * VL, 1);
            turn(acc, nv, part, copying, unroll, last, &at, &asked);
        }
        for (; turns > 0; turns--) turn(acc, nv, part, copying, unroll, last, &at, &asked);
    }
    *later = asked;
    ROLLED for (long k = kc % unroll; k > 0; k--) {
        step(acc, nv, part, copying, last, &at, 0);
        advance(&at, copying, 1);
    }
    result own = tile_at(*r, row, column);  // so that no store to C seems to change it
    put(acc, nv, part, last, rows, cols, &own);
}

// Widths that the shape which the kernel was made for does not have are not worth the compiler's time.
#define TILE(name, nv, part, unroll)                                                                                \
    __attribute__((noinline)) static void name(mask last, long rows, long cols, long kc, const float *a, long lda, \
                                               const float *b, long ldb, lines *later, const result *r,      \
                                               long row, long column) {                                            \
        place at = start(a, lda, b, PACK_B ? COLS : ldb, 0);                                                        \
        tile(nv, part, 0, unroll, last, rows, cols, kc, at, later, r, row, column);                                    \
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
// Tiles of the first strip of A: they read B where it lies, and pack it for the strips that follow.
#define PACKING_TILE(name, nv, part)                                                                                \
    __attribute__((noinline)) static void name(mask last, long rows, long cols, long kc, const float *a, long lda, \
                                               const float *b, long ldb, float *copy, lines *later,                 \
                                               const result *r, long row, long column) {                            \
        tile(nv, part, 1, UNROLL, last, rows, cols, kc, start(a, lda, b, ldb, copy), later, r, row, column);        \
    }
PACKING_TILE(packing_tile, NR, 0)
PACKING_TILE(packing_tail, (TAIL ? TAIL : 1), 1)
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
