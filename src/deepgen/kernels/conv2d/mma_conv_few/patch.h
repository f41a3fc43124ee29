// The part of an image that a tile needs, and the filters: how both lie in shared memory, and how they come there.
#pragma once
#include "dialect_mma.h"
#include "epilogue.h"

// The run-time arguments, as they are passed.
struct Problem {
    const TYPE_A* x;
    const TYPE_A* weight;
    const TYPE_A* bias;
    const TYPE_A* residual;
    TYPE_A* y;
    int n, h, w, co, pad_h, pad_w, out_h, out_w;
};

constexpr int TILE = TILE_H * TILE_W, THREADS = TILE / WM * (BN / WN) * 32;
constexpr int ROW = KW * STORED, ROW_CHUNKS = (ROW + 7) / 8, REST = ROW - (ROW_CHUNKS - 1) * 8;
constexpr int CHUNKS = KH * ROW_CHUNKS, STEPS = (CHUNKS + 1) / 2;
constexpr int PATCH_H = (TILE_H - 1) * STRIDE_H + (KH - 1) * DILATION_H + 1, PATCH_W = (TILE_W - 1) * STRIDE_W + KW;
constexpr u32 PIXEL = STRIDE_W * STORED * 2;  // bytes from a pixel of the result to the next
constexpr u32 PITCH = ((TILE_W - 1) * PIXEL + ROW_CHUNKS * 16 + 15) / 16 * 16, PATCH_BYTES = PATCH_H * PITCH;
constexpr u32 WEIGHT_PITCH = (BN + 8) * 2, BIAS_AT = STEPS * 16 * WEIGHT_PITCH;
constexpr u32 WEIGHT_BYTES = BIAS_AT + (BIAS ? BN * 4 : 0);
constexpr bool MATRIX_LOADS = PIXEL % 16 == 0;
static_assert(PIXEL % 4 == 0, "windows begin at whole words");
static_assert(TILE_W % WM == 0 || WM % TILE_W == 0, "warps' shares are alike");

// Where a pixel of the tile has its window in the patch, and a chunk of it begins. Eight pixels make a matrix.
DG_DEVICE constexpr u32 pixel_at(int m) { return m / TILE_W * STRIDE_H * PITCH + m % TILE_W * PIXEL; }
DG_DEVICE constexpr u32 chunk_at(int chunk) { return chunk / ROW_CHUNKS * DILATION_H * PITCH + chunk % ROW_CHUNKS * 16; }
constexpr u32 PAIR = pixel_at(8);  // from eight pixels to the next

// A tile of an image. From one to the next of a block it is a constant number of tiles, and no division.
struct Tile {
    int image, down, across;  // of the rows and columns of tiles
    DG_DEVICE Tile(int number, int rows, int columns) {
        across = number % columns;
        number /= columns;
        down = number % rows;
        image = number / rows;
    }
    DG_DEVICE int row() const { return down * TILE_H; }
    DG_DEVICE int column() const { return across * TILE_W; }
    DG_DEVICE void advance(const Tile& by, int rows, int columns) {
        across += by.across;
        down += by.down + (across >= columns);
        if (across >= columns) across -= columns;
        image += by.image + (down >= rows);
        if (down >= rows) down -= rows;
    }
};

// The lines of the image that a patch is of, as they lie in memory: chunks of 16 bytes from the one on in which a line
// begins, whatever its place there. They are copied ahead; what the patch has beyond the image is left out then, not now.
constexpr int LINES = PATCH_H * (CHANNELS_LAST ? 1 : CI), BETWEEN = CHANNELS_LAST ? CI : 1;  // numbers to the next pixel
constexpr int LINE_CHUNKS = (PATCH_W * BETWEEN * 2 + 14 + 15) / 16, LINES_BYTES = LINES * LINE_CHUNKS * 16;
constexpr u32 LINES_AT = WEIGHT_BYTES + PATCH_BYTES;
constexpr int UNIT = STORED % 8 == 0 ? 8 : STORED % 4 == 0 ? 4 : STORED % 2 == 0 ? 2 : 1;  // numbers stored at once

struct Corner {  // of a patch in the image
    int top, left;
    i64 at;  // the number there, which may lie before all of them
    DG_DEVICE Corner(const Problem& p, const Tile& tile) {
        top = tile.row() * STRIDE_H - p.pad_h;
        left = tile.column() * STRIDE_W - p.pad_w;
        at = (((i64)tile.image * (CHANNELS_LAST ? 1 : CI) * p.h + top) * p.w + left) * BETWEEN;
    }
    DG_DEVICE i64 line(const Problem& p, int row, int k) const {
        return at + row * (p.w * BETWEEN) + (CHANNELS_LAST ? 0 : (i64)k * p.h * p.w);
    }
};

// Threads of a block as rows and columns over something of that size: so that they take the fewest turns.
DG_DEVICE constexpr int turns(int height, int width, int across) {
    return (height + THREADS / across - 1) / (THREADS / across) * ((width + across - 1) / across);
}
DG_DEVICE constexpr int columns_for(int height, int width) {
    int best = 32;
    for (int across = 16; across >= 4; across /= 2)
        if (turns(height, width, across) < turns(height, width, best)) best = across;
    return best;
}

DG_DEVICE void copy_lines(const Problem& p, const Tile& tile, u32 to) {
    constexpr int ACROSS = columns_for(LINES, LINE_CHUNKS), DOWN = THREADS / ACROSS;
    const Corner corner(p, tile);
    const i64 all = (i64)p.n * p.h * p.w * (CI * 2);
    const int line_0 = thread_id() / ACROSS, chunk_0 = thread_id() % ACROSS;
    DG_UNROLL for (int i = 0; i < LINES; i += DOWN) {
        const int line = i + line_0, row = CHANNELS_LAST ? line : line / CI;
        if (line >= LINES || (u32)(corner.top + row) >= (u32)p.h) continue;
        const i64 first = corner.line(p, row, CHANNELS_LAST ? 0 : line % CI) * 2 & ~(i64)15;
        DG_UNROLL for (int j = 0; j < LINE_CHUNKS; j += ACROSS) {
            const int chunk = j + chunk_0;
            const i64 at = first + chunk * 16;
            if (chunk < LINE_CHUNKS && at >= 0 && at < all)
                copy_async_part<16>(to + (line * LINE_CHUNKS + chunk) * 16, reinterpret_cast<const char*>(p.x) + at,
                                    all - at < 16 ? (int)(all - at) : 16);
        }
    }
}

// The patch from its lines: channels of a pixel together, zeros outside of the image.
DG_DEVICE void fill_patch(const Problem& p, const Tile& tile, u32 lines) {
    constexpr int ACROSS = columns_for(PATCH_H, PATCH_W), DOWN = THREADS / ACROSS;
    const Corner corner(p, tile);
    const u32 patch = shared_begin() + WEIGHT_BYTES;
    const int row_0 = thread_id() / ACROSS, column_0 = thread_id() % ACROSS, first = corner.left + column_0;
    DG_UNROLL for (int i = 0; i < PATCH_H; i += DOWN) {
        const int row = i + row_0;
        if (row >= PATCH_H) continue;
        const bool inside = (u32)(corner.top + row) < (u32)p.h;
        const u32 to = patch + row * PITCH + column_0 * (STORED * 2);
        u32 from[CHANNELS_LAST ? 1 : CI];
        DG_UNROLL for (int k = 0; k < (CHANNELS_LAST ? 1 : CI); ++k) {
            const u32 shift = (u32)corner.line(p, row, k) * 2 & 15;
            from[k] = lines + (CHANNELS_LAST ? row : row * CI + k) * (LINE_CHUNKS * 16) + shift + column_0 * (BETWEEN * 2);
        }
        DG_UNROLL for (int j = 0; j < PATCH_W; j += ACROSS) {
            if (column_0 + j >= PATCH_W) continue;
            const bool real = inside && (u32)(first + j) < (u32)p.w;
            u16 numbers[CI];
            DG_UNROLL for (int k = 0; k < CI; ++k) {
                const u32 one = CHANNELS_LAST ? from[0] + (j * CI + k) * 2 : from[CHANNELS_LAST ? 0 : k] + j * 2;
                numbers[k] = real ? load_shared<u16>(one) : (u16)0;
            }
            DG_UNROLL for (int k = 0; k < STORED; k += UNIT) {
                Vec<u16, UNIT> some;
                DG_UNROLL for (int u = 0; u < UNIT; ++u) some.v[u] = k + u < CI ? numbers[k + u < CI ? k + u : 0] : (u16)0;
                store_shared(to + (j * STORED + k) * 2, some);
            }
        }
    }
}

// The filters of the block's channels: a row for each step of K, zero where the patch has nothing of the image.
// Channels that a thread stores together lie in neighbouring blocks of eight, at the places of its sums there.
constexpr int WEIGHT_ROWS = STEPS * 16, VECTORS = BN / LOAD_N;
constexpr int WEIGHT_LOADS = WEIGHT_ROWS * VECTORS, EACH_WEIGHT = (WEIGHT_LOADS + THREADS - 1) / THREADS;
constexpr int MOST_WEIGHTS = LOAD_N > 2 ? 128 / LOAD_N : 32;  // loads under way
constexpr int WEIGHT_BATCH = EACH_WEIGHT < MOST_WEIGHTS ? EACH_WEIGHT : MOST_WEIGHTS;

DG_DEVICE int column_of(int channel) {
    const int inside = channel % (8 * WIDE), run = inside % (2 * WIDE);
    return channel - inside + run / 2 * 8 + inside / (2 * WIDE) * 2 + run % 2;
}

DG_DEVICE void fill_weights(const Problem& p, int first) {
    const u32 begin = shared_begin();
    typedef Vec<u16, LOAD_N> Some;
    DG_NO_UNROLL for (int from = 0; from < EACH_WEIGHT; from += WEIGHT_BATCH) {
        Some some[WEIGHT_BATCH];
        DG_UNROLL for (int i = 0; i < WEIGHT_BATCH; ++i) {
            const int number = thread_id() + (from + i) * THREADS;
            // With channels last neighbouring threads have neighbouring channels, otherwise steps of K.
            const int k = CHANNELS_LAST ? number / VECTORS : number % WEIGHT_ROWS;
            const int channel = first + (CHANNELS_LAST ? number % VECTORS : number / WEIGHT_ROWS) * LOAD_N;
            const int r = k / 8 / ROW_CHUNKS, inside = k - r * ROW_CHUNKS * 8, s = inside / STORED, c = inside % STORED;
            const bool real = number < WEIGHT_LOADS && k < CHUNKS * 8 && s < KW && c < CI && channel < p.co;
            some[i] = {};
            if (real)
                some[i] = load_global<Some>(p.weight + (CHANNELS_LAST ? ((r * KW + s) * CI + c) * p.co + channel
                                                                      : channel * (CI * KH * KW) + (c * KH + r) * KW + s));
        }
        DG_UNROLL for (int i = 0; i < WEIGHT_BATCH; ++i) {
            const int number = thread_id() + (from + i) * THREADS;
            if (number >= WEIGHT_LOADS) break;
            const int k = CHANNELS_LAST ? number / VECTORS : number % WEIGHT_ROWS;
            const int channel = (CHANNELS_LAST ? number % VECTORS : number / WEIGHT_ROWS) * LOAD_N;
            constexpr int PART = LOAD_N < 2 ? 1 : WIDE == 1 ? LOAD_N : 2;
            DG_UNROLL for (int e = 0; e < LOAD_N; e += PART) {
                Vec<u16, PART> part;
                DG_UNROLL for (int one = 0; one < PART; ++one) part.v[one] = some[i].v[e + one];
                store_shared(begin + k * WEIGHT_PITCH + column_of(channel + e) * 2, part);
            }
        }
    }
#if BIAS
    DG_NO_UNROLL for (int i = thread_id(); i < BN; i += THREADS) {
        f32 wide = 0;
        if (first + i < p.co) widen(load_global<TYPE_A>(p.bias + first + i), wide);
        store_shared(begin + BIAS_AT + i * 4, wide);
    }
#endif
}
