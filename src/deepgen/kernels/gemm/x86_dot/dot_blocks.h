// Cache blocks: the right operand's block is packed into L2, a panel of one operand stays in L1 while the other's pass.
// With few rows of a left operand, packing would take longer than the products: a right operand that lies across K is
// read where it lies (DIRECT), a few k and many columns at a time, so that its rows are read in order.

// A block of it: where it begins, and how many panels of each operand it has.
typedef struct {
    long p, q, k, depth, left_panels, right_panels, panel_bytes;
    const char *right;
} block;

// The left operand's panel for a product: packed, or where it lies.
static void take_left(product *p, char *packed, int pack, matrix x, long row, long k, long depth) {
    if (PACK_LEFT || LEFT_ACROSS || WIDENED || p->rows < MR || depth % GROUP) {
        if (pack) pack_left(packed, x, row, p->rows, k, depth);
        p->left = packed, p->left_row = LEFT_ROW;
    } else {
        p->left = place(x, 0, row, k), p->left_row = x.ld;
    }
}

// The last product of a tile of C: straight into C where nothing is left to do, otherwise by way of the scratch.
static void last_product(product *p, scratch *s, long columns, long row, long column, const result *r) {
    if (!SWAP && !F16_RESULT && columns >= COLS && is_plain(r) && (C_TYPE == 2 || (C_TYPE == 0 && INPUT != 0))) {
        p->sums_out = (char *)(r->c + row * r->ldc + column), p->sums_row = r->ldc * 4;
        multiply(columns, p);
        return;
    }
    p->sums_out = s->sums, p->sums_row = COLS * 4;
    multiply(columns, p);
    finish(s, p->rows, least(columns, COLS), row, column, r);
}

static void one_product(const course *g, block b, long i, long j) {
    long row = b.p + i * MR, column = b.q + j * COLS, columns = g->Q - column;
    product p = {.rows = least(MR, g->P - row), .groups = DIRECT ? b.depth / GROUP : ceil_div(b.depth, GROUP)};
    p.last = b.depth % GROUP;
    take_left(&p, g->s->left + i * LEFT_BYTES, j == 0, g->left, row, b.k, b.depth);
    p.right = b.right + j * b.panel_bytes, p.right_row = g->right.ld, p.columns = columns;
    p.start = g->s->starts + i * MR;
    if (SHIFTED && j == 0) start_sums(g->s->starts + i * MR, &p, b.depth);
    char *partial = g->s->partial + (i * b.right_panels + j) * SUMS_BYTES;
    p.sums_in = b.k ? partial : 0;
    p.sums_in_row = COLS * 4;
    if (b.k + b.depth < g->K) {
        p.sums_out = partial, p.sums_row = COLS * 4;
        multiply(columns, &p);
    } else {
        last_product(&p, g->s, columns, row, column, g->r);
    }
}

static void one_block(const course *g, block b) {
    if (!INNER_LEFT) {
        for (long i = 0; i < b.left_panels; i++)
            for (long j = 0; j < b.right_panels; j++) one_product(g, b, i, j);
    } else {
        for (long j = 0; j < b.right_panels; j++)
            for (long i = 0; i < b.left_panels; i++) one_product(g, b, i, j);
    }
}

// Blocks of a dimension are of nearly equal size, none above the knob.
static long even(long size, long most, long unit) { return ceil_div(ceil_div(size, ceil_div(size, most)), unit) * unit; }

static void serial_gemm(const course *g) {
    const long mc = even(g->P, MC_WHOLE, MR), nc = even(g->Q, NC_WHOLE, COLS), kc = even(g->K, KC_WHOLE, LINE);
    const int once = mc >= g->P;  // then a block of the right operand can be packed over the one before, near the core
    for (long q = 0; q < g->Q; q += nc)
        for (long p = 0; p < g->P; p += mc)
            for (long k = 0; k < g->K; k += kc) {
                long rows = least(mc, g->P - p), columns = least(nc, g->Q - q), depth = least(kc, g->K - k);
                block b = {p, q, k, depth, ceil_div(rows, MR), ceil_div(columns, COLS), COLS * ES, place(g->right, 1, q, k)};
                if (!DIRECT) {
                    char *packed = g->s->right + (once ? 0 : k / GROUP * GROUP_BYTES);
                    b.right = packed, b.panel_bytes = ceil_div(once ? kc : g->K, GROUP) * GROUP_BYTES;
                    if (p == 0) pack_right(packed, b.panel_bytes, g->right, q, columns, k, depth);
                }
                one_block(g, b);
            }
}
