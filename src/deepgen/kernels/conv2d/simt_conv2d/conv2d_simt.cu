// 2-D convolution as an implicit GEMM on plain arithmetic units, any sizes: CUDA, HIP and CPU emulation.
//
// Rows of the product are output pixels, columns are output channels, and K runs over the filter's taps and the input
// channels. A block computes BM pixels x BN channels. It moves BK steps of K at a time through shared memory, and each
// of its threads holds TM x TN sums in registers. The patches of the image are never written to memory: a tile of them
// is gathered as it is loaded. The knobs are macros; `simt_conv2d.py` gives them all.
#include "dialect.h"

// The run-time arguments, as they are passed.
struct Problem {
    const TYPE_X* x;
    const TYPE_X* weight;
    TYPE_Y* y;
    int n, h, w, ci, co, k, stride, pad, out_h, out_w;
    DG_DEVICE int pixels() const { return n * out_h * out_w; }
    DG_DEVICE int reduced() const { return ci * k * k; }
};

#include "conv2d_tiles.h"

constexpr int THREADS_M = BM / TM, THREADS_N = BN / TN;
static_assert(THREADS == THREADS_M * THREADS_N, "the threads' tiles cover the block's");

typedef TYPE_ACC Sums[TM][TN];

// One tile's products. A thread's pixels and channels lie THREADS_M and THREADS_N apart, so that neighbouring lanes read
// neighbouring elements.
DG_DEVICE void multiply(Sums& sums, int lane_m, int lane_n) {
    const u32 first = shared_begin();
    DG_NO_UNROLL for (int outer = 0; outer < BK; outer += UNROLL)
        DG_UNROLL for (int inner = 0; inner < UNROLL; ++inner) {
            int step = outer + inner;
            TYPE_ACC a[TM], b[TN];
            DG_UNROLL for (int i = 0; i < TM; ++i)
                widen(load_shared<TYPE_X>(first + PixelTile::at(step, lane_m + i * THREADS_M)), a[i]);
            DG_UNROLL for (int j = 0; j < TN; ++j)
                widen(load_shared<TYPE_X>(first + PixelTile::BYTES + FilterTile::at(step, lane_n + j * THREADS_N)), b[j]);
            DG_UNROLL for (int i = 0; i < TM; ++i)
                DG_UNROLL for (int j = 0; j < TN; ++j) sums[i][j] = multiply_add(a[i], b[j], sums[i][j]);
        }
}

DG_DEVICE void store(const Problem& p, const Sums& sums, int first_pixel, int first_channel) {
    const int area = p.out_h * p.out_w;
    DG_UNROLL for (int i = 0; i < TM; ++i) {
        int pixel = first_pixel + i * THREADS_M;
        if (pixel >= p.pixels()) continue;
        DG_UNROLL for (int j = 0; j < TN; ++j) {
            int channel = first_channel + j * THREADS_N;
            if (channel >= p.co) continue;
            i64 at = CHANNELS_LAST ? (i64)pixel * p.co + channel
                                   : ((i64)(pixel / area) * p.co + channel) * area + pixel % area;
            TYPE_Y rounded;
            narrow(sums[i][j], rounded);
            store_global(p.y + at, rounded);
        }
    }
}

DG_KERNEL(THREADS, MIN_BLOCKS)
conv2d(const TYPE_X* x, const TYPE_X* weight, TYPE_Y* y, int n, int h, int w, int ci, int co, int k, int stride, int pad,
       int out_h, int out_w) {
    const Problem p = {x, weight, y, n, h, w, ci, co, k, stride, pad, out_h, out_w};
    const int across = (co + BN - 1) / BN, down = (p.pixels() + BM - 1) / BM;
    const int first_pixel = (CHANNELS_FIRST ? block_id() / across : block_id() % down) * BM;
    const int first_channel = (CHANNELS_FIRST ? block_id() % across : block_id() / down) * BN;
    const int lane_m = LANES_ALONG_PIXELS ? thread_id() % THREADS_M : thread_id() / THREADS_N;
    const int lane_n = LANES_ALONG_PIXELS ? thread_id() / THREADS_M : thread_id() % THREADS_N;

    Sums sums;
    DG_UNROLL for (int i = 0; i < TM; ++i)
        DG_UNROLL for (int j = 0; j < TN; ++j) sums[i][j] = 0;

    PixelTile pixels(p, first_pixel);
    FilterTile filters(first_channel);
    const u32 first = shared_begin();
    const int steps = p.reduced();
    pixels.fetch(p, 0);
    filters.fetch(p, 0);
    for (int step = 0; step < steps; step += BK) {
        pixels.put(first);
        filters.put(first + PixelTile::BYTES);
        barrier();
        // Past the end of K nothing is loaded: the guards of each element see to that.
        if (AHEAD) {
            pixels.fetch(p, step + BK);
            filters.fetch(p, step + BK);
        }
        multiply(sums, lane_m, lane_n);
        barrier();
        if (!AHEAD) {
            pixels.fetch(p, step + BK);
            filters.fetch(p, step + BK);
        }
    }
    store(p, sums, first_pixel + lane_m, first_channel + lane_n);
}
