// Which block does what, and how sums of several blocks come together.
#pragma once

DG_DEVICE int tiles_of(const Problem& p) {
    return (p.m + BM - 1) / BM * ((p.n + BN - 1) / BN) * p.batch;
}

// A block's sums as they lie in its threads: no index but the thread's own is needed to add them up.
constexpr int SLOT = THREADS * TM * TN;
constexpr int RUN = TN % 4 == 0 ? 4 : TN % 2 == 0 ? 2 : 1;

DG_DEVICE void leave(TYPE_ACC* slot, const Sums& sums) {
    DG_UNROLL for (int i = 0; i < TM; ++i)
        DG_UNROLL for (int j = 0; j < TN; j += RUN) {
            Vec<TYPE_ACC, RUN> run;
            DG_UNROLL for (int e = 0; e < RUN; ++e) run.v[e] = sums[i][j + e];
            store_global(slot + ((i * TN + j) / RUN * THREADS + thread_id()) * RUN, run);
        }
}

DG_DEVICE void add(Sums& sums, const TYPE_ACC* slot) {
    DG_UNROLL for (int i = 0; i < TM; ++i)
        DG_UNROLL for (int j = 0; j < TN; j += RUN) {
            Vec<TYPE_ACC, RUN> run =
                load_fresh<Vec<TYPE_ACC, RUN>>(slot + ((i * TN + j) / RUN * THREADS + thread_id()) * RUN);
            DG_UNROLL for (int e = 0; e < RUN; ++e) sums[i][j + e] += run.v[e];
        }
}

DG_KERNEL(THREADS, MIN_BLOCKS)
gemm(const TYPE_A* a, const TYPE_B* b, TYPE_C* c, TYPE_ACC* partial, u32* arrived, int m, int n, int k, int batch,
     int lda, int ldb, int ldc, i64 stride_a, i64 stride_b, i64 stride_c, TYPE_SCALE alpha, TYPE_SCALE beta,
     int splits) {
    Problem p = {a, b, c, partial, arrived, m, n, k, batch, lda, ldb, ldc, stride_a, stride_b, stride_c, alpha, beta, splits};
    Lane lane;
    Sums sums;
#if FIXUP == 0
    Work w = place(p, block_id());
    accumulate(sums, p, w, lane);
    store(p, w, lane, sums);
#elif FIXUP < 3
    int tiles = tiles_of(p), part = block_id() / tiles;
    Work w = place(p, block_id() - part * tiles);
    int all = w.steps, from = (int)((i64)all * part / splits), to = (int)((i64)all * (part + 1) / splits);
    w.part = part;
    w.k = from * BK;
    w.steps = to - from;
    accumulate(sums, p, w, lane);
#if FIXUP == 1
    store(p, w, lane, sums);
#else
    // Whoever comes last adds up all parts, in their order, so that the result does not depend on who that is.
    TYPE_ACC* slots = partial + (i64)w.tile * splits * SLOT;
    leave(slots + (i64)part * SLOT, sums);
    if (arrive(arrived + w.tile) != (u32)splits - 1) return;
    DG_UNROLL for (int i = 0; i < TM; ++i)
        DG_UNROLL for (int j = 0; j < TN; ++j) sums[i][j] = 0;
    for (int s = 0; s < splits; ++s) add(sums, slots + (i64)s * SLOT);
    store(p, w, lane, sums);
    reset(arrived + w.tile);
#endif
#else
    // Stream-K: the steps of all tiles in a row, cut into equal shares. Blocks count from the last, so that a block
    // waits only for blocks that were started before it.
    int me = block_count() - 1 - block_id();
    int tiles = tiles_of(p), all = (k + BK - 1) / BK;
    i64 total = (i64)tiles * all, at = total * me / block_count(), end = total * (me + 1) / block_count();
    while (at < end) {
        int tile = (int)(at / all), first = (int)(at - (i64)tile * all);
        Work w = place(p, tile);
        w.k = first * BK;
        w.steps = end - at < all - first ? (int)(end - at) : all - first;
        barrier();
        accumulate(sums, p, w, lane);
        at += w.steps;
        if (first > 0) {
            leave(partial + (i64)me * SLOT, sums);
            raise(arrived + me);
            continue;
        }
        // The rest of this tile is with the blocks that follow: each has it as its first piece.
        i64 tile_end = (i64)(tile + 1) * all;
        for (int other = me + 1; at < tile_end; ++other) {
            i64 next = total * (other + 1) / block_count();
            if (next == at) continue;  // more blocks than steps: that one has nothing to do
            await(arrived + other);
            add(sums, partial + (i64)other * SLOT);
            at = next;
        }
        store(p, w, lane, sums);
    }
#endif
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
