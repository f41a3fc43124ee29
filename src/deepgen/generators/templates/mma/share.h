// Which block does what, and how sums of several blocks come together.
#pragma once

DG_DEVICE Work place(const Problem& p, int tile) {
    int tiles_m = (p.m + BM - 1) / BM, tiles_n = (p.n + BN - 1) / BN;
    Work w;
    w.tile = tile;
    w.batch = tile / (tiles_m * tiles_n);
    int at = tile - w.batch * (tiles_m * tiles_n);
    // Groups of MAPPING tiles along M, so that blocks that are at work at the same time share columns of B.
    int group = at / (MAPPING * tiles_n), first = group * MAPPING;
    int height = tiles_m - first < MAPPING ? tiles_m - first : MAPPING;
    int inside = at - group * (MAPPING * tiles_n);
    w.n = inside / height;
    w.m = (first + inside - w.n * height) * BM;
    w.n *= BN;
    w.k = 0;
    w.part = 0;
    w.steps = (p.k + BK - 1) / BK;
    return w;
}

DG_DEVICE int tiles_of(const Problem& p) {
    return (p.m + BM - 1) / BM * ((p.n + BN - 1) / BN) * p.batch;
}

// A block's sums as they lie in its threads: no index but the thread's own is needed to add them up.
constexpr i64 SLOT = (i64)THREADS_K * TILES_M * TILES_N * 4;

DG_DEVICE void leave(TYPE_ACC* slot, const Place& at, const Sums& sums) {
    if (at.group != 0) return;
    DG_UNROLL for (int i = 0; i < TILES_M * TILES_N; ++i)
        store_global(slot + (i * THREADS_K + thread_id()) * 4, as_one(sums[i / TILES_N][i % TILES_N]));
}

DG_DEVICE void add(Sums& sums, const Place& at, const TYPE_ACC* slot) {
    if (at.group != 0) return;
    DG_UNROLL for (int i = 0; i < TILES_M * TILES_N; ++i) {
        Vec<TYPE_ACC, 4> more = load_fresh<Vec<TYPE_ACC, 4>>(slot + (i * THREADS_K + thread_id()) * 4);
        DG_UNROLL for (int e = 0; e < 4; ++e) sums[i / TILES_N][i % TILES_N][e] += more.v[e];
    }
}

DG_KERNEL(THREADS, MIN_BLOCKS)
gemm(DG_PROBLEM) {
    Problem p = DG_GIVEN;
    Place at;
    Sums sums;
#if FIXUP == 0
    Work w = place(p, block_id());
    accumulate(sums, p, w, at);
    store(p, w, at, sums);
#elif FIXUP < 3
    int tiles = tiles_of(p), part = block_id() / tiles;
    Work w = place(p, block_id() - part * tiles);
    int all = w.steps, from = (int)((i64)all * part / splits), to = (int)((i64)all * (part + 1) / splits);
    w.part = part;
    w.k = from * BK;
    w.steps = to - from;
    accumulate(sums, p, w, at);
#if FIXUP == 1
    store(p, w, at, sums);
#else
    // Whoever comes last adds up all parts, in their order, so that the result does not depend on who that is.
    TYPE_ACC* slots = partial + (i64)w.tile * splits * SLOT;
    leave(slots + part * SLOT, at, sums);
    if (arrive(arrived + w.tile) == (u32)splits - 1) {
        DG_UNROLL for (int i = 0; i < TILES_M; ++i)
            DG_UNROLL for (int j = 0; j < TILES_N; ++j)
                DG_UNROLL for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;
        DG_NO_UNROLL for (int s = 0; s < splits; ++s) add(sums, at, slots + s * SLOT);
        store(p, w, at, sums);
        reset(arrived + w.tile);
    }
#endif
#else
    // Stream-K: the steps of all tiles in a row, cut into equal shares. Blocks count from the last, so that a block
    // waits only for blocks that were started before it.
    int me = block_count() - 1 - block_id();
    int tiles = tiles_of(p), all = (k + BK - 1) / BK;
    i64 total = (i64)tiles * all, now = total * me / block_count(), end = total * (me + 1) / block_count();
    while (now < end) {
        int tile = (int)(now / all), first = (int)(now - (i64)tile * all);
        Work w = place(p, tile);
        w.k = first * BK;
        w.steps = end - now < all - first ? (int)(end - now) : all - first;
        barrier();
        accumulate(sums, p, w, at);
        now += w.steps;
        if (first > 0) {
            leave(partial + me * SLOT, at, sums);
            raise(arrived + me);
            continue;
        }
        // The rest of this tile is with the blocks that follow: each has it as its first piece.
        i64 tile_end = (i64)(tile + 1) * all;
        for (int other = me + 1; now < tile_end; ++other) {
            i64 next = total * (other + 1) / block_count();
            if (next == now) continue;  // more blocks than steps: that one has nothing to do
            await(arrived + other);
            add(sums, at, partial + other * SLOT);
            now = next;
        }
        store(p, w, at, sums);
    }
#endif
    block_ends();
}

#if FIXUP == 1
// The second step: adds up the parts of K.
DG_KERNEL(256, 1)
gemm_reduce(DG_PROBLEM) {
    Problem p = DG_GIVEN;
    int runs = n / PART;
    i64 now = (i64)block_id() * 256 + thread_id(), all = (i64)batch * m * runs;
    if (now >= all) return;
    TYPE_ACC total[PART] = {};
    for (int s = 0; s < splits; ++s) {
        Vec<TYPE_ACC, PART> more = load_fresh<Vec<TYPE_ACC, PART>>(partial + (s * all + now) * PART);
        DG_UNROLL for (int e = 0; e < PART; ++e) total[e] += more.v[e];
    }
    i64 line = now / runs;
    int matrix = (int)(line / m);
    finish<PART>(p, matrix, (int)(line - (i64)matrix * m), (int)(now - line * runs) * PART, total);
}
#endif
