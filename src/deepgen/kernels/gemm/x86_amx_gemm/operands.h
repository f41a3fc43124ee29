// The operands of a product: panels of the left one, and blocks of the right one packed into panels.

static __attribute__((noinline)) void copy_left(char *to, const char *from, long ld) {
    copy_square(to, LEFT_ACROSS, 0, from, ld);
}

// A panel of the left operand, packed: for each square along K, tile after tile of 16 rows of 64 bytes.
static void pack_left(char *to, matrix x, long row, long rows, long k, long depth) {
    for (long d = 0; d < depth; d += DEPTH)
        for (long i = 0; i < ROWS; i += 16, to += 1024)
            copy_some(copy_left, 0, to, LEFT_ACROSS, place(x, LEFT_ACROSS, row + i, k + d), x.ld, rows - i,
                      depth - d);
}

// A panel of the right operand, packed: NR squares for each DEPTH numbers along K.
static inline long panel_bytes(long depth) { return ceil_div(depth, DEPTH) * NR * 1024; }

// Columns that lie across, GROUP lines of them at a time: whole lines in, whole lines out.
static void pack_across(char *to, const char *from, long ld, long columns, long depth) {
    const long panel = panel_bytes(depth);
    for (long k = 0; k < ceil_div(depth, DEPTH) * DEPTH; k += GROUP, from += GROUP * ld) {
        char *at = to + k / DEPTH * NR * 1024 + k % DEPTH / GROUP * 64;
        long j = 0, v = 0;
        if (depth - k >= GROUP)
            for (; j + 16 * GROUP <= columns; j += 16 * GROUP) {
                line t[GROUP];
                if (PACK_AHEAD)
                    UNROLLED for (int e = 0; e < GROUP; e++)
                        __builtin_prefetch(from + (PACK_AHEAD * GROUP + e) * ld + j * ES, 0, 2);
                interleave_lines(t, from + j * ES, ld);
                UNROLLED for (int e = 0; e < GROUP; e++, v++) line_put(at + v / NR * panel + v % NR * 1024, t[e]);
            }
        for (; j < columns; j += 16, v++)
            line_put(at + v / NR * panel + v % NR * 1024, interleave(0, from + j * ES, ld, columns - j, depth - k));
    }
}

static __attribute__((noinline)) void copy_right(char *to, const char *from, long ld) {
    copy_square(to, 0, 1, from, ld);
}

// Columns that lie along K, a square at a time.
static void pack_along(char *to, const char *from, long ld, long columns, long depth) {
    const long panel = panel_bytes(depth);
    for (long j = 0; j < columns; j += 16)
        for (long k = 0; k < depth; k += DEPTH) {
            const char *at = from + j * ld + k * ES;
            char *square = to + j / COLS * panel + k / DEPTH * NR * 1024 + j % COLS * 64;
            if (PACK_AHEAD)
                UNROLLED for (int i = 0; i < 16; i++) __builtin_prefetch(at + i * ld + PACK_AHEAD * 64, 0, 2);
            copy_some(copy_right, 1, square, 0, at, ld, columns - j, depth - k);
        }
}

static void pack_right(char *to, matrix x, long column, long columns, long k, long depth) {
    for (long j = 0; j < columns; j += GATHER * COLS, to += GATHER * panel_bytes(depth)) {
        const char *from = place(x, RIGHT_ACROSS, column + j, k);
        long some = least(GATHER * COLS, columns - j);
        if (RIGHT_ACROSS)
            pack_across(to, from, x.ld, some, depth);
        else
            pack_along(to, from, x.ld, some, depth);
    }
}

// Where a right operand that was packed ahead of time has a column's panel, from k on. Its panels go over the whole of K,
// so that blocks and tasks of any size find theirs; they lie `ld` bytes apart.
static inline const char *packed_place(matrix x, long column, long k) {
    return x.at + column / COLS * x.ld + k / DEPTH * NR * 1024;
}
