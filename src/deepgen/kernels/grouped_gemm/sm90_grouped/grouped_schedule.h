// Which block does what where rows belong to experts: tiles of each expert's rows in turn, which every block counts over
// the offsets on the device. Takes the place of `schedule.h` of plain products; offsets are passed where those have
// counters. Where GRADIENT is 1, tiles are those of each expert's result, and sums go over its rows.
#pragma once
#include "numbers.h"

#define WHOLE 0
#define SPLIT 1
#define STREAM 2
#define TAIL 3
constexpr int STEP_N = BN, CLUSTER = 1;
static_assert(FIXUP == WHOLE && CLUSTER_M * CLUSTER_N * CLUSTER_K == 1 && OVERLAP == 0, "tiles are whole");
static_assert(!(GRADIENT && PING_PONG), "warpgroups take turns over tiles of as many steps");

// The run-time arguments, as they are passed.
struct Problem {
    TYPE_C* c;
    const TYPE_C* bias;
    const float* scale;
    float4* partial;
    u32* offsets;  // where each expert's rows end
    int m, n, k, batch, ldc;
    i64 stride_c;
    TYPE_SCALE alpha, beta;
    int streamed;
};

// What a block does in one go: a tile of an expert's result.
struct Piece {
    int m, n, batch;   // the tile's first row and column, in which matrix of C
    int first, steps;  // of K
    int tile, part;
    int expert, end;  // whose tile it is, and where its rows end
    int k, depth;     // the first element of sums, and how many there are
};

// What a tile's results are made with: rows end where the expert's do, and factors are its own.
DG_DEVICE Problem of_expert(const Problem& p, const Piece& w) {
    Problem own = p;
    own.m = w.end;
    own.scale = p.scale + (i64)w.expert * (SCALE_STRIDE);
    return own;
}

struct Schedule {
    int columns, tiles, steps;  // steps of K in a tile, where all tiles have as many
    int at, stride;             // the tile at hand, and how far it is to the next
    int expert = -1, begin = 0, end = 0, before = 0, own = 0;  // whose tiles it is among: how many come before, and it has

    DG_DEVICE Schedule(const Problem& p, int rank, int first, int every) {
        columns = (p.n + BN - 1) / BN;
        steps = (p.k + BK - 1) / BK;
        tiles = 0;
        if (GRADIENT) {
            tiles = rows_of_tiles(p.m) * columns * p.batch;
        } else {
            int from = 0;
#pragma unroll 8  // so that loads do not wait for each other
            for (int e = 0; e < p.batch; ++e) {
                int to = max(from, row(p, e));
                tiles += rows_of_tiles(to - from) * columns;
                from = to;
            }
        }
        at = blockIdx.x + first * gridDim.x;
        stride = every * gridDim.x;
    }

    static DG_DEVICE int rows_of_tiles(int rows) { return (rows + BM - 1) / BM; }
    // Where an expert's rows end: whatever the offsets are, between the first row and the last.
    static DG_DEVICE int row(const Problem& p, int e) { return e < 0 ? 0 : max(0, min((int)p.offsets[e], GRADIENT ? p.k : p.m)); }

    // Whether anyone takes a tile `ahead` rounds after the one that `next` gave last.
    DG_DEVICE bool more(int ahead) const { return at - stride + ahead * (int)gridDim.x < tiles; }

    DG_DEVICE bool next(const Problem& p, Piece& w) {
        if (at >= tiles) return false;
        w.tile = at;
        w.part = w.first = 0;
        if (GRADIENT) {
            own = rows_of_tiles(p.m) * columns;
            w.expert = w.batch = at / own;
            before = w.expert * own;
            begin = row(p, w.expert - 1);
            end = max(begin, row(p, w.expert));
            w.k = begin;
            w.depth = end - begin;
            w.steps = max(1, (w.depth + BK - 1) / BK);  // without rows, one of zeros
            w.end = p.m;
            place(w, rows_of_tiles(p.m), 0);
        } else {
            while (at >= before + own) {
                before += own;
                begin = end;
                end = max(begin, row(p, ++expert));
                own = rows_of_tiles(end - begin) * columns;
            }
            w.expert = expert;
            w.batch = w.k = 0;
            w.depth = p.k;
            w.steps = steps;
            w.end = end;
            place(w, rows_of_tiles(end - begin), begin);
        }
        at += stride;
        return true;
    }

    // Tiles go in bands of GROUP along one side, so that those at work at the same time share rows and columns.
    DG_DEVICE void place(Piece& w, int rows, int from) const {
        int outer = ALONG_N ? columns : rows, inner = ALONG_N ? rows : columns;
        int inside = at - before, band = inside / (GROUP * inner), first = band * GROUP;
        int height = min(outer - first, GROUP);
        inside -= band * (GROUP * inner);
        int i = inside / height, o = first + inside - i * height;
        w.m = from + (ALONG_N ? i : o) * BM;
        w.n = (ALONG_N ? o : i) * BN;
    }
};
