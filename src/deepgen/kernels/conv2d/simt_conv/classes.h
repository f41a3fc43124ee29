// The classes of a transposed convolution: in each dimension, APART neighbours of the result meet different taps. All
// classes are done by one launch, those of the same input by neighbouring blocks: their results share lines of memory,
// which the cache then puts together. ROWS_WHOLE: a block does all classes of its rows, and stores whole rows.
#pragma once

DG_DEVICE int class_line(int d, int h, int w) { return ((d * APART_H + h) * APART_W + w) * CLASS_LINES; }

#if TRANSPOSED
// One dimension of a class: the input pixel of its first tap, and how many taps it has, from none on.
template <int KERNEL, int APART, int PAD, int DILATION, int PERIOD>
struct Phase {
    int first = 0, taps = 0;
    DG_DEVICE Phase(int origin) {
        for (int tap = 0; tap < PERIOD && tap < KERNEL; ++tap) {
            int at = origin + PAD - tap * DILATION;
            if (at % APART == 0) {
                first = at / APART;
                taps = (KERNEL - tap + PERIOD - 1) / PERIOD;
            }
        }
    }
};

DG_DEVICE Problem of_class(const Problem& all, int d, int h, int w) {
    Phase<KERNEL_D, APART_D, PADDED_D, DILATION_D, PERIOD_D> deep(d);
    Phase<KERNEL_H, APART_H, PADDED_H, DILATION_H, PERIOD_H> down(h);
    Phase<KERNEL_W, APART_W, PADDED_W, DILATION_W, PERIOD_W> across(w);
    Problem p = all;
    int line = class_line(d, h, w);
    p.a += (i64)line * p.m;
    p.lines += line;
    p.k = CHANNELS * deep.taps * down.taps * across.taps;
    p.first[0] = deep.first, p.first[1] = down.first, p.first[2] = across.first;
    p.origin[0] = d, p.origin[1] = h, p.origin[2] = w;
    return p;
}

#if ROWS_WHOLE
constexpr int LINE = BN * APART_W, LINE_PITCH = LINE + 1;  // odd: neighbouring rows are on different banks

// The sums of one class to their places in the rows that shared memory holds.
DG_DEVICE void hold(const Lane& lane, const Sums& sums, int w) {
    int row = ScatterA::first(lane.warp_m, lane.lane_m), column = ScatterB::first(lane.warp_n, lane.lane_n);
    u32 first = shared_begin() + HELD_AT + (row * LINE_PITCH + column * APART_W + w) * sizeof(TYPE_ACC);
    DG_UNROLL for (int i = 0; i < TM; ++i)
        DG_UNROLL for (int j = 0; j < TN; ++j)
            store_shared(first + (ScatterA::row(i) * LINE_PITCH + ScatterB::row(j) * APART_W) * sizeof(TYPE_ACC),
                         Vec<TYPE_ACC, 1>{{sums[i][j]}});
}

// Neighbouring threads store neighbours of a row, and go down the rows.
DG_DEVICE void store_rows(const Problem& p, const Work& w) {
    constexpr int COLUMNS = LINE < THREADS ? LINE : THREADS, DOWN = THREADS / COLUMNS;
    constexpr int EACH = (BM + DOWN - 1) / DOWN, AT_ONCE = EACH % 8 == 0 ? 8 : EACH % 4 == 0 ? 4 : 1;
    int down = thread_id() / COLUMNS, n = first_column(p, w), m = first_row(p, w);
    if (down >= DOWN) return;
    DG_NO_UNROLL for (int column = thread_id() % COLUMNS; column < LINE; column += COLUMNS) {
        int pixel = n + column / APART_W, at = n * APART_W + column;
        int row = at / (PIXELS_W * APART_W), across = at % (PIXELS_W * APART_W);
        int d = row / PIXELS_H * APART_D + p.origin[0], h = row % PIXELS_H * APART_H + p.origin[1];
        if ((EDGE_N == 1 && pixel >= p.n) || (EDGE_N == 2 && pixel < w.n)) continue;
        if (d >= OUT_D || h >= OUT_H || across >= OUT_W) continue;
        i64 to = ((i64)w.batch * FILTERS + m) * RESULT + (d * OUT_H + h) * OUT_W + across;
        u32 from = shared_begin() + HELD_AT + column * sizeof(TYPE_ACC);
        DG_NO_UNROLL for (int i = 0; i < EACH; i += AT_ONCE) {
            Vec<TYPE_ACC, 1> held[AT_ONCE];
            DG_UNROLL for (int e = 0; e < AT_ONCE; ++e) {
                int line = down + (i + e) * DOWN;
                if (BM % DOWN == 0 || line < BM) held[e] = load_shared<Vec<TYPE_ACC, 1>>(from + line * LINE_PITCH * sizeof(TYPE_ACC));
            }
            DG_UNROLL for (int e = 0; e < AT_ONCE; ++e) {
                int line = down + (i + e) * DOWN;
                if ((BM % DOWN != 0 && line >= BM) || !own(p, w, m + line, w.n) || m + line >= FILTERS) continue;
                finish_one(p, to + (i64)line * RESULT, held[e].v[0], bias_of(p, w.batch, m + line));
            }
        }
    }
}
#endif

DG_DEVICE void convolve_classes(const Problem& all, const Lane& lane, Sums& sums) {
#if FIXUP == 3
    static_assert(CLASSES_D * CLASSES_H * CLASSES_W == 1, "blocks share tiles that all have as many steps");
    Problem only = of_class(all, 0, 0, 0);
    Block block{only, lane, sums};
    do_share(only, block);
#else
    constexpr int ACROSS = ROWS_WHOLE ? 1 : CLASSES_W;
    int place_ = block_id() % (CLASSES_D * CLASSES_H * ACROSS), tile = block_id() / (CLASSES_D * CLASSES_H * ACROSS);
    int w = place_ % ACROSS, h = place_ / ACROSS % CLASSES_H, d = place_ / (ACROSS * CLASSES_H);
#if ROWS_WHOLE
    DG_NO_UNROLL for (w = 0; w < CLASSES_W; ++w) {
        Problem p = of_class(all, d, h, w);
        if (w > 0) barrier();  // all have read the last tiles of the class before
        accumulate(sums, p, place(p, tile), lane);
        hold(lane, sums, w);
    }
    barrier();
    Problem p = of_class(all, d, h, 0);
    store_rows(p, place(p, tile));
#else
    Problem p = of_class(all, d, h, w);
    Work work = place(p, tile);
    accumulate(sums, p, work, lane);
    store(p, work, lane, sums);
#endif
#endif
}
#endif
