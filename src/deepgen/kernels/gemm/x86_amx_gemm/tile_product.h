// The innermost loop: MR x NR tiles of sums, each 16 x 16, and 64 bytes along K at a time.
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

// Distances are in bytes.
typedef struct {
    const char *left;
    long left_row, left_step, left_tile;  // from row to row, from square to square along K, from 16 rows to the next
    const char *right;
    long depth;        // squares along K
    const char *edge;  // one square more of the left operand, packed, where K is not whole squares; or 0
    int backwards;
    const char *sums_in;  // or 0
    char *sums_out;
    long sums_in_row, sums_row;
    aside *aside;
} product;

// Tiles are always whole but for their rows, where the left operand has less than one tile of them: products, and sums
// that wait in memory, then take as much less time.
static void begin_thread(long left_rows) {
    tile_shapes shapes = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        shapes.row_bytes[t] = 64;
        shapes.rows[t] = t < MR * NR + LEFT_TILES ? (uint8_t)least(left_rows, 16) : 16;
    }
    tile_configure(&shapes);
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

// Each tile is loaded just before the first product that needs it: products and loads take turns, neither waits in a row.
ALWAYS_INLINE void dots(int mr, int nr, const char *left, long row, long tile, const char *right) {
    if (MR <= NR) {
        UNROLLED for (int j = 0; j < nr; j++) UNROLLED for (int i = 0; i < mr; i++) {
            if (j == 0) take_left_tile(LEFT_TILE(i), left + i * tile, row);
            if (i == 0) take_right_tile(RIGHT_TILE(j), right + j * 1024);
            tile_dot(SUM_TILE(i, j), LEFT_TILE(i), RIGHT_TILE(j));
        }
    } else {
        UNROLLED for (int i = 0; i < mr; i++) UNROLLED for (int j = 0; j < nr; j++) {
            if (j == 0) take_left_tile(LEFT_TILE(i), left + i * tile, row);
            if (i == 0) take_right_tile(RIGHT_TILE(j), right + j * 1024);
            tile_dot(SUM_TILE(i, j), LEFT_TILE(i), RIGHT_TILE(j));
        }
    }
}

// Between the steps of products at the edges, of which there are many kinds and none runs often.
static __attribute__((noinline)) void step_aside_there(aside *x) { step_aside(x); }

ALWAYS_INLINE void product_of(int mr, int nr, const product *p) {
    UNROLLED for (int i = 0; i < mr; i++) UNROLLED for (int j = 0; j < nr; j++) {
        if (p->sums_in)
            tile_load(SUM_TILE(i, j), p->sums_in + i * 16 * p->sums_in_row + j * 64, p->sums_in_row);
        else
            tile_zero(SUM_TILE(i, j));
    }
    if (p->edge) dots(mr, nr, p->edge, 64, 1024, p->right + p->depth * NR * 1024);
    const char *left = p->left, *right = p->right;
    long left_step = p->left_step, right_step = NR * 1024;
    if (SNAKE && p->backwards) {
        left += (p->depth - 1) * left_step, right += (p->depth - 1) * right_step;
        left_step = -left_step, right_step = -right_step;
    }
    for (long t = 0; t < p->depth; t++, left += left_step, right += right_step) {
        dots(mr, nr, left, p->left_row, p->left_tile, right);
        if (mr == MR && nr == NR)
            step_aside(p->aside);
        else
            step_aside_there(p->aside);
    }
    UNROLLED for (int i = 0; i < mr; i++) UNROLLED for (int j = 0; j < nr; j++)
        tile_store(SUM_TILE(i, j), p->sums_out + i * 16 * p->sums_row + j * 64, p->sums_row);
}

static __attribute__((noinline)) void whole_product(const product *p) { product_of(MR, NR, p); }

// The product with as many tiles as there are rows and columns left.
static void multiply(long rows, long columns, const product *p) {
    int mr = rows > (MR - 1) * 16 ? MR : (int)ceil_div(rows, 16);
    int nr = columns > (NR - 1) * 16 ? NR : (int)ceil_div(columns, 16);
    if (mr == MR && nr == NR) {
        whole_product(p);
        return;
    }
    UNROLLED for (int i = MR; i > 0; i--) UNROLLED for (int j = NR; j > 0; j--)
        if (i * j < MR * NR && i == mr && j == nr) {
            product_of(i, j, p);
            return;
        }
}
