// Tiles of BK steps of K: which elements of the image and of the filters they are, and where they lie in shared memory.
#pragma once

constexpr int THREADS = BM / TM * (BN / TN);
constexpr int NOWHERE = -(1 << 30);  // a row that no filter reaches into the image from

// BK lines of LINE elements. ALONG_K: neighbouring threads load neighbouring steps of K, otherwise neighbours in a line.
template <int LINE, bool ALONG_K>
struct Tile {
    static constexpr int EACH = (LINE * BK + THREADS - 1) / THREADS;  // elements that a thread loads
    static constexpr u32 BYTES = (BK * (LINE + PAD) * sizeof(TYPE_X) + 15) / 16 * 16;
    TYPE_X held[EACH];

    static DG_DEVICE int element(int i) { return thread_id() + i * THREADS; }
    static DG_DEVICE bool mine(int i) { return LINE * BK % THREADS == 0 || element(i) < LINE * BK; }
    static DG_DEVICE int step(int i) { return ALONG_K ? element(i) % BK : element(i) / LINE; }
    static DG_DEVICE int along(int i) { return ALONG_K ? element(i) / BK : element(i) % LINE; }
    static DG_DEVICE u32 at(int step, int along) { return (step * (LINE + PAD) + along) * sizeof(TYPE_X); }

    DG_DEVICE void put(u32 first) const {
        DG_UNROLL for (int i = 0; i < EACH; ++i)
            if (mine(i)) store_shared(first + at(step(i), along(i)), held[i]);
    }
};

// A step of K: a tap of the filter and an input channel. The innermost is the one that is contiguous in weight.
struct Tap {
    int row, column, channel;
    DG_DEVICE Tap(const Problem& p, int step) {
        int taps = p.k * p.k, tap = CHANNELS_LAST ? step / p.ci : step % taps;
        channel = CHANNELS_LAST ? step % p.ci : step / taps;
        row = tap / p.k;
        column = tap % p.k;
    }
};

struct PixelTile : Tile<BM, X_ALONG_K> {
    int image[EACH], row[EACH], column[EACH];  // where the filter's first tap lies, for each pixel that a thread loads

    DG_DEVICE PixelTile(const Problem& p, int first) {
        DG_UNROLL for (int i = 0; i < EACH; ++i) {
            int pixel = first + along(i), line = pixel / p.out_w;
            image[i] = line / p.out_h;
            row[i] = pixel < p.pixels() ? line % p.out_h * p.stride - p.pad : NOWHERE;
            column[i] = pixel % p.out_w * p.stride - p.pad;
        }
    }
    DG_DEVICE void fetch(const Problem& p, int first) {
        DG_UNROLL for (int i = 0; i < EACH; ++i) {
            held[i] = TYPE_X{};
            if (!mine(i) || first + step(i) >= p.reduced()) continue;
            Tap tap(p, first + step(i));
            int r = row[i] + tap.row, c = column[i] + tap.column;
            if (r < 0 || r >= p.h || c < 0 || c >= p.w) continue;
            i64 at = CHANNELS_LAST ? (((i64)image[i] * p.h + r) * p.w + c) * p.ci + tap.channel
                                   : (((i64)image[i] * p.ci + tap.channel) * p.h + r) * p.w + c;
            held[i] = load_global<TYPE_X>(p.x + at);
        }
    }
};

struct FilterTile : Tile<BN, W_ALONG_K> {
    int channel;  // the first of the tile

    DG_DEVICE FilterTile(int first) : channel(first) {}
    DG_DEVICE void fetch(const Problem& p, int first) {
        DG_UNROLL for (int i = 0; i < EACH; ++i) {
            int k = first + step(i), co = channel + along(i);
            bool real = mine(i) && k < p.reduced() && co < p.co;
            i64 at = CHANNELS_LAST ? (i64)k * p.co + co : (i64)co * p.reduced() + k;
            held[i] = real ? load_global<TYPE_X>(p.weight + at) : TYPE_X{};
        }
    }
};
