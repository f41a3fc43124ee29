// Which block does what: each has a tile of one expert's rows, which it finds by the offsets; where GRADIENT is 1, a tile
// of one expert's result, whose sums go over its rows. Takes the place of `work.h` of plain products, whose Problem it
// narrows to the expert; offsets are passed where those have counters.
#pragma once

struct Work {
    int batch, m, n;  // the expert, and the tile's first row and column
    int k, steps;     // the first element of K, and how many tiles along it
    int tile, part;
};

// Where the rows of experts end: whatever the offsets are, between the first row and the last.
struct Experts {
    const u32* offsets;
    int rows;
    DG_DEVICE int end(int expert) const {
        int row = expert < 0 ? 0 : (int)load_global<u32>(offsets + expert);
        return row < 0 ? 0 : row < rows ? row : rows;
    }
};

// A tile among those of `rows` x `columns` of them: groups of MAPPING along M, so that blocks that are at work at the
// same time share columns of B.
DG_DEVICE void place_tile(Work& w, int at, int rows, int columns) {
    int group = at / (MAPPING * columns), first = group * MAPPING;
    int height = rows - first < MAPPING ? rows - first : MAPPING;
    int inside = at - group * (MAPPING * columns);
    int column = inside / height;
    w.m = (first + inside - column * height) * BM;
    w.n = column * BN;
}

template <typename Block>
DG_DEVICE void do_share(const Problem& p, Block& block) {
    const Experts experts = {p.arrived, GRADIENT ? p.k : p.m};
    int columns = (p.n + BN - 1) / BN, at = block_id();
    Problem own = p;
    Work w = {0, 0, 0, 0, 0, at, 0};
#if GRADIENT
    int tiles = (p.m + BM - 1) / BM * columns;
    w.batch = at / tiles;
    place_tile(w, at - w.batch * tiles, tiles / columns, columns);
    int end = experts.end(w.batch);
    w.k = experts.end(w.batch - 1);
    w.steps = end > w.k ? (end - w.k + BK - 1) / BK : 1;  // without rows, one of zeros
    own.k = end > w.k ? end : w.k;
    own.stride_a = own.stride_b = 0;
#else
    constexpr int AT_ONCE = 8;  // offsets whose loads do not wait for each other
    int begin = 0, end = 0, own_tiles = 0;
    bool there = false;
    for (int first = 0; first < p.batch && !there; first += AT_ONCE) {
        int ends[AT_ONCE];
        DG_UNROLL for (int e = 0; e < AT_ONCE; ++e) ends[e] = experts.end(first + e < p.batch ? first + e : p.batch - 1);
        DG_UNROLL for (int e = 0; e < AT_ONCE; ++e) {
            if (there) continue;
            at -= own_tiles;
            begin = end;
            end = ends[e] > begin ? ends[e] : begin;
            own_tiles = (end - begin + BM - 1) / BM * columns;
            there = at < own_tiles;
            w.batch = first + e;
        }
    }
    if (!there) return;
    place_tile(w, at, (end - begin + BM - 1) / BM, columns);
    w.m += begin;
    w.steps = (p.k + BK - 1) / BK;
    own.m = end;
    own.stride_a = own.stride_c = 0;
#endif
    own.scale = p.scale + (i64)w.batch * (SCALE_STRIDE);
    Block mine = {own, block.at, block.sums};
    mine.accumulate(w);
    mine.store(w);
}
