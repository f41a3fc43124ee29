// GEMM by dot products of vectors: C = activation(alpha * op(A) op(B) * scale + beta * C + bias), row-major, in 8-bit
// integers (VNNI), bf16 (AVX512-BF16), and in bf16 or f16 widened to f32.
//
// The knobs are macros; every one has a default, so this file compiles alone:
//     cc -O3 -std=gnu11 -march=sapphirerapids -shared -fPIC -pthread -I.. gemm_dot.c -o gemm.so
//
// One operand is the left one: its rows are read along K, a group of 4 bytes at a time, where they lie if they lie so.
// The other is the right one, packed: 16 columns of a group are one vector. Levels, from the inside out:
//   dot_knobs.h       the knobs, and the sizes that follow
//   vector_product.h  MR x COLS of C over a block of K, the sums in registers
//   finish.h, dot_finish.h  what becomes of the sums
//   lines.h, dot_lines.h, dot_pack.h  lines of 16 groups; operands in the order in which products read them
//   dot_blocks.h      cache blocks; or dot_rows.h, few rows of A along K, without packing
//   this file         tasks, a part of C each, which threads draw; the entries
#include <stdint.h>
#include <string.h>

#include "x86_call.h"
#include "x86_vector.h"
#include "dot_knobs.h"
#include "finish.h"
#include "dot_lines.h"
#include "dot_pack.h"
#include "vector_product.h"
#include "dot_finish.h"
#if ALONG
#include "dot_rows.h"
#endif
#include "x86_seldom.h"
#include "x86_pool.h"
#include "tasks.h"
#if !ALONG
#include "dot_blocks.h"
#endif

#define C_BYTES (F16_RESULT ? 2 : (long)sizeof(number))

typedef struct {
    matrix left, right;
    long stride_left, stride_right, stride_c, P, Q, K, batch;
    result r;
    char *workspace;
    long slot, block;  // bytes of a thread's scratch, and of the right operand's block in it
    parts of;
    _Atomic long next;
} job;

static void one_task(const job *g, scratch *s, long t) {
    pool_range q = pool_part(g->Q, COLS, g->of.q, t % g->of.q);
    t /= g->of.q;
    pool_range p = pool_part(g->P, MR, g->of.p, t % g->of.p);
    pool_range e = pool_part(g->batch, 1, g->of.batch, t / g->of.p);
    if (!p.size || !q.size) return;
    for (long x = e.from; x < e.from + e.size; x++) {
        matrix left = {g->left.at + x * g->stride_left * ES, g->left.ld};
        matrix right = {g->right.at + x * g->stride_right * ES, g->right.ld};
        left.at = place(left, LEFT_ACROSS, p.from, 0), right.at = place(right, RIGHT_ACROSS, q.from, 0);
        pool_range rows = SWAP ? q : p, columns = SWAP ? p : q;
        result r = g->r;
        r.c = (number *)((char *)r.c + (x * g->stride_c + rows.from * r.ldc + columns.from) * C_BYTES);
        if (BIAS) r.bias = (const number *)((const char *)r.bias + columns.from * C_BYTES);
        if (SCALES > 1) r.scales += SCALES == 2 ? rows.from : columns.from;
#if EPILOGUE
        r.matrix = x, r.row = rows.from, r.column = columns.from;
#endif
        course c = {left, right, p.size, q.size, g->K, &r, s};
        serial_gemm(&c);
    }
}

static void draw_tasks(void *arg, int thread) {
    job *g = arg;
    char *at = g->workspace + thread * g->slot;
    scratch s = {.sums = at};
    s.turned = s.sums + (MR + 15) / 16 * 16 * GROUP_BYTES;
    s.left = s.turned + COLS * TURNED_ROW;
    s.starts = (int32_t *)(s.left + MC_WHOLE / MR * LEFT_BYTES);
    s.right = at + FIXED_BYTES, s.partial = s.right + g->block;
    long tasks = g->of.p * g->of.q * g->of.batch;
    for (long t; (t = atomic_fetch_add(&g->next, 1)) < tasks;) one_task(g, &s, t);
}

// `workspace` holds for each thread FIXED_BYTES, where it is packed a block of the right operand over all of K, and the sums of a block of
// C where K is more than one block.
void deepgen_gemm(const char *A, const char *B, number *C, const number *bias, const float *scale, char *workspace,
                  int64_t M, int64_t N, int64_t K, int64_t batch, int64_t lda, int64_t ldb, int64_t ldc,
#if EPILOGUE
                  int64_t stride_a, int64_t stride_b, int64_t stride_c, float alpha, float beta, int32_t threads
                  EPILOGUE_PARAMETERS) {
#else
                  int64_t stride_a, int64_t stride_b, int64_t stride_c, float alpha, float beta, int32_t threads) {
#endif
    matrix a = {A, lda * ES}, b = {B, ldb * ES};
    result r = {C, ldc, alpha, beta, bias, scale};
#if EPILOGUE
    r.more = (operands)EPILOGUE_GIVEN;
    r.matrix = r.row = r.column = 0;
#endif
    job g = {SWAP ? b : a, SWAP ? a : b, SWAP ? stride_b : stride_a, SWAP ? stride_a : stride_b, stride_c,
             SWAP ? N : M, SWAP ? M : N, K, batch, r, workspace, 0, 0, {0}, 0};
    g.block = DIRECT ? 0 : NC_WHOLE / COLS * GROUP_BYTES * ceil_div(K, LINE) * 16;
    g.slot = FIXED_BYTES + g.block + (K <= KC_WHOLE ? 0 : MC_WHOLE * NC_WHOLE * 4);
    g.of = cut(threads * TASKS, g.P, g.Q, batch);
    pool_run(threads, draw_tasks, &g);
}

#if EPILOGUE
#else
// The same with all arguments in one block.
void deepgen_gemm_block(const slot *a) {
    deepgen_gemm(a[0].p, a[1].p, a[2].p, a[3].p, a[4].p, a[5].p, a[6].i64, a[7].i64, a[8].i64, a[9].i64, a[10].i64,
                 a[11].i64, a[12].i64, a[13].i64, a[14].i64, a[15].i64, a[16].f32, a[17].f32, a[18].i32);
}
#endif
