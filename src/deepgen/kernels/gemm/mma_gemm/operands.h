// How a tile of A or B lies in shared memory, how it comes there, and how a warp reads its fragments.
//
// A tile is lines of 16-byte chunks, contiguous as in global memory: along K, or along rows (of A; columns of B). Chunks
// of a line are exchanged by XOR with a key of the line, so that what a warp reads at once lies on different banks.
#pragma once
#include "problem.h"

DG_DEVICE constexpr int min_of(int a, int b) { return a < b ? a : b; }
DG_DEVICE constexpr int max_of(int a, int b) { return a > b ? a : b; }

// ROWS x BK. FIRST is that of four registers in which a fragment of A, or of two pairs of columns of B, alternates rows
// before words. INTERLEAVE: blocks of eight columns that are interleaved, so that a thread's sums are INTERLEAVE pairs in a row.
// COPY: bytes of one copy, as alignment allows. EDGE: there are rows past the end.
template <typename T, int ROWS, bool ALONG_K, bool IS_A, int INTERLEAVE, int COPY, bool EDGE>
struct Operand {
    static constexpr int SIZE = sizeof(T), EACH = 4 / SIZE;
    static constexpr int LINES = ALONG_K ? ROWS : BK, LINE = (ALONG_K ? BK : ROWS) * SIZE, CHUNKS = LINE / 16;
    static constexpr u32 BYTES = LINES * LINE;
    // Neither way of loading matrices turns elements of one or four bytes: a lane then owns four neighbouring rows.
    static constexpr bool SPREAD = !ALONG_K && SIZE != 2;
    static_assert(LINE % 128 == 0 || LINE == 64 || LINE == 32, "the exchange of chunks stays within a line");
    static_assert(ALONG_K || INTERLEAVE == 1, "columns are interleaved by choosing lines");

    static DG_DEVICE int key(int line) {
        constexpr int IN_128 = max_of(1, 128 / LINE);
        if (SPREAD) return line / EACH % max_of(1, min_of(4, CHUNKS / 2)) * 2;
        int order = ALONG_K ? line / (2 * INTERLEAVE) % 4 * 2 + line % 2 : line % 8;
        return order / IN_128;
    }
    static DG_DEVICE u32 place(int line, int chunk) { return line * LINE + ((chunk ^ key(line)) * 16); }

    // Copies a tile after the other, along K.
    struct Loader {
        // Lanes take neighbouring copies: those of four bytes of a warp are then one line of the cache, not four.
        static constexpr int UNIT = COPY < 4 ? 16 : COPY, UNITS = LINE / UNIT;
        static constexpr int ALL = LINES * UNITS, EVERY = (ALL + THREADS - 1) / THREADS;
        static constexpr int AT_ONCE = UNIT == 16 ? EVERY : min_of(EVERY, 4);  // text of more takes long to fetch
        static constexpr bool EVEN = THREADS % UNITS == 0;
        static constexpr bool EDGE_LINE = ALONG_K ? EDGE : EDGE_K, EDGE_ALONG = ALONG_K ? EDGE_K : EDGE;
        const char* from;        // the tile's first byte
        u32 pitch;               // bytes from line to line
        int lines, along;        // lines, and bytes of a line, that are left from here on

        DG_DEVICE Loader(const T* all, int ld, int rows, int steps, int row, int step) {
            pitch = (u32)ld * SIZE;
            from = reinterpret_cast<const char*>(all + (ALONG_K ? row * (i64)ld + step : step * (i64)ld + row));
            lines = ALONG_K ? rows - row : steps - step;
            along = (ALONG_K ? steps - step : rows - row) * SIZE;
        }
        static DG_DEVICE int line(int i) {
            return EVEN ? thread_id() / UNITS + i * (THREADS / UNITS) : (thread_id() + i * THREADS) / UNITS;
        }
        static DG_DEVICE int byte(int i) {
            return (EVEN ? thread_id() % UNITS : (thread_id() + i * THREADS) % UNITS) * UNIT;
        }
        static DG_DEVICE bool mine(int i) { return ALL % THREADS == 0 || thread_id() + i * THREADS < ALL; }
        // How many bytes of a copy that begins `byte` bytes into a line exist.
        DG_DEVICE int real(int line, int byte, int most) const {
            int left = EDGE_ALONG ? along - byte : most;
            left = left < 0 ? 0 : left < most ? left : most;
            return EDGE_LINE && line >= lines ? 0 : left;
        }
        DG_DEVICE void copy(u32 stage) {
            u32 pitch_ = opaque(pitch);  // or the compiler would keep every product with it in registers
            auto one = [&](int i) {
                if (!mine(i)) return;
                const char* source = from + (u64)(u32)line(i) * pitch_ + byte(i);
                u32 target = stage + place(line(i), byte(i) / 16) + byte(i) % 16;
                if constexpr (COPY >= 4) {
                    if (EDGE_LINE || EDGE_ALONG) copy_async_part<COPY>(target, source, real(line(i), byte(i), COPY));
                    else copy_async<COPY>(target, source);
                } else {  // too narrow for asynchronous copies
                    typedef Vec<T, COPY / SIZE> Some;
                    Vec<Some, 16 / COPY> all;
                    DG_UNROLL for (int b = 0; b < 16; b += COPY) {
                        all.v[b / COPY] = Some{};
                        if (real(line(i), byte(i) + b, COPY)) all.v[b / COPY] = load_global<Some>(source + b);
                    }
                    store_shared(target, all);
                }
            };
            if constexpr (COPY >= 4) {
                DG_NO_UNROLL for (int all = 0; all < EVERY; all += AT_ONCE)
                    DG_UNROLL for (int i = 0; i < AT_ONCE; ++i)
                        if (EVERY % AT_ONCE == 0 || all + i < EVERY) one(all + i);
            } else {  // or bytes on their way would take all registers
                DG_NO_UNROLL for (int i = 0; i < EVERY; ++i) one(i);
            }
            from += ALONG_K ? (i64)LINE : (i64)BK * pitch;
            (ALONG_K ? along : lines) -= ALONG_K ? LINE : BK;
        }
    };

    // What a warp needs of ROWS_W rows, from row `first` on, for 32 bytes of K. Blocks of eight rows; two registers each.
    template <int ROWS_W>
    struct Fragment {
        u32 word[ROWS_W / 8][2];  // of a block: words `lane % 4` and `lane % 4 + 4` of row `lane / 4`

        DG_DEVICE void load(u32 stage, int first, int step) {
            int lane = thread_id() % 32, q = lane / 8, r = lane % 8;
            // Which of two blocks, and which of two halves of the words, the lane gives the address of.
            int block = IS_A ? q % 2 : q / 2, half = IS_A ? q / 2 : q % 2;
            if constexpr (SPREAD) {
                load_spread(stage, first, step);
            } else
                DG_UNROLL for (int pair = 0; pair < ROWS_W / 16; ++pair) {
                    u32 got[4];
                    if constexpr (ALONG_K) {
                        int line = r / 2 * 2 * INTERLEAVE + r % 2 + block * (INTERLEAVE == 1 ? 8 : 2);
                        int more = INTERLEAVE == 4 ? pair / 2 * 32 + pair % 2 * 4 : pair * 16;
                        u32 inside = ((half ^ key(line)) * 16) ^ (step % (LINE >= 128 ? 4 : 2) * 32);
                        load_matrices(got, stage + (first + line) * LINE + inside + more * LINE + step / 4 * 128);
                    } else {
                        int line = half * 8 + r;
                        u32 inside = ((first / 8 + block + pair * 2) ^ key(line)) * 16;
                        load_matrices_turned(got, stage + line * LINE + inside + step * 16 * LINE);
                    }
                    DG_UNROLL for (int i = 0; i < 4; ++i)
                        word[pair * 2 + (IS_A ? i % 2 : i / 2)][IS_A ? i / 2 : i % 2] = got[i];
                }
        }
        DG_DEVICE void load_spread(u32 stage, int first, int step) {
            int lane = thread_id() % 32, g = lane / 4, t = lane % 4;
            DG_UNROLL for (int group = 0; group < ROWS_W / 32; ++group)
                DG_UNROLL for (int half = 0; half < 2; ++half) {
                    Vec<T, 4> run[EACH];
                    DG_UNROLL for (int e = 0; e < EACH; ++e) {
                        int line = (half * 4 + t) * EACH + e, byte = (first + group * 32 + g * 4) * SIZE;
                        u32 at = place(line, byte / 16) + byte % 16 + step * 8 * EACH * LINE;
                        run[e] = load_shared<Vec<T, 4>>(stage + at);
                    }
                    u32 rows[4];
                    turn(run, rows);
                    DG_UNROLL for (int i = 0; i < 4; ++i) word[group * 4 + i][half] = rows[i];
                }
        }
        static DG_DEVICE void turn(const Vec<T, 4>* run, u32 (&rows)[4]) {
            if constexpr (SIZE == 4) {
                DG_UNROLL for (int i = 0; i < 4; ++i) rows[i] = bit_cast<u32>(run[0].v[i]);
            } else {
                u32 l[4];
                DG_UNROLL for (int e = 0; e < 4; ++e) l[e] = bit_cast<u32>(run[e]);
                u32 low01 = pick_bytes(l[0], l[1], 0x5140), low23 = pick_bytes(l[2], l[3], 0x5140);
                u32 high01 = pick_bytes(l[0], l[1], 0x7362), high23 = pick_bytes(l[2], l[3], 0x7362);
                rows[0] = pick_bytes(low01, low23, 0x5410);
                rows[1] = pick_bytes(low01, low23, 0x7632);
                rows[2] = pick_bytes(high01, high23, 0x5410);
                rows[3] = pick_bytes(high01, high23, 0x7632);
            }
        }
    };

    // The row, from the warp's first on, of block `block` that stands in line `g` of its fragment.
    static DG_DEVICE int row(int block, int g) {
        if (SPREAD) return block / 4 * 32 + g * 4 + block % 4;
        return block / INTERLEAVE * INTERLEAVE * 8 + g / 2 * 2 * INTERLEAVE + block % INTERLEAVE * 2 + g % 2;
    }
};
