// The innermost loop with AMX: MR x NR tiles of sums, each 16 x 16, and 64 bytes along K at a time.
#include "tiles.h"

#define FEW(a, b) ((a) < (b) ? (a) : (b))

// The operand with fewer tiles keeps a register for each of them; the other one's tiles pass through the rest.
enum {
    SPARE = 8 - MR * NR,
    LEFT_TILES = MR <= NR ? MR : FEW(MR, SPARE - NR),
    RIGHT_TILES = MR <= NR ? FEW(NR, SPARE - MR) : NR,
};
#define SUM_TILE(i, j) ((i) * NR + (j))
#define LEFT_TILE(i) (MR * NR + (i) % LEFT_TILES)
#define RIGHT_TILE(j) (MR * NR + LEFT_TILES + (j) % RIGHT_TILES)

static void begin_thread(void) {
    static const tile_shapes all_whole = {.palette = 1,
                                          .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                          .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    tile_configure(&all_whole);
}
static void end_thread(void) { tile_release(); }

ALWAYS_INLINE void take_left_tile(int t, const char *from, long row) {
    if (PASSING == 1)
        tile_stream(t, from, row);
    else
        tile_load(t, from, row);
}

ALWAYS_INLINE void take_right_tile(int t, const char *from) {
    if (PASSING == 2)
        tile_stream(t, from, 64);
    else
        tile_load(t, from, 64);
}

ALWAYS_INLINE void dots(int mr, int nr, const char *left, long row, long tile, const char *right) {
    if (MR <= NR) {
        UNROLLED for (int i = 0; i < mr; i++) take_left_tile(LEFT_TILE(i), left + i * tile, row);
        UNROLLED for (int j = 0; j < nr; j++) {
            take_right_tile(RIGHT_TILE(j), right + j * 1024);
            UNROLLED for (int i = 0; i < mr; i++) tile_dot(SUM_TILE(i, j), LEFT_TILE(i), RIGHT_TILE(j));
        }
    } else {
        UNROLLED for (int j = 0; j < nr; j++) take_right_tile(RIGHT_TILE(j), right + j * 1024);
        UNROLLED for (int i = 0; i < mr; i++) {
            take_left_tile(LEFT_TILE(i), left + i * tile, row);
            UNROLLED for (int j = 0; j < nr; j++) tile_dot(SUM_TILE(i, j), LEFT_TILE(i), RIGHT_TILE(j));
        }
    }
}

ALWAYS_INLINE void product_of(int mr, int nr, const product *p) {
    UNROLLED for (int i = 0; i < mr; i++) UNROLLED for (int j = 0; j < nr; j++) {
        if (p->sums_in == ZERO_SUMS)
            tile_zero(SUM_TILE(i, j));
        else if (p->sums_in != KEPT_SUMS)
            tile_load(SUM_TILE(i, j), p->sums_in + i * 16 * p->sums_in_row + j * 64, p->sums_in_row);
    }
    const char *left = p->left, *right = p->right;
    for (long t = 0; t < p->depth; t++, left += p->left_step, right += NR * 1024) {
        dots(mr, nr, left, p->left_row, p->left_tile, right);
        step_aside(&p->aside);
        if (PREFETCH)
            UNROLLED for (int i = 0; i < mr * 16; i++)
                __builtin_prefetch(left + PREFETCH * p->left_step + i * p->left_row, 0, 3);
    }
    if (p->edge) dots(mr, nr, p->edge, 64, 1024, right);
    if (p->sums_out == KEPT_SUMS) return;
    UNROLLED for (int i = 0; i < mr; i++) UNROLLED for (int j = 0; j < nr; j++)
        tile_store(SUM_TILE(i, j), p->sums_out + i * 16 * p->sums_row + j * 64, p->sums_row);
}

// The product with as many tiles as there are rows and columns left.
static void multiply(long rows, long columns, const product *p) {
    int mr = rows > (MR - 1) * 16 ? MR : (int)ceil_div(rows, 16);
    int nr = columns > (NR - 1) * 16 ? NR : (int)ceil_div(columns, 16);
    UNROLLED for (int i = MR; i > 0; i--) UNROLLED for (int j = NR; j > 0; j--)
        if (i == mr && j == nr) {
            product_of(i, j, p);
            return;
        }
}
