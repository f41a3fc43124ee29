// A convolution as a product: A are filters in lines that a first step has packed, B are pixels that are gathered as
// they are loaded, and C is the result. A block's columns are pixels of one class: those that the same taps meet.
#pragma once
#include "finished.h"

// A line of B: an input channel and a tap.
typedef Vec<i32, 2> Line;  // numbers from the pixel that the first tap meets to this one; the tap, a byte a dimension

struct Problem {
    const TYPE_A* a;   // m numbers for each line, of each group
    const TYPE_B* b;
    TYPE_C* c;
    const Line* lines;
    const TYPE_C* bias;
    const TYPE_C* residual;
    TYPE_ACC* partial;  // sums that another block adds up
    u32* arrived;       // counters that are zero before and after every run
    int m, n, k, batch;
    int first[3];   // the pixel that the first tap of the class's first pixel meets
    int origin[3];  // where the class's first pixel lies in the result
    int splits;
};

constexpr int IMAGE = IN_D * IN_H * IN_W, RESULT = OUT_D * OUT_H * OUT_W;

typedef Tile<TYPE_A, BM, ScatterA, TM, THREAD_SCATTER_A, false, INNER_K_A, PAD_A, LOAD_A, EDGE_M == 1> TileA;

// Bit j: whether tap j meets the image.
template <int COUNT, int STEP, int SIZE>
DG_DEVICE u32 inside(int first) {
    u32 bits = 0;
    DG_UNROLL for (int j = 0; j < COUNT; ++j) bits |= (u32)((u32)(first + j * STEP) < (u32)SIZE) << j;
    return bits;
}

struct TileB : Tile<TYPE_B, BN, ScatterB, TN, THREAD_SCATTER_B, false, false, PAD_B, 1, EDGE_N == 1> {
    // A thread loads the same pixels of every line, and goes down some lines from load to load.
    struct Loader {
        static constexpr int PIXELS = BN > THREADS ? BN / THREADS : 1, DOWN = BN > THREADS ? 1 : THREADS / BN;
        static constexpr int EACH = (BK + DOWN - 1) / DOWN;
        static constexpr bool CHECKED = GUARD_D || GUARD_H || GUARD_W || EDGE_N == 1;
        static_assert(BN % THREADS == 0 || THREADS % BN == 0, "a thread has whole lines, or a pixel of each");
        const TYPE_B* from[PIXELS];
        u32 met[PIXELS][3];  // by tap, in each dimension
        const Line* lines;
        int left;
        Vec<TYPE_B, 1> held[ASYNC ? 1 : EACH * PIXELS];

        DG_DEVICE Loader(const Problem& p, const TYPE_B* image, int column, int step) {
            lines = p.lines + step;
            left = p.k - step;
            DG_UNROLL for (int i = 0; i < PIXELS; ++i) {
                int at = column + pixel(i), row = at / PIXELS_W;
                int d = row / PIXELS_H * STRIDE_D + p.first[0], h = row % PIXELS_H * STRIDE_H + p.first[1];
                int w = at % PIXELS_W * STRIDE_W + p.first[2];
                from[i] = image + (d * IN_H + h) * IN_W + w;
                bool real = EDGE_N != 1 || at < p.n;
                met[i][0] = real ? inside<TAPS_D, STEP_D, IN_D>(d) : 0;
                met[i][1] = inside<TAPS_H, STEP_H, IN_H>(h);
                met[i][2] = inside<TAPS_W, STEP_W, IN_W>(w);
            }
        }
        static DG_DEVICE int pixel(int i) { return thread_id() % (BN > THREADS ? THREADS : BN) + i * THREADS; }
        static DG_DEVICE int line(int i) { return (BN > THREADS ? 0 : thread_id() / BN) + i * DOWN; }
        static DG_DEVICE bool mine(int i) { return BK % DOWN == 0 || line(i) < BK; }
        static DG_DEVICE u32 target(int i, int of) { return (line(i) * PITCH + pixel(of)) * SIZE; }
        DG_DEVICE Line entry(int i) const {
            if (!EDGE_K || line(i) < left) return load_global<Line>(lines + line(i));
            return {{0, -1}};
        }
        DG_DEVICE bool real(const Line& entry, int of) const {
            u32 taps = (u32)entry.v[1], all = 1;
            if (EDGE_K && entry.v[1] < 0) return false;
            if (GUARD_D || EDGE_N == 1) all &= met[of][0] >> (taps & 255);
            if (GUARD_H) all &= met[of][1] >> (taps >> 8 & 255);
            if (GUARD_W) all &= met[of][2] >> (taps >> 16 & 255);
            return all & 1;
        }
        DG_DEVICE void advance() {
            lines += BK;
            left -= BK;
        }

#if ASYNC
        DG_DEVICE void copy(u32 stage) {
            DG_UNROLL for (int i = 0; i < EACH; ++i)
                if (mine(i)) {
                    Line at = entry(i);
                    DG_UNROLL for (int of = 0; of < PIXELS; ++of) {
                        u32 to = stage + target(i, of);
                        if (CHECKED || EDGE_K) copy_async_or_zero<SIZE>(to, from[of] + at.v[0], real(at, of));
                        else copy_async<SIZE>(to, from[of] + at.v[0]);
                    }
                }
            advance();
        }
#else
        DG_DEVICE void fetch() {
            DG_UNROLL for (int i = 0; i < EACH; ++i)
                if (mine(i)) {
                    Line at = entry(i);
                    DG_UNROLL for (int of = 0; of < PIXELS; ++of) {
                        Vec<TYPE_B, 1>& one = held[i * PIXELS + of];
                        if (!(CHECKED || EDGE_K) || real(at, of)) one = load_global<Vec<TYPE_B, 1>>(from[of] + at.v[0]);
                        else one = Vec<TYPE_B, 1>{};
                    }
                }
            advance();
        }
        DG_DEVICE void put(u32 stage) {
            DG_UNROLL for (int i = 0; i < EACH; ++i)
                if (mine(i))
                    DG_UNROLL for (int of = 0; of < PIXELS; ++of) store_shared(stage + target(i, of), held[i * PIXELS + of]);
        }
#endif
    };
};

DG_DEVICE TileA::Loader loader_a(const Problem& p, int batch, int row, int step) {
    return {p.a + (i64)(batch % CONV_GROUPS) * ALL_LINES * p.m, p.m, p.m, p.k, row, step};
}
DG_DEVICE TileB::Loader loader_b(const Problem& p, int batch, int column, int step) {
    return {p, p.b + (i64)batch * CHANNELS * IMAGE, column, step};
}

// COUNT neighbours of a filter's pixels.
template <int COUNT>
DG_DEVICE void finish_at(const Problem& p, int batch, int m, int n, const TYPE_ACC* sums) {
    if (FILTERS % 4 && m >= FILTERS) return;  // there for whole loads
    TYPE_ACC bias = BIAS ? load_global<TYPE_C>(p.bias + batch % CONV_GROUPS * FILTERS + m) : 0;
    i64 plane = ((i64)batch * FILTERS + m) * RESULT;
#if SCATTERED
    DG_UNROLL for (int e = 0; e < COUNT; ++e) {
        int row = (n + e) / PIXELS_W;
        int d = row / PIXELS_H * APART_D + p.origin[0], h = row % PIXELS_H * APART_H + p.origin[1];
        int w = (n + e) % PIXELS_W * APART_W + p.origin[2];
        if (d >= OUT_D || h >= OUT_H || w >= OUT_W) continue;
        i64 at = plane + (d * OUT_H + h) * OUT_W + w;
        TYPE_ACC residual = RESIDUAL ? load_global<TYPE_C>(p.residual + at) : 0;
        store_global(p.c + at, finished(sums[e], bias, residual));
    }
#else
    Vec<TYPE_C, COUNT> out, residual = {};
    if (RESIDUAL) residual = load_global<Vec<TYPE_C, COUNT>>(p.residual + plane + n);
    DG_UNROLL for (int e = 0; e < COUNT; ++e) out.v[e] = finished(sums[e], bias, residual.v[e]);
    store_global(p.c + plane + n, out);
#endif
}
