// The large matrix: straight from global memory to a warp's registers, every byte once.
//
// Products take K in any order, if both operands agree: of 64 bytes of K, lane `t` of four owns bytes 16 * t and on. Where
// the matrix is contiguous along K that is one load for each row. Where it is contiguous along rows, a load is a run of
// rows of one element of K, and neighbours along K are brought together by exchanging bytes.
#pragma once

constexpr int SIZE = sizeof(TYPE_A), EACH = 4 / SIZE, WIDTH = 16 / SIZE, BLOCK = 64 / SIZE;
constexpr int LOADS = ALONG ? ROW_BLOCKS : 4 * EACH;  // of a thread for 64 bytes of K
static_assert(ALONG || ROW_BLOCKS == WIDTH, "a load is as many rows as a lane owns");

struct Large {
    const char* from;     // this lane's first byte, at the first element of K
    u32 pitch;            // bytes from line to line
    int rows, steps;      // of the matrix, from this lane's first on
    Streaming stream;

    DG_DEVICE Large(const TYPE_A* all, int ld, int rows_, int steps_, int row) {
        int g = thread_id() % 32 / 4, t = thread_id() % 4;
        int own_row = row + (ALONG ? g : g * WIDTH), own_step = ALONG ? t * WIDTH : 4 * t * EACH;
        pitch = (u32)ld * SIZE;
        rows = rows_ - own_row;
        steps = steps_ - own_step;
        if (ALONG && EDGE_LARGE && rows <= 0) {  // rows past the edge read the last one: their sums are not stored
            own_row = rows_ - 1;
            rows = 1;
        }
        from = reinterpret_cast<const char*>(all + (ALONG ? own_row * (i64)ld + own_step : own_step * (i64)ld + own_row));
    }

    // 16 bytes of which the first `left` exist.
    DG_DEVICE Vec<u32, 4> some(const char* at, int left) const {
        if constexpr (COPY_LARGE == 16) {
            if (left <= 0) return Vec<u32, 4>{};
            return stream.load(at);
        } else {
            typedef Vec<TYPE_A, COPY_LARGE / SIZE> Part;
            Vec<Part, 16 / COPY_LARGE> parts;
            DG_UNROLL for (int b = 0; b < 16; b += COPY_LARGE) {
                parts.v[b / COPY_LARGE] = Part{};
                if (left > b) parts.v[b / COPY_LARGE] = load_global<Part>(at + b);
            }
            return bit_cast<Vec<u32, 4>>(parts);
        }
    }

    struct Piece {
        Vec<u32, 4> raw[UNROLL][LOADS];

        // Word `w` of this lane's 16 bytes of K, of block `i` of rows.
        DG_DEVICE u32 word(int u, int i, int w) const {
            if constexpr (ALONG) return raw[u][i].v[w];
            else if constexpr (EACH == 1) return raw[u][w].v[i];
            else if constexpr (EACH == 2)
                return pick_bytes(raw[u][w * 2].v[i / 2], raw[u][w * 2 + 1].v[i / 2], i % 2 ? 0x7632 : 0x5410);
            else {
                u32 order = i % 2 ? 0x5151 : 0x4040;
                order = i % 4 < 2 ? order : order + 0x2222;
                u32 low = pick_bytes(raw[u][w * 4].v[i / 4], raw[u][w * 4 + 1].v[i / 4], order);
                u32 high = pick_bytes(raw[u][w * 4 + 2].v[i / 4], raw[u][w * 4 + 3].v[i / 4], order);
                return pick_bytes(low, high, 0x5410);
            }
        }
    };

    // UNROLL times 64 bytes of K from element `k` on.
    DG_DEVICE void load(Piece& piece, int k) const {
        u32 pitch_ = opaque(pitch);
        DG_UNROLL for (int u = 0; u < UNROLL; ++u)
            DG_UNROLL for (int i = 0; i < LOADS; ++i) {
                if constexpr (ALONG) {
                    int row = EDGE_LARGE && i * 8 >= rows ? rows - 1 : i * 8;
                    int left = EDGE_K ? (steps - k - u * BLOCK) * SIZE : 16;
                    piece.raw[u][i] = some(from + (i64)(u64)((u32)row * (u64)pitch_) + (k + u * BLOCK) * (i64)SIZE, left);
                } else {
                    int line = k + u * BLOCK + i;
                    int left = EDGE_K && line >= steps ? 0 : EDGE_LARGE ? rows * SIZE : 16;
                    piece.raw[u][i] = some(from + (u64)(u32)line * pitch_, left);
                }
            }
    }

    // The row, from the warp's first on, of block `i` that lane `g` of eight owns.
    static DG_DEVICE int row(int i, int g) { return ALONG ? i * 8 + g : g * WIDTH + i; }
};
