// The kernel, and the one that adds up parts of K.
#pragma once

DG_KERNEL(THREADS, MIN_BLOCKS)
gemm(const TYPE_A* a, const TYPE_B* b, TYPE_C* c, TYPE_ACC* partial, u32* arrived, int m, int n, int k, int batch,
     int lda, int ldb, int ldc, i64 stride_a, i64 stride_b, i64 stride_c, TYPE_SCALE alpha, TYPE_SCALE beta,
#if BANDED
     int splits, int least, int most) {
#else
     int splits) {
#endif
    Problem p = {a, b, c, partial, arrived, m, n, k, batch, lda, ldb, ldc, stride_a, stride_b, stride_c, alpha, beta, splits};
#if BANDED
    p.least = least;
    p.most = most;
#endif
    Lane lane;
    Sums sums;
    Block block{p, lane, sums};
    do_share(p, block);
}

#if FIXUP == 1
// The second step: adds up the parts of K.
DG_KERNEL(256, 1)
gemm_reduce(TYPE_C* c, const TYPE_ACC* partial, int m, int n, int batch, int ldc, i64 stride_c, TYPE_SCALE alpha,
            TYPE_SCALE beta, int splits) {
    Problem p = {};
    p.alpha = alpha;
    p.beta = beta;
    int runs = n / STORE;
    i64 at = (i64)block_id() * 256 + thread_id(), all = (i64)batch * m * runs;
    if (at >= all) return;
    TYPE_ACC total[STORE] = {};
    for (int s = 0; s < splits; ++s) {
        Vec<TYPE_ACC, STORE> part = load_fresh<Vec<TYPE_ACC, STORE>>(partial + (s * all + at) * STORE);
        DG_UNROLL for (int e = 0; e < STORE; ++e) total[e] += part.v[e];
    }
    i64 line = at / runs, matrix = line / m;
    TYPE_C* to = c + matrix * stride_c + (line - matrix * m) * ldc + (at - line * runs) * STORE;
    finish<STORE>(p, to, total);
}
#endif
