// Which block does what: tiles of C in an order that is kind to the L2 cache, whole or in parts of K.
#pragma once
#include "numbers.h"
#if EPILOGUE
#include "epilogue_text.h"
#endif

// FIXUP: how the parts of a tile become one.
#define WHOLE 0   // there are no parts
#define SPLIT 1   // CLUSTER_K blocks of a cluster add theirs up in shared memory; PARTS of those through global memory,
                  // where the last of them adds all up, or, with EXCHANGE, each of them a share
#define STREAM 2  // every block takes the same number of steps of K, wherever tiles begin and end
#define TAIL 3    // tiles beyond the last full round are in PARTS, so that all blocks have some: with EXCHANGE

// Tiles that store whole grains of memory have some columns that the next one has, too.
constexpr int STEP_N = BN - OVERLAP;

// Blocks of a cluster lie along M first. They share tiles of A and B, or, along K, one tile of C.
constexpr int CLUSTER = CLUSTER_M * CLUSTER_N * CLUSTER_K;

// The run-time arguments, as they are passed.
struct Problem {
    TYPE_C* c;
    const TYPE_C* bias;
    const float* scale;
    float4* partial;  // sums on their way to another block
    u32* arrived;     // zero before and after every run
    int m, n, k, batch, ldc;
    i64 stride_c;
    TYPE_SCALE alpha, beta;
    int streamed;  // tiles whose steps are shared out: evenly, before the others are dealt whole; or in PARTS after them
#if EPILOGUE
    Operands operands;
#endif
};

// What a block does in one go: a tile of C, some steps of K.
struct Piece {
    int m, n, batch;   // the tile's first row and column, in which matrix
    int first, steps;  // of K
    int tile, part;    // among all tiles, or tiles of a cluster; which share of K, where K is split
};

struct Schedule {
    int rows, columns, tiles, steps;  // in tiles of a cluster; steps of K in a tile
    int whole;                        // tiles that come before those in PARTS
    int at, stride;                   // the unit at hand, or the tile, and how far it is to the next
    int rank;
    i64 step, end;  // of this block's even share

    DG_DEVICE Schedule(const Problem& p, int rank, int first, int every) : rank(rank) {
        rows = (p.m + BM * CLUSTER_M - 1) / (BM * CLUSTER_M);
        columns = (max(p.n - OVERLAP, 1) + STEP_N * CLUSTER_N - 1) / (STEP_N * CLUSTER_N);
        tiles = rows * columns * p.batch;
        steps = (p.k + BK - 1) / BK;
        whole = FIXUP == SPLIT ? 0 : FIXUP == TAIL ? tiles - p.streamed : tiles;
        int clusters = gridDim.x / CLUSTER, cluster = blockIdx.x / CLUSTER;
        at = cluster + first * clusters;
        stride = every * clusters;
        if (FIXUP == STREAM) {
            step = share(p, blockIdx.x);
            end = share(p, blockIdx.x + 1);
            at += p.streamed;
        }
    }

    // Where a block's even share begins.
    DG_DEVICE i64 share(const Problem& p, int block) const { return (i64)p.streamed * steps * block / gridDim.x; }

    // Whether anyone takes a unit `ahead` rounds after the one that `next` gave last.
    DG_DEVICE bool more(int ahead) const { return at - stride + ahead * (int)(gridDim.x / CLUSTER) < tiles; }

    DG_DEVICE bool next(const Problem& p, Piece& w) {
        w.part = 0;
        w.first = 0;
        w.steps = steps;
        if (FIXUP == STREAM && step < end) {
            w.tile = (int)(step / steps);
            w.first = (int)(step - (i64)w.tile * steps);
            w.steps = (int)min((i64)(steps - w.first), end - step);
            step += w.steps;
        } else {
            int divided = tiles - whole;
            if (at >= whole + divided * PARTS) return false;
            w.tile = at;
            if (divided && at >= whole) {
                w.part = (at - whole) / divided;
                w.tile = at - w.part * divided;
                int share = w.part * CLUSTER_K + (CLUSTER_K > 1 ? rank : 0);
                w.first = (int)((i64)steps * share / (PARTS * CLUSTER_K));
                w.steps = (int)((i64)steps * (share + 1) / (PARTS * CLUSTER_K)) - w.first;
            }
            at += stride;
        }
        place(w);
        return true;
    }

    // The place of step `at` on Hilbert's curve through a square of GROUP x GROUP, which ends beside the next square.
    static DG_DEVICE void along_curve(int at, int& i, int& o) {
        int x = 0, y = 0;
#pragma unroll
        for (int side = 1; side < GROUP; side *= 2) {
            int right = at / 2 & 1, up = (at ^ right) & 1;
            if (!up) {  // this quarter is turned over
                int across = right ? side - 1 - x : x;
                x = right ? side - 1 - y : y;
                y = across;
            }
            x += side * right;
            y += side * up;
            at /= 4;
        }
        i += x;
        o += y;
    }

    // Tiles go in bands of GROUP along one side, so that those at work at the same time share rows and columns.
    DG_DEVICE void place(Piece& w) const {
        int outer = ALONG_N ? columns : rows, inner = ALONG_N ? rows : columns;
        w.batch = w.tile / (rows * columns);
        int inside = w.tile - w.batch * (rows * columns);
        int band = inside / (GROUP * inner), first = band * GROUP;
        int height = FIXED && outer % GROUP == 0 ? GROUP : min(outer - first, GROUP);
        inside -= band * (GROUP * inner);
        int i = inside / height, o = first + inside - i * height;
        // In a band, whole squares may be gone through along a curve that never jumps.
        int square = i / GROUP * GROUP;
        if (HILBERT && height == GROUP && square + GROUP <= inner) {
            i = square, o = first;
            along_curve(inside - square * GROUP, i, o);
        }
        w.m = ALONG_N ? i : o;
        w.n = ALONG_N ? o : i;
        if (CLUSTER_K == 1) {
            w.m = w.m * CLUSTER_M + rank % CLUSTER_M;
            w.n = w.n * CLUSTER_N + rank / CLUSTER_M;
        }
        w.m *= BM;
        w.n *= STEP_N;
    }
};
