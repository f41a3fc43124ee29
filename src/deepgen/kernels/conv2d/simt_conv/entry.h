// Two kernels: one that packs the filters once for all images, and the convolution of all classes of pixels.
#pragma once
#include "classes.h"

DG_KERNEL(THREADS, MIN_BLOCKS)
convolve(const TYPE_B* x, const TYPE_A* packed, const Line* lines, const TYPE_C* bias, const TYPE_C* residual, TYPE_C* y,
         TYPE_ACC* partial, u32* arrived, int batch) {
    constexpr int M = (FILTERS + 3) / 4 * 4, N = PIXELS_D * PIXELS_H * PIXELS_W;
    Problem p = {packed, x, y, lines, bias, residual, partial, arrived, M, N, CLASS_LINES, batch,
                 {-PADDED_D, -PADDED_H, -PADDED_W}, {0, 0, 0}, 1};
    Lane lane;
    Sums sums;
#if TRANSPOSED
    convolve_classes(p, lane, sums);
#else
    Block block{p, lane, sums};
    do_share(p, block);
#endif
}

// Where a tap of one dimension belongs: in a transposed convolution those that meet the same pixels are PERIOD apart.
template <int APART, int PAD, int DILATION, int PERIOD>
struct Tap {
    int origin, index;
    DG_DEVICE Tap(int tap) : origin(((tap * DILATION - PAD) % APART + APART) % APART), index(tap / PERIOD) {}
    // Taps of the class with this origin, which are as many as this one's.
    static DG_DEVICE int count(int tap, int all) { return (all - tap % PERIOD + PERIOD - 1) / PERIOD; }
};

// A thread has one number of a line: weight is FILTERS x CHANNELS x taps of a group, or CHANNELS x FILTERS x taps.
DG_KERNEL(256, 1)
pack_filters(const TYPE_A* weight, TYPE_A* packed, Line* lines) {
    constexpr int M = (FILTERS + 3) / 4 * 4, ALL = KERNEL_D * KERNEL_H * KERNEL_W;
    i64 at = (i64)block_id() * 256 + thread_id();
    if (at >= (i64)CONV_GROUPS * CHANNELS * ALL * M) return;
    int filter = (int)(at % M), place = (int)(at / M), tap = place % ALL, channel = place / ALL % CHANNELS;
    int group = place / ALL / CHANNELS;
    int kd = tap / (KERNEL_H * KERNEL_W), kh = tap / KERNEL_W % KERNEL_H, kw = tap % KERNEL_W;
    typedef Tap<APART_D, PADDED_D, DILATION_D, PERIOD_D> TapD;
    typedef Tap<APART_H, PADDED_H, DILATION_H, PERIOD_H> TapH;
    typedef Tap<APART_W, PADDED_W, DILATION_W, PERIOD_W> TapW;
    TapD d(kd);
    TapH h(kh);
    TapW w(kw);
    int across = TapW::count(kw, KERNEL_W), down = TapH::count(kh, KERNEL_H), deep = TapD::count(kd, KERNEL_D);
    int line = class_line(d.origin, h.origin, w.origin);
    int taps = deep * down * across, index = (d.index * down + h.index) * across + w.index;
    if (ONE_TAP) line += (channel / BK * taps + index) * BK + channel % BK;
    else line += channel * taps + index;
    i64 from = TRANSPOSED ? ((i64)(group * CHANNELS + channel) * FILTERS + filter) * ALL + tap
                          : ((i64)(group * FILTERS + filter) * CHANNELS + channel) * ALL + tap;
    TYPE_A value = 0;
    if (filter < FILTERS) value = load_global<TYPE_A>(weight + from);
    store_global(packed + ((i64)group * ALL_LINES + line) * M + filter, value);
    if (group == 0 && filter == 0) {
        int offset = ((channel * IN_D + d.index * STEP_D) * IN_H + h.index * STEP_H) * IN_W + w.index * STEP_W;
        store_global(lines + line, Line{{offset, d.index | h.index << 8 | w.index << 16}});
    }
}
