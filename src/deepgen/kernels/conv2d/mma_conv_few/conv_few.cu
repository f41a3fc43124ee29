// 2-D convolution of few input channels, as the first layer of a network has: on tensor cores, by warp-wide products.
//
// A block computes TILE_H x TILE_W pixels of an image by BN channels, tile after tile. The lines of the image that a tile
// needs are copied ahead. The pixels that it needs lie in shared memory once, STORED numbers each: a row of a filter is then contiguous, whatever the pixel. K runs over the
// filter's rows; in each, over chunks of 8 numbers (16 bytes). What a row's last chunk has beyond the row is set to
// zero after it was loaded: whatever lies there in the image, a NaN as well, has no part in the sum.
// With channels last, pixels are the rows of the product; with channels first, channels are: so that what a thread
// stores is contiguous. The knobs are macros; `mma_conv_few` gives them all. docs/kernels/mma_conv_few.md has the ladder.
#include "patch.h"

constexpr int WARPS_M = TILE / WM, WARPS_N = BN / WN;
constexpr int HALVES = WM / 8;    // of pixels, in a warp's share: what one matrix holds
constexpr int BLOCKS_N = WN / 8;  // the same of channels
static_assert(TILE % WM == 0 && WM % 16 == 0 && BN % WN == 0 && WN % 16 == 0, "warps' shares cover the block's tile");
static_assert(THREADS == WARPS_M * WARPS_N * 32, "a warp for each share");
#if CHANNELS_LAST
constexpr int TILES_A = WM / 16, TILES_B = BLOCKS_N;
#else
constexpr int TILES_A = WN / 16, TILES_B = HALVES;
#endif
typedef f32 Sums[TILES_A][TILES_B][4];

// Where a warp and its lanes stand.
struct Place {
    int m, n;        // the warp's first pixel in the tile and its first channel in the block's
    u32 pixels;      // where this lane's rows of pixels begin, and its part of chunks
    u32 weights;
    u32 mask;        // of its word in a row's last chunk
    int upper;       // which of two chunks it gives the addresses of
    DG_DEVICE Place() {
        int warp = thread_id() / 32, lane = thread_id() % 32, g = lane / 4, t = lane % 4;
        m = warp % WARPS_M * WM;
        n = warp / WARPS_M * WN;
        upper = lane / 16;
        const u32 first = shared_begin();
        if (MATRIX_LOADS) pixels = first + WEIGHT_BYTES + pixel_at(m) + lane % 8 * PIXEL + lane / 8 % 2 * PAIR;
        else pixels = first + WEIGHT_BYTES + pixel_at(m) + g * PIXEL + t * 4;
        weights = first + lane % 16 * WEIGHT_PITCH + (n + upper * 8) * 2;
        mask = 2 * t + 1 < REST ? ~0u : 2 * t < REST ? 0xFFFFu : 0u;
    }
};

struct Fragments {
    u32 pixels[HALVES / 2][4];  // of 16 pixels: the first eight, the others; the same of the second chunk
    u32 weights[BLOCKS_N / 2][4];

    DG_DEVICE void load(const Place& at, int step) {
        const int low = 2 * step, high = low + 1;
        DG_UNROLL for (int i = 0; i < HALVES / 2; ++i) {
            const u32 from = at.pixels + pixel_at(16 * i);
            if (MATRIX_LOADS) {
                const u32 apart = high < CHUNKS ? chunk_at(high) - chunk_at(low) : 0;
                load_matrices(pixels[i], from + chunk_at(low) + at.upper * apart);
            } else
                DG_UNROLL for (int w = 0; w < 4; ++w)
                    if (low + w / 2 < CHUNKS) pixels[i][w] = load_shared<u32>(from + w % 2 * PAIR + chunk_at(low + w / 2));
            DG_UNROLL for (int w = 0; w < 4; ++w) {
                const int chunk = low + w / 2;
                if (chunk >= CHUNKS) pixels[i][w] = 0;
                else if (REST < 8 && chunk % ROW_CHUNKS == ROW_CHUNKS - 1) pixels[i][w] &= at.mask;
            }
        }
        DG_UNROLL for (int j = 0; j < BLOCKS_N / 2; ++j)
            load_matrices_turned(weights[j], at.weights + step * 16 * WEIGHT_PITCH + j * 32);
    }
};

DG_DEVICE void multiply(Sums& sums, const Fragments& f) {
    DG_UNROLL for (int i = 0; i < TILES_A; ++i)
        DG_UNROLL for (int j = 0; j < TILES_B; ++j) {
#if CHANNELS_LAST
            const u32 b[2] = {f.weights[j / 2][j % 2 * 2], f.weights[j / 2][j % 2 * 2 + 1]};
            product(sums[i][j], f.pixels[i], b);
#else
            const u32 a[4] = {f.weights[i][0], f.weights[i][2], f.weights[i][1], f.weights[i][3]};
            const u32 b[2] = {f.pixels[j / 2][j % 2], f.pixels[j / 2][j % 2 + 2]};
            product(sums[i][j], a, b);
#endif
        }
}

DG_DEVICE void accumulate(Sums& sums, const Place& at) {
    DG_UNROLL for (int i = 0; i < TILES_A; ++i)
        DG_UNROLL for (int j = 0; j < TILES_B; ++j)
            DG_UNROLL for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;
    Fragments f[FRAGMENTS];
#if FRAGMENTS == 2
    f[0].load(at, 0);
    DG_UNROLL for (int step = 0; step < STEPS; ++step) {
        if (step + 1 < STEPS) f[(step + 1) % 2].load(at, step + 1);
        multiply(sums, f[step % 2]);
    }
#else
    DG_UNROLL for (int step = 0; step < STEPS; ++step) {
        f[0].load(at, step);
        multiply(sums, f[0]);
    }
#endif
}

// What a thread has of a row of sums: two neighbours, or as many as WIDE blocks of columns that take turns make.
constexpr int RUN = 2 * WIDE;

template <int COUNT>
DG_DEVICE Vec<TYPE_A, COUNT> finish(const f32* sums, int channel, const Vec<TYPE_A, COUNT>& more) {
    Vec<TYPE_A, COUNT> out;
    DG_UNROLL for (int e = 0; e < COUNT; ++e) {
        f32 bias = 0, residual = 0;
        if (BIAS) bias = load_shared<f32>(shared_begin() + BIAS_AT + (channel + (CHANNELS_LAST ? e : 0)) * 4);
        if (RESIDUAL) widen(more.v[e], residual);
        narrow(finished(sums[e], bias, residual), out.v[e]);
    }
    return out;
}

#if STAGED
// Results go through shared memory: so what neighbouring threads store is contiguous, however few each can store at once.
constexpr int LINE = CHANNELS_LAST ? BN : TILE_W, RESULT_LINES = CHANNELS_LAST ? TILE : BN * TILE_H;  // contiguous in y
constexpr u32 RESULT_PITCH = (CHANNELS_LAST ? BN : TILE) * 2 + 16, RESULT_AT = LINES_AT + STAGES * LINES_BYTES;
constexpr int RESULT_UNITS = RESULT_LINES * (LINE / STORE), AT_ONCE = 8;

DG_DEVICE void store(const Problem& p, const Tile& tile, const Place& at, int first, const Sums& sums) {
    const int g = thread_id() % 32 / 4, t = thread_id() % 4;
    const u32 begin = shared_begin() + RESULT_AT;
    const int row_0 = (CHANNELS_LAST ? at.m : at.n) + g, column_0 = (CHANNELS_LAST ? at.n : at.m) + t * 2;
    DG_UNROLL for (int i = 0; i < TILES_A * 2; ++i)
        DG_UNROLL for (int j = 0; j < TILES_B; ++j) {
            const int row = row_0 + i * 8, column = column_0 + j * 8;
            const f32 run[2] = {sums[i / 2][j][i % 2 * 2], sums[i / 2][j][i % 2 * 2 + 1]};
            store_shared(begin + row * RESULT_PITCH + column * 2, finish<2>(run, CHANNELS_LAST ? column : row, {}));
        }
    barrier();
    DG_NO_UNROLL for (int from = thread_id(); from < RESULT_UNITS; from += THREADS * AT_ONCE)
        DG_UNROLL for (int i = 0; i < AT_ONCE; ++i) {
            const int unit = from + i * THREADS, line = unit / (LINE / STORE), inside = unit % (LINE / STORE) * STORE;
            const int channel = CHANNELS_LAST ? inside : line / TILE_H, row = CHANNELS_LAST ? line / TILE_W : line % TILE_H;
            const int up = tile.row() + row, across = tile.column() + (CHANNELS_LAST ? line % TILE_W : inside);
            if (unit >= RESULT_UNITS || up >= p.out_h || across >= p.out_w || first + channel >= p.co) continue;
            const i64 to = CHANNELS_LAST ? (((i64)tile.image * p.out_h + up) * p.out_w + across) * p.co + first + channel
                                         : (((i64)tile.image * p.co + first + channel) * p.out_h + up) * p.out_w + across;
            const u32 place = CHANNELS_LAST ? line * RESULT_PITCH : channel * RESULT_PITCH + row * TILE_W * 2;
            store_global(p.y + to, load_shared<Vec<u16, STORE>>(begin + place + inside * 2));
        }
}
#else
DG_DEVICE void store(const Problem& p, const Tile& tile, const Place& at, int first, const Sums& sums) {
    typedef Vec<TYPE_A, STORE> Stored;
    const int g = thread_id() % 32 / 4, t = thread_id() % 4;
    DG_UNROLL for (int i = 0; i < TILES_A * 2; ++i)
        DG_UNROLL for (int j = 0; j < TILES_B; j += WIDE) {
            f32 run[RUN];
            DG_UNROLL for (int b = 0; b < RUN; ++b) run[b] = sums[i / 2][j + b / 2][i % 2 * 2 + b % 2];
            const int row = i * 8 + g, column = j * 8 + t * RUN;
            const int pixel = at.m + (CHANNELS_LAST ? row : column), channel = at.n + (CHANNELS_LAST ? column : row);
            const int up = tile.row() + pixel / TILE_W, across = tile.column() + pixel % TILE_W;
            if (up >= p.out_h || across >= p.out_w || first + channel >= p.co) continue;
            const int left = CHANNELS_LAST ? p.co - first - channel : p.out_w - across;
            const i64 to = CHANNELS_LAST ? (((i64)tile.image * p.out_h + up) * p.out_w + across) * p.co + first + channel
                                         : (((i64)tile.image * p.co + first + channel) * p.out_h + up) * p.out_w + across;
            DG_UNROLL for (int s = 0; s < RUN; s += STORE) {
                if (s >= left) continue;
                Stored more = {};
                if (RESIDUAL) more = load_global<Stored>(p.residual + to + s);
                store_global(p.y + to + s, finish<STORE>(run + s, channel + (CHANNELS_LAST ? s : 0), more));
            }
        }
}
#endif

DG_KERNEL(THREADS, MIN_BLOCKS)
conv2d_few(const TYPE_A* x, const TYPE_A* weight, const TYPE_A* bias, const TYPE_A* residual, TYPE_A* y, int n, int h,
           int w, int co, int pad_h, int pad_w, int out_h, int out_w) {
    const Problem p = {x, weight, bias, residual, y, n, h, w, co, pad_h, pad_w, out_h, out_w};
    const int groups = (co + BN - 1) / BN, first = block_id() % groups * BN;
    const int rows = (out_h + TILE_H - 1) / TILE_H, columns = (out_w + TILE_W - 1) / TILE_W, apart = block_count() / groups;
    const Tile by(apart, rows, columns);
    Tile tile(block_id() / groups, rows, columns), next = tile;
    const Place at;
    const u32 lines = shared_begin() + LINES_AT;
    auto ask = [&](u32 slot) {  // for the next tile's part of the image
        if (next.image < n) copy_lines(p, next, lines + slot * LINES_BYTES);
        copy_commit();
        next.advance(by, rows, columns);
    };
    DG_UNROLL for (int s = 0; s < STAGES - 1; ++s) ask(s);
    fill_weights(p, first);
    u32 slot = 0;
    DG_NO_UNROLL for (; tile.image < n; tile.advance(by, rows, columns)) {
        copy_wait<STAGES - 2>();
        barrier();  // its lines are there for all, and all are done with the patch and with the lines before
        ask(slot == 0 ? STAGES - 1 : slot - 1);
        fill_patch(p, tile, lines + slot * LINES_BYTES);
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        barrier();
        Sums sums;
        accumulate(sums, at);
        store(p, tile, at, first, sums);
    }
    copy_wait<0>();
    block_ends();
}
