// Both products of a step on tiles, a little at a time: 2 x 2 squares of sums, and 32 numbers along the depth.
//
// Registers of tiles: sums 0 to 3, rows 4 and 5, columns 6 and 7.

static void begin_thread(void) {
    tile_shapes shapes = {.palette = 1};
    EACH(8, t) shapes.row_bytes[t] = 64, shapes.rows[t] = 16;
    tile_configure(&shapes);
}
static void end_thread(void) { tile_release(); }

// How far a product of a step has come: which squares of sums, and where along the depth. Done where `of` is 0.
typedef struct {
    const step *of;
    long squares, depth;
} walk;

ALWAYS void multiply(const stored *rows, long to_second, const stored *columns, long to_next, int two) {
    tile_load(4, rows, 64);
    tile_load(6, columns, 64);
    tile_dot(0, 4, 6);
    tile_load(7, columns + to_next, 64);
    tile_dot(1, 4, 7);
    if (two) {
        tile_load(5, rows + to_second, 64);
        tile_dot(2, 5, 6);
        tile_dot(3, 5, 7);
    }
}

ALWAYS void store_sums(num *to, long to_second, int two) {
    tile_store(0, to, 64);
    tile_store(1, to + SUMS, 64);
    if (two) {
        tile_store(2, to + to_second, 64);
        tile_store(3, to + to_second + SUMS, 64);
    }
}

ALWAYS void go_on(walk *w, long depths, long all) {
    if (++w->depth < depths) return;
    w->depth = 0;
    if (++w->squares == all) w->of = 0;
}

// Scores of 32 keys.
ALWAYS void some_scores(walk *w) {
    const step *s = w->of;
    const stored(*keys)[HALVES] = s->at->k[2 * w->squares];
    if (w->depth == 0) tile_zero(0), tile_zero(1), tile_zero(2), tile_zero(3);
    multiply(s->own->q[0][w->depth], DEPTHS * HALVES, keys[w->depth], DEPTHS * HALVES, s->two);
    if (w->depth == DEPTHS - 1) store_sums(s->to->scores[0][2 * w->squares], 2 * PAIRS * SUMS, s->two);
    go_on(w, DEPTHS, s->pairs);
}

// Sums of 32 columns of V.
ALWAYS void some_values(walk *w) {
    const step *s = w->of;
    num *sums = s->own->sums[0][2 * w->squares];
    if (w->depth == 0) {
        tile_load(0, sums, 64), tile_load(1, sums + SUMS, 64);
        if (s->two) tile_load(2, sums + COLUMNS * SUMS, 64), tile_load(3, sums + COLUMNS * SUMS + SUMS, 64);
    }
    multiply(s->to->weights[0][w->depth], PAIRS * HALVES, s->at->v[2 * w->squares][w->depth], PAIRS * HALVES, s->two);
    if (w->depth == s->pairs - 1) store_sums(sums, COLUMNS * SUMS, s->two);
    go_on(w, s->pairs, COLUMNS / 2);
}

// What tiles compute while vectors weigh: `all` products in `slots` turns.
typedef struct {
    walk values, scores;
    long all, slots, credit;
} beside;

static inline void spread(beside *b, long slots) {
    b->slots = slots;
    b->all = b->values.of ? b->values.of->pairs * (COLUMNS / 2) : 0;
    b->all += b->scores.of ? b->scores.of->pairs * DEPTHS : 0;
}

ALWAYS void one_product(beside *b) {
    if (b->values.of)
        some_values(&b->values);
    else if (b->scores.of)
        some_scores(&b->scores);
}

ALWAYS void due_products(beside *b) {
    for (b->credit += b->all; b->credit >= b->slots; b->credit -= b->slots) one_product(b);
}

ALONE static void all_products(beside *b) {
    while (b->values.of || b->scores.of) one_product(b);
}
