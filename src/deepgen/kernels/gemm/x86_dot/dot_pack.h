// Operands in the order in which products read them.

// A panel of the left operand: rows of groups, LEFT_ROW bytes apart. Missing rows and numbers are 0.
static void pack_left(char *to, matrix x, long row, long rows, long k, long depth) {
    if (!LEFT_ACROSS) {
        for (long i = 0; i < MR; i++)
            for (long d = 0; d < depth; d += LINE)
                line_put(to + i * LEFT_ROW + d / GROUP * 4,
                         i < rows ? line_along(place(x, 0, row + i, k + d), depth - d) : line_zero());
        return;
    }
    for (long i = 0; i < MR; i += 16)
        for (long d = 0; d < depth; d += LINE) {
            line t[16];
            UNROLLED for (int g = 0; g < 16; g++) {
                line some[GROUP];
                lines_across(some, place(x, 1, row + i, k + d + g * GROUP), x.ld, least(16, rows - i), depth - d - g * GROUP);
                t[g] = some[0];
            }
            turn(t);
            UNROLLED for (int r = 0; r < 16; r++) line_put(to + (i + r) * LEFT_ROW + d / GROUP * 4, t[r]);
        }
}

ALWAYS_INLINE line shifted(line x) { return SHIFTED ? line_shifted(x) : x; }

// 16 columns of the right operand over a LINE of K, some of which may be missing, or whose groups lie as no floats do.
static __attribute__((noinline)) void other_square(char *to, const char *from, long ld, long columns, long depth) {
    line t[16], rows[16];
    for (long i = 0; i < 16; i++) line_put(&rows[i], i < columns ? line_along(from + i * ld, depth) : line_zero());
    UNROLLED for (int i = 0; i < 16; i++) memcpy(&t[i], &rows[i], 64);
    turn(t);
    UNROLLED for (int g = 0; g < 16; g++) line_put(&rows[g], shifted(t[g]));
    for (long g = 0; g < 16 && g * GROUP < depth; g++) memcpy(to + g * GROUP_BYTES, &rows[g], 64);
}

// Columns of the right operand into panels: group after group of COLS columns. Missing columns are whatever gives sums
// that nobody stores; missing numbers along K are 0 where the left operand's are.
static void pack_right(char *to, long panel_bytes, matrix x, long column, long columns, long k, long depth) {
    const char *from = place(x, RIGHT_ACROSS, column, k);
    if (RIGHT_ACROSS) {
        for (long g = 0; g * GROUP < depth; g++, from += GROUP * x.ld) {
            if (PACK_AHEAD)
                for (long b = 0; b < columns * ES; b += 64)
                    UNROLLED for (int e = 0; e < GROUP; e++)
                        __builtin_prefetch(from + (PACK_AHEAD * GROUP + e) * x.ld + b, 0, 3);
            for (long j = 0; j < columns; j += LINE) {
                line some[GROUP];
                lines_across(some, from + j * ES, x.ld, columns - j, depth - g * GROUP);
                UNROLLED for (int v = 0; v < GROUP; v++) {
                    long c = j + v * 16;
                    if (c < columns) line_put(to + c / COLS * panel_bytes + g * GROUP_BYTES + c % COLS * 4, shifted(some[v]));
                }
            }
        }
        return;
    }
    for (long j = 0; j < columns; j += 16)
        for (long d = 0; d < depth; d += LINE) {
            const char *first = from + j * x.ld + d * ES;
            if (PACK_AHEAD)
                UNROLLED for (int i = 0; i < 16; i++) __builtin_prefetch(first + i * x.ld + PACK_AHEAD * 64, 0, 3);
            char *at = to + j / COLS * panel_bytes + d / GROUP * GROUP_BYTES + j % COLS * 4;
            if (columns - j < 16 || depth - d < LINE || (!WIDENED && x.ld % 4)) {
                other_square(at, first, x.ld, columns - j, depth - d);
                continue;
            }
            line t[16];
            lines_turned(t, first, x.ld);
            UNROLLED for (int g = 0; g < 16; g++) line_put(at + g * GROUP_BYTES, shifted(t[g]));
        }
}
