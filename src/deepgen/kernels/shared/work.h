// Which block does what, and in which order sums of several blocks come together: for every family of tiles.
//
// A family brings its Problem, BM, BN, BK, MAPPING and FIXUP, and a block that can `accumulate` a piece of work, `store`
// it, `leave` its sums in a slot of SLOT numbers, `add` those of a slot to them, and `add_up` those of many slots.
#pragma once

// The part of the work that a block does in one go: a tile of C, some steps of K.
struct Work {
    int batch, m, n;  // which matrix, and the tile's first row and column
    int k, steps;     // the first element of K, and how many tiles along it
    int tile, part;   // among all tiles of all matrices; which share of K
};

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

template <typename Block>
DG_DEVICE void do_share(const Problem& p, Block& block) {
#if FIXUP == 0
    Work w = place(p, block_id());
    block.accumulate(w);
    block.store(w);
#elif FIXUP < 3
    int tiles = tiles_of(p), part = block_id() / tiles;
    Work w = place(p, block_id() - part * tiles);
    int all = w.steps, from = (int)((i64)all * part / p.splits), to = (int)((i64)all * (part + 1) / p.splits);
    w.part = part;
    w.k = from * BK;
    w.steps = to - from;
    block.accumulate(w);
#if FIXUP == 1
    block.store(w);
#else
    // Whoever comes last adds up all parts, in their order, so that the result does not depend on who that is.
    TYPE_ACC* slots = p.partial + (i64)w.tile * p.splits * Block::SLOT;
    block.leave(slots + (i64)part * Block::SLOT);
    if (arrive(p.arrived + w.tile) == (u32)p.splits - 1) {
        block.add_up(slots, p.splits);
        block.store(w);
        reset(p.arrived + w.tile);
    }
#endif
#else
    // Stream-K: the steps of all tiles in a row, cut into equal shares. Blocks count from the last, so that a block
    // waits only for blocks that were started before it.
    int me = block_count() - 1 - block_id();
    int tiles = tiles_of(p), all = (p.k + BK - 1) / BK;
    i64 total = (i64)tiles * all, now = total * me / block_count(), end = total * (me + 1) / block_count();
    while (now < end) {
        int tile = (int)(now / all), first = (int)(now - (i64)tile * all);
        Work w = place(p, tile);
        w.k = first * BK;
        w.steps = end - now < all - first ? (int)(end - now) : all - first;
        barrier();
        block.accumulate(w);
        now += w.steps;
        if (first > 0) {
            block.leave(p.partial + (i64)me * Block::SLOT);
            raise(p.arrived + me);
            continue;
        }
        // The rest of this tile is with the blocks that follow: each has it as its first piece.
        i64 tile_end = (i64)(tile + 1) * all;
        for (int other = me + 1; now < tile_end; ++other) {
            i64 next = total * (other + 1) / block_count();
            if (next == now) continue;  // more blocks than steps: that one has nothing to do
            await(p.arrived + other);
            block.add(p.partial + (i64)other * Block::SLOT);
            now = next;
        }
        block.store(w);
    }
#endif
}
