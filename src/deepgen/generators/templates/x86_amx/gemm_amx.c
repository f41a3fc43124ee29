// GEMM in bf16 and 8-bit integers: C = activation(alpha * op(A) op(B) * scale + beta * C + bias), row-major.
//
// The knobs are macros; every one has a default, so this file compiles alone:
//     cc -O3 -std=gnu11 -march=sapphirerapids -shared -fPIC -pthread -I.. gemm_amx.c -o gemm.so
//
// One operand is the left one: its rows are read along K, 64 bytes at a time, where they lie if they lie so. The other
// is the right one: packed into squares of 16 groups of 4 bytes along K by 16 columns. With SWAP, B is the left one and
// C is computed transposed. Levels, from the inside out:
//   product   ROWS x COLS of C over a block of K, its sums in registers
//   block     MC x NC of C over all of K: the right operand's block stays in L2, a panel of the left one's in L1
//   task      a part of C with all of its blocks: what one thread draws at a time
#include <stdint.h>
#include <string.h>

#include "x86_pool.h"
#include "x86_vector.h"

// --- knobs -------------------------------------------------------------------------------------------------------

#ifndef BF16  // 1: bf16 with sums in f32; 0: 8-bit integers with sums in i32
#define BF16 1
#endif
#ifndef LEFT_SIGNED  // of 8-bit integers
#define LEFT_SIGNED 1
#endif
#ifndef RIGHT_SIGNED
#define RIGHT_SIGNED 1
#endif
#ifndef A_T  // layouts: 1 when A is stored K x M
#define A_T 0
#endif
#ifndef B_T  // 1 when B is stored N x K
#define B_T 0
#endif
#ifndef SWAP  // 1: B is the left operand
#define SWAP 0
#endif
#ifndef MR  // sums: tiles of 16 rows; with vectors, rows
#define MR 2
#endif
#ifndef NR  // and tiles of 16 columns
#define NR 2
#endif
#ifndef MC  // cache block: rows of sums
#define MC 512
#endif
#ifndef NC  // cache block: columns of sums
#define NC 512
#endif
#ifndef KC  // cache block: numbers along K
#define KC 512
#endif
#ifndef PACK_LEFT  // 1: copy panels of the left operand; 0: read them where they lie
#define PACK_LEFT 0
#endif
#ifndef INNER_LEFT  // in a block, 1: a panel of the right operand stays while the left one's pass; 0: the other way round
#define INNER_LEFT 1
#endif
#ifndef ASIDE  // 1: pack what comes next, and finish what came before, between the dot products of the present
#define ASIDE 1
#endif
#ifndef FUSE  // 1: pack a block of the right operand just before its only use; sums stay in registers through all of K
#define FUSE 0
#endif
#ifndef GATHER  // panels of the right operand that are packed at once when they are first needed
#define GATHER 1
#endif
#ifndef PREFETCH  // lines of each row of the left operand ahead; 0: leave it to the hardware
#define PREFETCH 0
#endif
#ifndef PACK_AHEAD  // lines (across: of K; along: of a row) ahead while packing; 0: leave it to the hardware
#define PACK_AHEAD 0
#endif
#ifndef PASSING  // which operand's tiles are loaded past L1: 0 none, 1 the left one's, 2 the right one's
#define PASSING 2
#endif
#ifndef PARTITION  // what tasks divide: 0 the left operand, 1 the right one, 2 both, 3 the batch
#define PARTITION 0
#endif
#ifndef TASKS  // tasks for each thread
#define TASKS 1
#endif

#if BF16
#define ES 2
#else
#define ES 1
#endif
// 8-bit vectors multiply unsigned by signed: where both are signed, the right one is packed with 128 added.
#define SHIFTED 0
#define LEFT_ACROSS (SWAP ? !B_T : A_T)   // whether numbers of one k lie side by side
#define RIGHT_ACROSS (SWAP ? A_T : !B_T)

// --- sizes -------------------------------------------------------------------------------------------------------

#include "pack.h"
#include "finish.h"

#define TILE_ROWS 16
enum {
    ROWS = MR * TILE_ROWS,
    COLS = NR * 16,
    MC_WHOLE = MC / ROWS * ROWS,
    NC_WHOLE = NC / COLS * COLS,
    LEFT_BYTES = (ROWS + 15) / 16 * 1024 * (KC / DEPTH),  // a packed panel, or its edge
    SUMS_BYTES = ROWS * COLS * 4,
    LEFT_TILE_BYTES = (ROWS + 15) / 16 * 1024,
    TURNED_ROW = (ROWS + 15) / 16 * 64,
    FIXED_BYTES = 2 * SUMS_BYTES + COLS * TURNED_ROW + (FUSE ? 1 : MC_WHOLE / ROWS) * LEFT_BYTES + (MC + 15) / 16 * 64,
};


// --- operands ----------------------------------------------------------------------------------------------------

// One operand of a task: `at` is its first number, in rows (of A, or columns of B) and k.
typedef struct {
    const char *at;
    long ld;  // bytes
} matrix;

ALWAYS_INLINE const char *place(matrix x, int across, long row, long k) {
    return across ? x.at + k * x.ld + row * ES : x.at + row * x.ld + k * ES;
}

// A panel of the left operand, packed: for each square along K, tile after tile of 16 rows of 64 bytes.
static void pack_left(char *to, matrix x, long row, long rows, long k, long depth) {
    for (long d = 0; d < depth; d += DEPTH)
        for (long i = 0; i < ROWS; i += 16, to += 1024)
            copy_square(to, LEFT_ACROSS, 0, place(x, LEFT_ACROSS, row + i, k + d), x.ld, rows - i, depth - d);
}

// Columns of the right operand on their way into panels: NR squares for each DEPTH numbers along K.
typedef struct {
    char *to;
    long panel_bytes;
    const char *from;  // the first number
    long ld, columns, depth;
    long units, done;  // a unit is one group of all columns where they lie across, and one square where they do not
} packing;

static packing packing_of(char *to, long panel_bytes, matrix x, long column, long columns, long k, long depth) {
    long units = RIGHT_ACROSS ? ceil_div(depth, DEPTH) * 16 : ceil_div(depth, DEPTH) * ceil_div(columns, 16);
    return (packing){to, panel_bytes, place(x, RIGHT_ACROSS, column, k), x.ld, columns, depth, units, 0};
}

ALWAYS_INLINE void pack_square(const packing *w, long unit) {
    long squares = ceil_div(w->depth, DEPTH), j = unit / squares * 16, d = unit % squares * DEPTH;
    const char *from = w->from + j * w->ld + d * ES;
    if (PACK_AHEAD) UNROLLED for (int i = 0; i < 16; i++) __builtin_prefetch(from + i * w->ld + PACK_AHEAD * 64, 0, 3);
    char *to = w->to + j / COLS * w->panel_bytes + d / DEPTH * NR * 1024 + j % COLS * 64;
    copy_square(to, 0, 1, from, w->ld, w->columns - j, w->depth - d);
}

ALWAYS_INLINE void pack_group(const packing *w, long unit) {
    const char *from = w->from + unit * GROUP * w->ld;
    char *to = w->to + unit / 16 * NR * 1024 + unit % 16 * 64;
    long left = w->depth - unit * GROUP, j = 0;
    if (PACK_AHEAD)
        for (long b = 0; b < w->columns * ES; b += 64)
            UNROLLED for (int e = 0; e < GROUP; e++)
                __builtin_prefetch(from + (PACK_AHEAD * GROUP + e) * w->ld + b, 0, 3);
    if (left >= GROUP && w->columns >= COLS)
        for (; j + COLS <= w->columns; j += COLS, to += w->panel_bytes, from += COLS * ES)
            UNROLLED for (int v = 0; v < NR; v++)
                line_put(to + v * 1024, right_line(interleave(1, from + v * 16 * ES, w->ld, 16, GROUP)));
    for (long v = 0; j < w->columns; j += 16, v++)
        line_put(to + v / NR * w->panel_bytes + v % NR * 1024,
                 right_line(interleave(0, from + v * 16 * ES, w->ld, w->columns - j, left)));
}

// Packs on until so many units are done.
ALWAYS_INLINE void pack_until(packing *w, long units) {
    for (units = least(units, w->units); w->done < units; w->done++)
        if (RIGHT_ACROSS)
            pack_group(w, w->done);
        else
            pack_square(w, w->done);
}

static void pack_right(packing w) { pack_until(&w, w.units); }

// --- what is done between dot products ---------------------------------------------------------------------------

// Rows of sums on their way into C, where nothing but a conversion is left to do.
typedef struct {
    const char *from;
    number *to;
    long ldc, rows;
} finishing;

typedef struct {
    packing *pack;
    long pack_each;  // units in a step along K
    finishing *finish;
    long finish_each;
} aside;

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && BF16 && C_TYPE == 1
#define CONVERTED 1
#else
#define CONVERTED 0
#endif
ALWAYS_INLINE void finish_until(finishing *f, long rows) {
#if CONVERTED
    for (; rows > 0 && f->rows > 0; rows--, f->rows--, f->from += COLS * 4, f->to += f->ldc) {
        const float *s = (const float *)f->from;
        UNROLLED for (int v = 0; v + 1 < NR; v += 2)
            _mm512_storeu_si512(f->to + v * 16, (__m512i)_mm512_cvtne2ps_pbh(load(s + v * 16 + 16), load(s + v * 16)));
        if (NR % 2)
            _mm256_storeu_si256((__m256i *)(f->to + (NR - 1) * 16), (__m256i)_mm512_cvtneps_pbh(load(s + (NR - 1) * 16)));
    }
#else
    (void)f, (void)rows;
#endif
}

ALWAYS_INLINE void step_aside(const aside *x) {
    if (!ASIDE) return;
    if (x->pack_each) pack_until(x->pack, x->pack->done + x->pack_each);
    if (x->finish_each) finish_until(x->finish, x->finish_each);
}

// --- product -----------------------------------------------------------------------------------------------------

// Distances are in bytes.
typedef struct {
    const char *left;
    long left_row, left_step, left_tile;  // from row to row, from square to square along K, from 16 rows to the next
    const char *right;
    long depth;        // squares along K
    const char *edge;  // one square more of the left operand, packed, where K is not whole squares; or 0
    const char *sums_in;
    char *sums_out;
    long sums_in_row, sums_row;
    aside aside;
} product;

static const char zero_sums[1], kept_sums[1];
#define ZERO_SUMS ((char *)zero_sums)
#define KEPT_SUMS ((char *)kept_sums)

#include "tile_product.h"

// --- block -------------------------------------------------------------------------------------------------------

typedef struct {
    char *left, *sums[2], *turned, *right, *partial;  // a thread's scratch
    int turn;                                         // which of the two sums is free
    finishing finish;                                 // what the other one still holds
} scratch;

// The left operand's panel for a product: packed, or where it lies, with what is not a whole square packed apart.
static void take_left(product *p, char *packed, int pack, matrix x, long row, long rows, long k, long depth) {
    p->edge = 0;
    if (PACK_LEFT || LEFT_ACROSS || rows < ROWS) {
        if (pack) pack_left(packed, x, row, rows, k, depth);
        p->left = packed, p->left_row = 64, p->left_step = LEFT_TILE_BYTES, p->left_tile = 1024;
        p->depth = ceil_div(depth, DEPTH);
        return;
    }
    p->left = place(x, 0, row, k), p->left_row = x.ld, p->left_step = 64, p->left_tile = 16 * x.ld;
    p->depth = depth / DEPTH;
    if (depth % DEPTH) {
        if (pack) pack_left(packed, x, row, rows, k + p->depth * DEPTH, depth % DEPTH);
        p->edge = packed;
    }
}

// Sums of rows x columns at (row, column) of the product, in `from`, into C.
static void finish(scratch *s, const char *from, long rows, long columns, long row, long column, const result *r) {
    if (!SWAP) {
        finish_rows(from, COLS * 4, rows, columns, row, column, r);
        return;
    }
    for (long i = 0; i < rows; i += 16)
        for (long j = 0; j < columns; j += 16) {
            line t[16];
            UNROLLED for (int x = 0; x < 16; x++) t[x] = line_whole(from + (i + x) * COLS * 4 + j * 4);
            turn(t);
            UNROLLED for (int x = 0; x < 16; x++) line_put(s->turned + (j + x) * TURNED_ROW + i * 4, t[x]);
        }
    finish_rows(s->turned, TURNED_ROW, columns, rows, column, row, r);
}

static void finish_pending(scratch *s) { finish_until(&s->finish, ROWS); }

// The last product of a tile of C: straight into C where nothing is left to do, otherwise by way of the scratch.
static void last_product(product *p, scratch *s, long rows, long columns, long row, long column, const result *r) {
    int whole = !SWAP && rows == ROWS && columns >= COLS && is_plain(r);
    if (whole && sizeof(number) == 4 && (C_TYPE == 2) == !BF16) {
        p->sums_out = (char *)(r->c + row * r->ldc + column), p->sums_row = r->ldc * 4;
        multiply(rows, columns, p);
        return;
    }
    char *sums = s->sums[s->turn];
    p->sums_out = sums;
    if (ASIDE && CONVERTED && whole) {
        p->aside.finish = &s->finish;
        p->aside.finish_each = ceil_div(s->finish.rows, p->depth + !p->depth);
        multiply(rows, columns, p);
        p->aside.finish_each = 0;
        finish_pending(s);
        s->finish = (finishing){sums, r->c + row * r->ldc + column, r->ldc, ROWS};
        s->turn ^= 1;
        return;
    }
    multiply(rows, columns, p);
    finish(s, sums, rows, columns < COLS ? columns : COLS, row, column, r);
}

// A GEMM on one thread, in progress: P rows of the left operand, Q columns of the right one.
typedef struct {
    matrix left, right;
    long P, Q, K, panel_bytes;
    const result *r;
    scratch *s;
} course;

// A block of it: where it begins, and how many panels of each operand it has.
typedef struct {
    long p, q, k, depth, left_panels, right_panels;
} block;

static void one_product(const course *g, block b, product *p, long i, long j) {
    long row = b.p + i * ROWS, column = b.q + j * COLS, rows = least(ROWS, g->P - row), columns = g->Q - column;
    take_left(p, g->s->left + i * LEFT_BYTES, j == 0, g->left, row, rows, b.k, b.depth);
    p->right = g->s->right + j * g->panel_bytes + b.k / DEPTH * NR * 1024;
    char *partial = g->s->partial + (i * b.right_panels + j) * SUMS_BYTES;
    p->sums_in = b.k ? partial : ZERO_SUMS;
    p->sums_in_row = p->sums_row = COLS * 4;
    if (b.k + b.depth < g->K) {
        p->sums_out = partial;
        multiply(rows, columns, p);
    } else {
        last_product(p, g->s, rows, columns, row, column, g->r);
    }
}

static packing packing_at(const course *g, block b, long j) {
    long columns = least(g->Q - b.q, b.right_panels * COLS) - j * COLS;
    char *to = g->s->right + j * g->panel_bytes + b.k / DEPTH * NR * 1024;
    return packing_of(to, g->panel_bytes, g->right, b.q + j * COLS, least(columns, GATHER * COLS), b.k, b.depth);
}

static void one_block(const course *g, block b) {
    product p = {0};
    long left = b.left_panels, right = b.right_panels;
    if (!INNER_LEFT) {
        for (long i = 0; i < left; i++)
            for (long j = 0; j < right; j++) {
                if (b.p == 0 && i == 0 && j % GATHER == 0) pack_right(packing_at(g, b, j));
                one_product(g, b, &p, i, j);
            }
        return;
    }
    packing next = {0};
    if (b.p == 0) pack_right(packing_at(g, b, 0));
    for (long j0 = 0; j0 < right; j0 += GATHER) {
        long now = least(GATHER, right - j0), steps = left * now * ceil_div(b.depth, DEPTH);
        next.units = next.done = p.aside.pack_each = 0;
        if (b.p == 0 && j0 + GATHER < right) {
            next = packing_at(g, b, j0 + GATHER);
            p.aside.pack = &next;
            p.aside.pack_each = ceil_div(next.units, steps);
        }
        for (long j = j0; j < j0 + now; j++)
            for (long i = 0; i < left; i++) one_product(g, b, &p, i, j);
        pack_until(&next, next.units);
    }
}

// Blocks of a dimension are of nearly equal size, none above the knob.
static void serial_gemm(const course *g) {
    long mc = ceil_div(ceil_div(g->P, ceil_div(g->P, MC_WHOLE)), ROWS) * ROWS;
    long nc = ceil_div(ceil_div(g->Q, ceil_div(g->Q, NC_WHOLE)), COLS) * COLS;
    long kc = ceil_div(ceil_div(g->K, ceil_div(g->K, KC)), DEPTH) * DEPTH;
    for (long q = 0; q < g->Q; q += nc)
        for (long p = 0; p < g->P; p += mc)
            for (long k = 0; k < g->K; k += kc)
                one_block(g, (block){p, q, k, least(kc, g->K - k), ceil_div(least(mc, g->P - p), ROWS),
                                     ceil_div(least(nc, g->Q - q), COLS)});
    finish_pending(g->s);
}

// The same where the right operand is used once: its squares are packed into L1 and forgotten.
static void fused_gemm(const course *g) {
    product p = {0};
    for (long i = 0; i < g->P; i += ROWS)
        for (long j = 0; j < g->Q; j += COLS)
            for (long k = 0; k < g->K; k += KC) {
                long depth = least(KC, g->K - k), rows = least(ROWS, g->P - i);
                pack_right(packing_of(g->s->right, 0, g->right, j, least(COLS, g->Q - j), k, depth));
                take_left(&p, g->s->left, 1, g->left, i, rows, k, depth);
                p.right = g->s->right;
                p.sums_in = k ? KEPT_SUMS : ZERO_SUMS;
                p.sums_out = KEPT_SUMS;
                p.sums_in_row = p.sums_row = COLS * 4;
                if (k + depth < g->K)
                    multiply(rows, g->Q - j, &p);
                else
                    last_product(&p, g->s, rows, g->Q - j, i, j, g->r);
            }
    finish_pending(g->s);
}

// --- task --------------------------------------------------------------------------------------------------------

typedef struct {
    matrix left, right;
    long stride_left, stride_right, stride_c, P, Q, K, batch;
    result r;
    char *workspace;
    long slot, block;  // bytes of a thread's scratch, and of the right operand's block in it
    long parts_p, parts_q, parts_batch;
    _Atomic long next;
} job;

typedef struct {
    long from, size;
} range;

// Part t of `parts` of a size, in whole units; sizes differ by one unit at most.
static range part_of(long size, long unit, long parts, long t) {
    long units = ceil_div(size, unit);
    long from = units * t / parts * unit, to = least(size, units * (t + 1) / parts * unit);
    return (range){from, to > from ? to - from : 0};
}

static void one_task(const job *g, scratch *s, long t) {
    range q = part_of(g->Q, COLS, g->parts_q, t % g->parts_q);
    t /= g->parts_q;
    range p = part_of(g->P, ROWS, g->parts_p, t % g->parts_p);
    range e = part_of(g->batch, 1, g->parts_batch, t / g->parts_p);
    if (!p.size || !q.size) return;
    for (long x = e.from; x < e.from + e.size; x++) {
        matrix left = {place((matrix){g->left.at + x * g->stride_left * ES, g->left.ld}, LEFT_ACROSS, p.from, 0), g->left.ld};
        matrix right = {place((matrix){g->right.at + x * g->stride_right * ES, g->right.ld}, RIGHT_ACROSS, q.from, 0), g->right.ld};
        range rows = SWAP ? q : p, columns = SWAP ? p : q;
        result r = g->r;
        r.c += x * g->stride_c + rows.from * r.ldc + columns.from;
        if (BIAS) r.bias += columns.from;
        if (SCALES > 1) r.scales += SCALES == 2 ? rows.from : columns.from;
        course c = {left, right, p.size, q.size, g->K, ceil_div(g->K, DEPTH) * NR * 1024, &r, s};
        (FUSE ? fused_gemm : serial_gemm)(&c);
    }
}

static void draw_tasks(void *arg, int thread) {
    job *g = arg;
    char *at = g->workspace + thread * g->slot;
    scratch s = {0};
    s.sums[0] = at, s.sums[1] = at + SUMS_BYTES, s.turned = at + 2 * SUMS_BYTES;
    s.left = s.turned + COLS * TURNED_ROW;
    s.right = at + FIXED_BYTES, s.partial = s.right + g->block;
    long tasks = g->parts_p * g->parts_q * g->parts_batch;
    begin_thread();
    for (long t; (t = atomic_fetch_add(&g->next, 1)) < tasks;) one_task(g, &s, t);
    end_thread();
}

static void cut(job *g, long tasks) {
    g->parts_p = g->parts_q = g->parts_batch = 1;
    if (PARTITION == 0) g->parts_p = tasks;
    if (PARTITION == 1) g->parts_q = tasks;
    if (PARTITION == 3) g->parts_batch = least(tasks, g->batch);
    if (PARTITION != 2) return;
    long best = 0;
    for (long p = 1; p <= tasks; p++) {  // the cut that reads least
        long reads = p * g->Q + tasks / p * g->P;
        if (tasks % p || (best && reads >= best)) continue;
        best = reads;
        g->parts_p = p;
        g->parts_q = tasks / p;
    }
}

// `workspace` holds for each thread FIXED_BYTES, a block of the right operand, and the sums of a block of C where K is
// more than one block.
void deepgen_gemm(const char *A, const char *B, number *C,
#if BIAS
                  const number *bias,
#endif
#if SCALES
                  const float *scale,
#endif
                  char *workspace, int64_t M, int64_t N, int64_t K, int64_t batch, int64_t lda, int64_t ldb, int64_t ldc,
                  int64_t stride_a, int64_t stride_b, int64_t stride_c, float alpha, float beta, int32_t threads) {
    matrix a = {A, lda * ES}, b = {B, ldb * ES};
    result r = {C, ldc, alpha, beta, 0, 0};
#if BIAS
    r.bias = bias;
#endif
#if SCALES
    r.scales = scale;
#endif
    job g = {SWAP ? b : a, SWAP ? a : b, SWAP ? stride_b : stride_a, SWAP ? stride_a : stride_b, stride_c,
             SWAP ? N : M, SWAP ? M : N, K, batch, r, workspace, 0, 0, 1, 1, 1, 0};
    g.block = FUSE ? NR * 1024 * (KC / DEPTH) : (NC_WHOLE / 16) * 1024 * ceil_div(K, DEPTH);
    g.slot = FIXED_BYTES + g.block + (FUSE ? SUMS_BYTES : K <= KC ? 0 : MC_WHOLE * NC_WHOLE * 4);
    cut(&g, threads * TASKS);
    pool_run(threads, draw_tasks, &g);
}
