// GEMM with RISC-V vectors of any length: C = activation(alpha * op(A) op(B) + beta * C + bias), row-major, any M, N, K,
// batch, all four layouts. A and B are f32 (C too), f16 (C too, sums in f32) or i8 (C and sums in i32).
//
// C is computed in tiles of MR rows and NR groups of LMUL vector registers, which hold the sums. A step of K loads NR
// groups of B and multiplies each by MR numbers of A. The tile functions are in tile.h, which is generated. Rows that are left over are computed in smaller tiles, columns in single groups
// that are not full. B may be copied into panels, one step after the other, and A into strips.
#include <math.h>
#include <riscv_vector.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "rvv_numbers.h"

typedef struct {
    const IN *A, *B;
    const OUT *bias;
    OUT *C;
    long M, N, K, lda, ldb, ldc;
    FACTOR alpha, beta;
} product;

// What becomes of a tile's sums.
typedef struct {
    FACTOR alpha, beta;
    const OUT *bias;  // of the tile's first column
    int last;         // whether this is the last block of K: bias and activation follow
} finish;

static inline OUT activated(float x) {
    if (ACTIVATION == 2) {  // x (1 + tanh u) / 2 is x / (1 + e^-2u)
        float u = x * (0.79788456080286536f + 0.035677408136300125f * x * x);
        return (OUT)(x / (1 + expf(-2 * u)));
    }
    return (OUT)(ACTIVATION == 3 ? x / (1 + expf(-x)) : x);
}

// One group of sums of one row, to its place in C.
static inline void put(OUT *to, SUMS sums, const finish *f, long column, size_t vl) {
    SUMS x = scaled(sums, f->alpha, vl);
    if (f->beta != 0) x = plus_scaled(x, to, f->beta, vl);  // a C that is not asked for may hold anything, NaN too
    if (f->last && BIAS) x = plus(x, f->bias + column, vl);
    if (f->last && ACTIVATION == 1) x = positive(x, vl);
    store(to, x, vl);
    if (f->last && ACTIVATION > 1)
        for (size_t j = 0; j < vl; j++) to[j] = activated((float)to[j]);
}

#include "tile.h"

static inline long least(long a, long b) { return a < b ? a : b; }

// `rows` rows of A over kc steps, step after step.
static void pack_strip(IN *to, const IN *a, long lda, long rows, long kc) {
    for (long i = 0; i < rows; i++)
        for (long k = 0; k < kc;) {
            size_t vl = LENGTH(kc - k);
            if (A_T) store_strided(to + k * rows + i, rows, load_strided(a + k * lda + i, lda, vl), vl);
            else store_strided(to + k * rows + i, rows, load(a + i * lda + k, vl), vl);
            k += (long)vl;
        }
}

// `cols` columns of B, at most one group, over kc steps, step after step.
static void pack_group(IN *to, long width, const IN *b, long ldb, long cols, long kc) {
    size_t vl = LENGTH(cols);
    for (long k = 0; k < kc; k++) store_raw(to + k * width, B_T ? load_strided(b + k, ldb, vl) : load(b + k * ldb, vl), vl);
}

// The columns of the next chunk: NR whole groups, or one that may be shorter.
static inline long chunk(long left) {
    long group = (long)LENGTH_MAX();
    return left >= NR * group ? NR * group : least(group, left);
}

static void block(const product *g, IN *strip, IN *panels, long j0, long nc, long k0, long kc) {
    long group = (long)LENGTH_MAX();
    const IN *b = B_T ? g->B + j0 * g->ldb + k0 : g->B + k0 * g->ldb + j0;
    if (PACK_B)
        for (long j = 0, width; j < nc; j += width) {
            width = chunk(nc - j);
            for (long at = 0; at < width; at += group)
                pack_group(panels + j * kc + at, width, b + (B_T ? (j + at) * g->ldb : j + at), g->ldb,
                           least(group, width - at), kc);
        }
    for (long i = 0, rows; i < g->M; i += rows) {
        rows = rows_of_tile(g->M - i);
        const IN *a = A_T ? g->A + k0 * g->lda + i : g->A + i * g->lda + k0;
        if (PACK_A) pack_strip(strip, a, g->lda, rows, kc);
        for (long j = 0, width; j < nc; j += width) {
            width = chunk(nc - j);
            finish f = {.alpha = g->alpha, .beta = k0 ? 1 : g->beta, .bias = BIAS ? g->bias + j0 + j : 0,
                        .last = k0 + kc == g->K};
            long groups = NR > 1 && width == NR * group ? NR : 1;
            tile(rows, groups, PACK_A ? strip : a, PACK_A ? rows : g->lda, PACK_B ? panels + j * kc : b + j,
                 PACK_B ? width : g->ldb, g->C + i * g->ldc + j0 + j, g->ldc, kc, (size_t)(width / groups), &f);
        }
    }
}

// `workspace` holds a strip of A and a block of B, where they are packed.
void deepgen_gemm(const IN *A, const IN *B, const OUT *bias, OUT *C, IN *workspace, int64_t M, int64_t N, int64_t K,
                  int64_t batch, int64_t lda, int64_t ldb, int64_t ldc, int64_t stride_a, int64_t stride_b,
                  int64_t stride_c, FACTOR alpha, FACTOR beta) {
    for (long x = 0; x < batch; x++) {
        product g = {A + x * stride_a, B + x * stride_b, bias, C + x * stride_c, M, N, K, lda, ldb, ldc, alpha, beta};
        for (long j = 0; j < N; j += NC)
            for (long k = 0; k < K; k += KC)
                block(&g, workspace, workspace + (PACK_A ? MR * KC : 0), j, least(NC, N - j), k, least(KC, K - k));
    }
}
