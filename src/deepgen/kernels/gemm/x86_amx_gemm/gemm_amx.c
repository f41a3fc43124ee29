// GEMM in bf16 and 8-bit integers on AMX tiles, row-major:
// C = activation(alpha * op(A) op(B) * scale + beta * C + bias).
//
// The knobs are macros; every one has a default, so this file compiles alone:
//     cc -O3 -std=gnu11 -march=sapphirerapids -shared -fPIC -pthread -I.. -I../x86_dot gemm_amx.c -o gemm.so
//
// One operand is the left one: its rows are read along K, 64 bytes at a time, where they lie if they lie so. The other
// is the right one: packed into squares of 16 groups of 4 bytes along K by 16 columns. With SWAP, B is the left one and
// C is computed transposed. Levels, from the inside out:
//   product   ROWS x COLS of C over a block of K, its sums in tiles
//   block     NC columns of C over KC numbers of K: the right operand's block is packed into L2, the left one's panels
//             pass by; what was computed before is finished, and what comes next is fetched, between the products
//   task      a part of C with all of its blocks: what one thread draws at a time; or all of C over a slice of K, and
//             then the slices are added up
#include "knobs.h"
#include "pack.h"
#include "finish.h"
#include "operands.h"
#include "aside.h"
#include "tile_product.h"
#include "x86_call.h"

// --- block -------------------------------------------------------------------------------------------------------

typedef struct {
    char *sums[2], *turned, *left, *right, *partial;  // a thread's scratch
    int turn;                                         // which of the two sums is free
} scratch;

// A GEMM on one thread, in progress: P rows of the left operand, Q columns of the right one.
typedef struct {
    matrix left, right;
    long P, Q, K;
    const result *r;
    scratch s;
    aside aside;
} course;

// A block of it: where it begins, how many numbers along K, and how many panels of each operand.
typedef struct {
    long q, k, depth, left_panels, right_panels;
} block;

// The left operand's panel for a product: packed, or where it lies, with what is not a whole square packed apart.
static void take_left(product *p, course *g, long row, long rows, long k, long depth) {
    p->edge = 0;
    if (PACK_LEFT || LEFT_ACROSS || rows < ROWS) {
        pack_left(g->s.left, g->left, row, rows, k, depth);
        p->left = g->s.left, p->left_row = 64, p->left_step = MR * 1024, p->left_tile = 1024;
        p->depth = ceil_div(depth, DEPTH);
        return;
    }
    p->left = place(g->left, 0, row, k), p->left_row = g->left.ld, p->left_step = 64, p->left_tile = 16 * g->left.ld;
    p->depth = depth / DEPTH;
    if (depth % DEPTH) {
        pack_left(g->s.left, g->left, row, rows, k + p->depth * DEPTH, depth % DEPTH);
        p->edge = g->s.left;
    }
}

// Sums of rows x columns at (row, column) of the product, in `from`, into C.
static __attribute__((noinline)) void finish(course *g, const char *from, long rows, long columns, long row,
                                             long column) {
    if (!SWAP) {
        finish_rows(from, COLS * 4, rows, columns, row, column, g->r);
        return;
    }
    for (long i = 0; i < rows; i += 16)
        for (long j = 0; j < columns; j += 16) {
            line t[16];
            UNROLLED for (int x = 0; x < 16; x++) t[x] = line_whole(from + (i + x) * COLS * 4 + j * 4);
            turn(t);
            UNROLLED for (int x = 0; x < 16; x++) line_put(g->s.turned + (j + x) * ROWS * 4 + i * 4, t[x]);
        }
    finish_rows(g->s.turned, ROWS * 4, columns, rows, column, row, g->r);
}

// The last product of a tile of C: straight into C where nothing is left to do, otherwise by way of the scratch.
static void last_product(product *p, course *g, long rows, long columns, long row, long column) {
    int whole = rows == ROWS && columns >= COLS && is_plain(g->r);
    number *c = g->r->c + (SWAP ? column * g->r->ldc + row : row * g->r->ldc + column);
    long steps = p->depth + !p->depth, c_row = g->r->ldc * sizeof(number);
    if (AHEAD_RESULT && AHEAD < 2 && whole)
        g->aside.result = paced(walk_of((char *)c, c_row, C_ROWS, C_COLUMNS * sizeof(number)), steps);
    if (!SWAP && whole && STORE == 0 && sizeof(number) == 4 && (C_TYPE == 2) == !BF16) {
        p->sums_out = (char *)c, p->sums_row = c_row;
        multiply(rows, columns, p);
        return;
    }
    char *sums = g->s.sums[g->s.turn];
    p->sums_out = sums;
    g->aside.finish_each = ceil_div(g->aside.finish.rows, steps);
    multiply(rows, columns, p);
    finish_rest(&g->aside.finish);
    if (!SIMPLE || !whole) {
        finish(g, sums, rows, least(columns, COLS), row, column);
        return;
    }
    g->aside.finish = (finishing){sums, c, g->r->ldc, C_ROWS};
    g->s.turn ^= 1;
    if (!ASIDE) finish_rest(&g->aside.finish);
}

#include "x86_seldom.h"
#include "x86_curve.h"
#include "x86_pages.h"
#include "x86_pool.h"
#include "tasks.h"

static void one_product(course *g, block b, product *p, long i, long j) {
    long row = i * ROWS, column = b.q + j * COLS, rows = least(ROWS, g->P - row), columns = g->Q - column;
    if (j == 0) take_left(p, g, row, rows, b.k, b.depth);
    p->backwards = SNAKE && j % 2;
    p->right = PACKED ? packed_place(g->right, column, b.k) : g->s.right + j * panel_bytes(b.depth);
    long place = K_OUTSIDE || SLICED ? column / COLS : j;
    char *partial = g->s.partial + (place * b.left_panels + i) * SUMS_BYTES;
    p->sums_in = b.k ? partial : 0;
    p->sums_in_row = p->sums_row = COLS * 4;
    if (SLICED || b.k + b.depth < g->K) {
        p->sums_out = partial;
        multiply(rows, columns, p);
    } else {
        last_product(p, g, rows, columns, row, column);
    }
}

// A part of an operand, as it lies in memory, that is fetched while as many steps go by.
static walk ahead(matrix x, int across, long rows, long k, long steps) {
    return paced(across ? walk_of(x.at, x.ld, k, rows * ES) : walk_of(x.at, x.ld, rows, k * ES), steps);
}

static void one_block(course *g, block b) {
    product p = {.aside = &g->aside};
    long columns = least(b.right_panels * COLS, g->Q - b.q), steps = b.right_panels * ceil_div(b.depth, DEPTH);
    if (!PACKED) pack_right(g->s.right, g->right, b.q, columns, b.k, b.depth);
    for (long i = 0; i < b.left_panels; i++) {
        if (AHEAD == 1 && i + 1 < b.left_panels) {
            matrix next = {place(g->left, LEFT_ACROSS, (i + 1) * ROWS, b.k), g->left.ld};
            g->aside.left = ahead(next, LEFT_ACROSS, least(ROWS, g->P - (i + 1) * ROWS), b.depth, steps);
        }
        for (long j = 0; j < b.right_panels; j++) one_product(g, b, &p, i, j);
    }
}

// Blocks of a dimension are of nearly equal size, none above the knob.
static void serial_gemm(course *g) {
    long nc = ceil_div(ceil_div(g->Q, ceil_div(g->Q, NC_WHOLE)), COLS) * COLS;
    long kc = ceil_div(ceil_div(g->K, ceil_div(g->K, KC)), DEPTH) * DEPTH;
    long across = ceil_div(g->Q, nc), along = ceil_div(g->K, kc);
    for (long n = 0; n < across * along; n++) {
        long q = nc * (K_OUTSIDE ? n % across : n / along), k = kc * (K_OUTSIDE ? n / across : n % along);
        block b = {q, k, least(kc, g->K - k), ceil_div(g->P, ROWS), ceil_div(least(nc, g->Q - q), COLS)};
        one_block(g, b);
    }
}

// --- task --------------------------------------------------------------------------------------------------------

typedef struct {
    matrix left, right;
    long stride_left, stride_right, stride_c, P, Q, K, batch;
    result r;
    char *workspace;
    long slot;  // bytes of a thread's scratch
    parts of;
    _Atomic long next;
    long slices;  // of K
    char *sums;   // of all of C, for each slice
} job;

// Products that all of C takes.
static inline long products(const job *g) { return ceil_div(g->P, ROWS) * ceil_div(g->Q, COLS); }

// Batches of small matrices: the next one's are fetched during the present one's products.
static void fetch_next_item(const job *g, course *c) {
    long steps = ceil_div(c->P, ROWS) * ceil_div(c->Q, COLS) * ceil_div(c->K, DEPTH);
    matrix left = {c->left.at + g->stride_left * ES, c->left.ld};
    matrix right = {c->right.at + g->stride_right * ES, c->right.ld};
    c->aside.left = ahead(left, LEFT_ACROSS, c->P, c->K, steps);
    if (PACKED)
        c->aside.right = paced(walk_of(right.at, right.ld, ceil_div(c->Q, COLS), panel_bytes(c->K)), steps);
    else
        c->aside.right = ahead(right, RIGHT_ACROSS, c->Q, c->K, steps);
    if (!AHEAD_RESULT) return;
    long rows = SWAP ? c->Q : c->P, columns = SWAP ? c->P : c->Q;
    const char *at = (const char *)(c->r->c + g->stride_c);
    c->aside.result = paced(walk_of(at, c->r->ldc * sizeof(number), rows, columns * sizeof(number)), steps);
}

// The t-th part on a curve through a square of parts.
static inline long on_the_way(long side, long t) {
    long p, q;
    on_curve(__builtin_ctzl((unsigned long)side), t, &p, &q);
    return p * side + q;
}

static void one_task(const job *g, course *c, long t) {
    long slice = 0;
    if (SLICED) slice = t % g->slices, t /= g->slices;
    if (CURVE) t = on_the_way(g->of.p, t);
    pool_range q = pool_part(g->Q, COLS, g->of.q, t % g->of.q);
    t /= g->of.q;
    pool_range p = pool_part(g->P, ROWS, g->of.p, t % g->of.p);
    pool_range e = pool_part(g->batch, 1, g->of.batch, t / g->of.p);
    if (!p.size || !q.size) return;
    for (long x = e.from; x < e.from + e.size; x++) {
        matrix left = {g->left.at + x * g->stride_left * ES, g->left.ld};
        matrix right = {g->right.at + x * g->stride_right * ES, g->right.ld};
        pool_range rows = SWAP ? q : p, columns = SWAP ? p : q;
        result r = g->r;
        r.c += x * g->stride_c + rows.from * r.ldc + columns.from;
        if (BIAS) r.bias += columns.from;
        if (SCALES > 1) r.scales += SCALES == 2 ? rows.from : columns.from;
#if EPILOGUE
        r.matrix = x, r.row = rows.from, r.column = columns.from;
#endif
        pool_range k = SLICED ? pool_part(g->K, DEPTH, g->slices, slice) : (pool_range){0, g->K};
        c->left = (matrix){place(left, LEFT_ACROSS, p.from, k.from), left.ld};
        const char *columns_at =
            PACKED ? packed_place(right, q.from, k.from) : place(right, RIGHT_ACROSS, q.from, k.from);
        c->right = (matrix){columns_at, right.ld};
        c->P = p.size, c->Q = q.size, c->K = k.size, c->r = &r;
        if (SLICED) c->s.partial = g->sums + (slice * g->batch + x) * products(g) * SUMS_BYTES;
        if (AHEAD == 2 && x + 1 < e.from + e.size) fetch_next_item(g, c);
        serial_gemm(c);
    }
}

static void draw_tasks(void *arg, int thread) {
    job *g = arg;
    course c = {0};
    scratch *s = &c.s;
    s->sums[0] = g->workspace + thread * g->slot;
    s->sums[1] = s->sums[0] + SUMS_BYTES;
    s->turned = s->sums[1] + SUMS_BYTES;
    s->left = s->turned + SUMS_BYTES;
    s->right = s->left + MR * 1024 * ceil_div(least(KC, g->K), DEPTH);
    s->partial = s->right + (PACKED ? 0 : NC_WHOLE / 16 * 1024 * ceil_div(least(KC, g->K), DEPTH));
    long tasks = g->of.p * g->of.q * g->of.batch * (SLICED ? g->slices : 1);
    begin_thread(g->P);
    for (long t; (t = atomic_fetch_add(&g->next, 1)) < tasks;) one_task(g, &c, t);
    finish_rest(&c.aside.finish);
    if (STORE == 2) _mm_sfence();  // stores past the caches are not ordered before what tells that this is done
    end_thread();
}

// Adds up the slices of K, where each left the sums of all of C, and finishes them: a product's at a time.
static void draw_sums(void *arg, int thread) {
    job *g = arg;
    course c = {.s.turned = g->workspace + thread * g->slot + 2 * SUMS_BYTES};
    long high = ceil_div(g->P, ROWS), all = g->batch * products(g);
    for (long t; (t = atomic_fetch_add(&g->next, 1)) < all;) {
        long at = t % products(g), row = at % high * ROWS, column = at / high * COLS, rows = least(ROWS, g->P - row);
        sum *to = (sum *)(g->sums + t * SUMS_BYTES);
        for (long slice = 1; slice < g->slices; slice++) {
            const sum *from = to + slice * all * ROWS * COLS;
            for (long i = 0; i < rows * COLS; i++) to[i] += from[i];
        }
        result r = g->r;
        r.c += t / products(g) * g->stride_c;
#if EPILOGUE
        r.matrix = t / products(g);
#endif
        c.r = &r;
        finish(&c, (const char *)to, rows, least(COLS, g->Q - column), row, column);
    }
}

// Parts of C; a curve needs a square of them, at least as many as tasks were asked for.
static parts parts_of(long tasks, long P, long Q, long batch) {
    if (SLICED) return (parts){1, 1, 1};
    if (!CURVE) return cut(tasks, P, Q, batch);
    long side = 1;
    while (side * side < tasks) side *= 2;
    return (parts){side, side, 1};
}

// `workspace` holds for each thread what draw_tasks divides, in all `slot` bytes, and then, where K is divided, the sums
// of its slices; with HUGE_PAGES up to two such pages more. Where B was packed ahead of time, ldb is the distance of its
// panels and stride_b that of its matrices, both as if in numbers.
void deepgen_gemm(const char *A, const char *B, number *C,
#if BIAS
                  const number *bias,
#endif
#if SCALES
                  const float *scale,
#endif
                  char *workspace, int64_t slot, int64_t M, int64_t N, int64_t K, int64_t batch, int64_t lda,
                  int64_t ldb, int64_t ldc, int64_t stride_a, int64_t stride_b, int64_t stride_c, float alpha,
#if EPILOGUE
                  float beta, int32_t threads EPILOGUE_PARAMETERS) {
#else
                  float beta, int32_t threads) {
#endif
    if (PACKED && HUGE_PAGES) B = page_border(B);
    matrix a = {A, lda * ES}, b = {B, ldb * ES};
    result r = {C, ldc, alpha, beta, 0, 0};
#if EPILOGUE
    r.more = (operands)EPILOGUE_GIVEN;
    r.matrix = r.row = r.column = 0;
#endif
#if BIAS
    r.bias = bias;
#endif
#if SCALES
    r.scales = scale;
#endif
    job g = {SWAP ? b : a, SWAP ? a : b, SWAP ? stride_b : stride_a, SWAP ? stride_a : stride_b, stride_c,
             SWAP ? N : M, SWAP ? M : N, K, batch, r, workspace, slot, {0}, 0};
    g.of = parts_of(threads * TASKS, g.P, g.Q, batch);
    if (SLICED) g.slices = least(threads * TASKS, ceil_div(K, DEPTH));
    if (HUGE_PAGES)
        g.workspace = in_huge_pages(workspace, threads * slot + g.slices * batch * products(&g) * SUMS_BYTES);
    if (SLICED) g.sums = g.workspace + threads * slot;
    pool_run(threads, draw_tasks, &g);
    if (SLICED) {
        g.next = 0;
        pool_run(threads, draw_sums, &g);
    }
}

#if EPILOGUE
#else
// The same with all arguments in one block.
void deepgen_gemm_block(const slot *a) {
    const slot *x = a + 3 + BIAS + (SCALES > 0);
    deepgen_gemm(a[0].p, a[1].p, (number *)a[2].p,
#if BIAS
                 (const number *)a[3].p,
#endif
#if SCALES
                 (const float *)a[3 + BIAS].p,
#endif
                 x[0].p, x[1].i64, x[2].i64, x[3].i64, x[4].i64, x[5].i64, x[6].i64, x[7].i64, x[8].i64, x[9].i64,
                 x[10].i64, x[11].i64, x[12].f32, x[13].f32, x[14].i32);
}
#endif

#if PACKED
// All of a constant B, ahead of time: panels over the whole of K, one after the other.
void deepgen_gemm_pack(const char *B, char *packed, int64_t N, int64_t K, int64_t batch, int64_t ldb,
                       int64_t stride_b) {
    long whole = ceil_div(N, COLS) * panel_bytes(K);
    if (HUGE_PAGES) packed = in_huge_pages(packed, whole * batch);
    for (long x = 0; x < batch; x++)
        pack_right(packed + x * whole, (matrix){B + x * stride_b * ES, ldb * ES}, 0, N, 0, K);
}
#endif
