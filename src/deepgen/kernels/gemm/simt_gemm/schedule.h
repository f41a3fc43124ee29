// A block's sums on their way to other blocks, and the kernel.
#pragma once

// A block at work, as `work.h` asks for it.
struct Block {
    const Problem& p;
    const Lane& lane;
    Sums& sums;
#if FIXUP == 2
    // Sums lie in a slot as they lie in the tile, those of all groups added up: no thread needs its own to go on.
    static constexpr int SLOT = BM * BN;
    Work here;

    DG_DEVICE void accumulate(const Work& w) {
        here = w;
        ::accumulate(sums, p, w, lane);
    }
    DG_DEVICE void leave(TYPE_ACC*) const { ::store(p, here, lane, sums); }
    DG_DEVICE void add_up(const TYPE_ACC*, int) const { add_parts(p, here); }
    DG_DEVICE void store(const Work&) const {}
#else
    // Sums lie in a slot as they lie in threads: no index but the thread's own is needed to add them up.
    static constexpr int SLOT = THREADS * TM * TN, RUN = TN % WIDEST == 0 ? WIDEST : TN % 2 == 0 ? 2 : 1;

    DG_DEVICE void accumulate(const Work& w) { ::accumulate(sums, p, w, lane); }
    DG_DEVICE void store(const Work& w) { ::store(p, w, lane, sums); }
    DG_DEVICE void leave(TYPE_ACC* slot) const {
        DG_UNROLL for (int i = 0; i < TM; ++i)
            DG_UNROLL for (int j = 0; j < TN; j += RUN) {
                Vec<TYPE_ACC, RUN> run;
                DG_UNROLL for (int e = 0; e < RUN; ++e) run.v[e] = sums[i][j + e];
                store_global(slot + ((i * TN + j) / RUN * THREADS + thread_id()) * RUN, run);
            }
    }
    DG_DEVICE void add(const TYPE_ACC* slot) {
        DG_UNROLL for (int i = 0; i < TM; ++i)
            DG_UNROLL for (int j = 0; j < TN; j += RUN) {
                Vec<TYPE_ACC, RUN> run =
                    load_fresh<Vec<TYPE_ACC, RUN>>(slot + ((i * TN + j) / RUN * THREADS + thread_id()) * RUN);
                DG_UNROLL for (int e = 0; e < RUN; ++e) sums[i][j + e] += run.v[e];
            }
    }
#endif
};

DG_KERNEL(THREADS, MIN_BLOCKS)
gemm(const TYPE_A* a, const TYPE_B* b, TYPE_C* c, TYPE_ACC* partial, u32* arrived, int m, int n, int k, int batch,
     int lda, int ldb, int ldc, i64 stride_a, i64 stride_b, i64 stride_c, TYPE_SCALE alpha, TYPE_SCALE beta,
     int splits) {
    Problem p = {a, b, c, partial, arrived, m, n, k, batch, lda, ldb, ldc, stride_a, stride_b, stride_c, alpha, beta, splits};
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
