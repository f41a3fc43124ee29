// y = x * W^T with weights of 4 bits and few rows of x (tokens): bound by reading the weights once. sm_80 and later.
//
//   1. weights are the side of 16 of warp-wide products, tokens that of 8; a lane's 16 bytes are four steps of K, in
//      the order in which it needs them (packed ahead), and go to registers as they are                     TILES
//   2. everything is copied STAGES - 1 stages ahead (cp.async), tens of kilobytes a multiprocessor     STAGES, UNROLL
//   3. two bits of logic and an addition make a pair of numbers of two weights, exactly; sums of a group are f32, and
//      its scale is applied to them, not to the weights
//   4. a block's warps share out rows and K                                                     WARPS_R, WARPS_K
//   5. all of K of all rows is one row of stages, of which every block has an equal share; where rows are several
//      blocks', whoever comes last adds up their sums, in the order of K; or the blocks of a cluster share out one
//      tile, and add up in each other's shared memory                                              SPLITS, CLUSTER
//
// The knobs are macros; `__init__.py` gives them all. docs/kernels/gemm_w4.md says more.
#include "cluster_blocks.h"
#include "four_bits.h"

typedef TYPE_A Number;
constexpr int THREADS = WARPS_R * WARPS_K * 32, ROWS = WARPS_R * TILES * 16;  // ROWS: of the weights, of a block
constexpr int OWN = UNROLL * 64, STEP = WARPS_K * OWN;                        // of K: of a warp and of a stage
constexpr int BLOCK = 512;                                                    // bytes of packed weights, 16 x 64
constexpr int LINE = STEP * 2, PITCH = LINE + 64;                             // of x; half the banks apart
constexpr int GROUPS = GROUP && GROUP < STEP ? STEP / GROUP : 1;              // of a stage
constexpr u32 W_BYTES = ROWS * STEP / 2, X_BYTES = TOKENS * PITCH, S_BYTES = GROUPS * ROWS * 2;
constexpr u32 STAGE = W_BYTES + X_BYTES + S_BYTES + (ZEROS ? GROUPS * ROWS : 0), NOTE = 16;  // NOTE: `arrive` uses it
constexpr u32 AT_SUMS = NOTE + STAGES * STAGE;
constexpr int SUM_PITCH = ROWS + 4, BLOCKS_M = TOKENS / 8, RUN = 4, RUNS = TOKENS * ROWS / RUN;
constexpr int CHUNKS = LINE / 16, LINES = THREADS / CHUNKS;  // 16 bytes of x; lines that a block copies at once
constexpr i64 SLOT = TOKENS * ROWS;  // numbers that a block leaves of a tile
constexpr int AHEAD = 4;             // parts that are on their way while others are added up

// Unsigned, for divisions to be shifts.
DG_DEVICE int warp_id() { return (int)((u32)thread_id() / 32); }
DG_DEVICE int lane_id() { return (int)((u32)thread_id() % 32); }
DG_DEVICE int line_id() { return (int)((u32)thread_id() / CHUNKS); }  // of x, and which of its chunks
DG_DEVICE int chunk_id() { return (int)((u32)thread_id() % CHUNKS); }
DG_DEVICE int warp_row() { return (int)((u32)warp_id() % WARPS_R); }
DG_DEVICE int warp_step() { return (int)((u32)warp_id() / WARPS_R); }

// The run-time arguments, and what follows from them.
struct Problem {
    const Number* x;
    const u8* w;
    const Number* scales;
    const u8* zeros;
    Number* y;
    f32* partial;
    u32* arrived;
    int m, n, k;
    i64 ldx, ldy;
    int rounds, token_tiles;  // stages of a tile; tiles that share weights
    u32 share, rest, blocks;  // stages of each block, and how many blocks have one more

    // The first row of weights and the first token of a tile.
    DG_DEVICE int row(u32 tile) const { return (int)(TILED_M ? tile / token_tiles : tile) * ROWS; }
    DG_DEVICE int token(u32 tile) const { return TILED_M ? (int)(tile % token_tiles) * TOKENS : 0; }
    DG_DEVICE u32 begin(u32 block) const { return block * share + (block < rest ? block : rest); }
    DG_DEVICE u32 block_of(u32 stage) const {
        u32 longer = rest * (share + 1);
        return stage < longer ? stage / (share + 1) : rest + (stage - longer) / share;
    }
    // Where a block leaves its part of a tile: of its first one, or of its last one.
    DG_DEVICE f32* slot(u32 block, u32 tile) const {
        return partial + (block * 2 + (begin(block) >= tile * rounds ? 0 : 1)) * SLOT;
    }
};

// What a block copies, a stage after the other.
struct Copies {
    const Problem& p;
    u32 tile;
    int round, left;
    u32 begin, fill;
    const u8* w;      // the thread's next weights and numbers of x
    const Number* x;

    DG_DEVICE Copies(const Problem& p, u32 tile, int round, int left, u32 begin)
        : p(p), tile(tile), round(round), left(left), begin(begin), fill(0) {
        settle();
    }
    DG_DEVICE void settle() {
        int first = p.row(tile) / 16 + warp_row() * TILES, block = (round * WARPS_K + warp_step()) * UNROLL;
        w = p.w + ((i64)first * wide() + block) * BLOCK + lane_id() * 16;
        x = p.x + (p.token(tile) + line_id()) * p.ldx + round * STEP + chunk_id() * 8;
    }
    DG_DEVICE int wide() const { return (int)((u32)(p.k + 63) / 64); }

    DG_DEVICE void next() {
        if (left > 0) {
            --left;
            const u32 to = begin + fill;
            weights(to);
            tokens(to + W_BYTES);
            of_groups<COPY_S>(p.scales, to + W_BYTES + X_BYTES);
            if (ZEROS) of_groups<COPY_Z>(p.zeros, to + W_BYTES + X_BYTES + S_BYTES);
            fill = fill + STAGE == STAGES * STAGE ? 0 : fill + STAGE;
            w += WARPS_K * UNROLL * BLOCK;
            x += STEP;
            if (++round == p.rounds && left > 0) {
                round = 0;
                ++tile;
                settle();
            }
        }
        copy_commit();
    }

    // A lane copies what it will read itself.
    DG_DEVICE void weights(u32 to) const {
        int first = p.row(tile) / 16 + warp_row() * TILES, block = (round * WARPS_K + warp_step()) * UNROLL;
        to += warp_id() * (TILES * UNROLL * BLOCK) + lane_id() * 16;
        DG_UNROLL for (int i = 0; i < TILES; ++i)
            DG_UNROLL for (int u = 0; u < UNROLL; ++u) {
                const u8* own = w + (i64)i * wide() * BLOCK + u * BLOCK;
                u32 at = to + (i * UNROLL + u) * BLOCK;
                if (EDGE_N || EDGE_K) {
                    bool real = (!EDGE_N || first + i < (p.n + 15) / 16) && (!EDGE_K || block + u < wide());
                    copy_async_or_zero<16>(at, own, real);
                } else copy_async<16>(at, own);
            }
    }
    DG_DEVICE void tokens(u32 to) const {
        int line = line_id(), at = round * STEP + chunk_id() * 8, token = p.token(tile) + line;
        to += line * PITCH + chunk_id() * 16;
        DG_UNROLL for (int i = 0; i < TOKENS; i += LINES) {
            if (TOKENS % LINES != 0 && i + line >= TOKENS) break;
            const Number* from = x + i * p.ldx;
            bool real = token + i < p.m;
            if (COPY_X == 16 && !EDGE_K) copy_async_or_zero<16>(to + i * PITCH, from, real);
            else copy_part<COPY_X>(to + i * PITCH, from, real ? (p.k - at) * 2 : 0);
        }
    }
    // Scales or zero points: groups x N numbers, of which a row of the block's is a few chunks of 16 bytes.
    template <int WIDTH, typename T>
    DG_DEVICE void of_groups(const T* all, u32 to) const {
        constexpr int EACH = 16 / sizeof(T), PER = ROWS / EACH;
        constexpr u32 SIZE = GROUP ? GROUP : 1;
        int first = GROUP ? (int)((u32)(round * STEP) / SIZE) : 0;
        int groups = GROUP ? (int)((u32)(p.k - 1) / SIZE + 1) : 1;
        DG_UNROLL for (int i = 0; i < GROUPS * PER; i += THREADS) {
            int chunk = i + thread_id(), group = first + (int)((u32)chunk / PER);
            int row = p.row(tile) + (int)((u32)chunk % PER) * EACH;
            if (chunk >= GROUPS * PER) break;
            const T* from = all + (i64)group * p.n + row;
            if (!EDGE_N && !EDGE_K && WIDTH == 16) copy_async<16>(to + chunk * 16, from);
            else copy_part<WIDTH>(to + chunk * 16, from, group < groups ? (p.n - row) * (int)sizeof(T) : 0);
        }
    }
    // 16 bytes, of which only the first `left` exist, in copies of WIDTH; zeros land in place of others.
    template <int WIDTH>
    DG_DEVICE static void copy_part(u32 to, const void* from, int left) {
        DG_UNROLL for (int b = 0; b < 16; b += WIDTH) {
            int real = left - b;
            real = real < 0 ? 0 : real < WIDTH ? real : WIDTH;
            copy_async_part<WIDTH>(to + b, static_cast<const char*>(from) + b, real);
        }
    }
};

typedef f32 Sums[TILES][BLOCKS_M][4];

DG_DEVICE void clear(Sums& sums) {
    DG_UNROLL for (int i = 0; i < TILES; ++i)
        DG_UNROLL for (int n = 0; n < BLOCKS_M; ++n)
            DG_UNROLL for (int e = 0; e < 4; ++e) sums[i][n][e] = 0;
}

// A warp's part of a stage. `stage`: where it begins.
DG_DEVICE void multiply(Sums& total, u32 stage) {
    constexpr int PER = GROUP && GROUP < OWN ? GROUP : OWN;  // steps of K with one scale
    const u32 lane = lane_id(), g = lane / 4, k_warp = warp_step() * OWN;
    u32 w = stage + warp_id() * (TILES * UNROLL * BLOCK) + lane * 16;
    u32 x = stage + W_BYTES + g * PITCH + lane % 4 * 16 + k_warp * 2;
    u32 own = warp_row() * TILES * 16 + g + (GROUP && GROUP < STEP ? k_warp / (GROUP ? GROUP : 1) * ROWS : 0);
    u32 scales = stage + W_BYTES + X_BYTES + own * 2, zeros = stage + W_BYTES + X_BYTES + S_BYTES + own;
    Sums part;
    u32 minus[TILES][2];
    Vec<u32, 4> words[TILES];
    DG_UNROLL for (int k = 0; k < OWN; k += 32) {
        int group = GROUP ? k / PER : 0;
        if (k % 64 == 0)
            DG_UNROLL for (int i = 0; i < TILES; ++i)
                words[i] = load_shared<Vec<u32, 4>>(w + (i * UNROLL + k / 64) * BLOCK);
        if (k % PER == 0) {
            clear(part);
            DG_UNROLL for (int i = 0; i < TILES; ++i)
                DG_UNROLL for (int r = 0; r < 2; ++r) {
                    u32 zero = ZEROS ? load_shared<u8>(zeros + group * ROWS + i * 16 + r * 8) : 8u;
                    minus[i][r] = minus_zero<Number>(zero, r);
                }
        }
        Vec<u32, 4> tokens[BLOCKS_M];
        DG_UNROLL for (int n = 0; n < BLOCKS_M; ++n)
            tokens[n] = load_shared<Vec<u32, 4>>(x + n * 8 * PITCH + k * 2);
        DG_UNROLL for (int s = 0; s < 2; ++s)
            DG_UNROLL for (int i = 0; i < TILES; ++i) {
                u32 a[4];
                weights_of<Number>(a, words[i].v[k / 32 % 2 * 2 + s], minus[i]);
                DG_UNROLL for (int n = 0; n < BLOCKS_M; ++n) {
                    const u32 b[2] = {tokens[n].v[s * 2], tokens[n].v[s * 2 + 1]};
                    product(part[i][n], a, b);
                }
            }
        if ((k + 32) % PER == 0)
            DG_UNROLL for (int i = 0; i < TILES; ++i)
                DG_UNROLL for (int r = 0; r < 2; ++r) {
                    f32 scale;
                    widen(load_shared<Number>(scales + (group * ROWS + i * 16 + r * 8) * 2), scale);
                    DG_UNROLL for (int n = 0; n < BLOCKS_M; ++n)
                        DG_UNROLL for (int e = 2 * r; e < 2 * r + 2; ++e)
                            total[i][n][e] = multiply_add(part[i][n][e], scale, total[i][n][e]);
                }
    }
}

// A warp's sums to its place in shared memory, laid out like y.
DG_DEVICE void put(const Sums& sums) {
    const u32 lane = lane_id(), g = lane / 4, t = lane % 4;
    u32 first = shared_begin() + AT_SUMS + warp_step() * (TOKENS * SUM_PITCH * 4);
    DG_UNROLL for (int i = 0; i < TILES; ++i)
        DG_UNROLL for (int n = 0; n < BLOCKS_M; ++n)
            DG_UNROLL for (int e = 0; e < 4; ++e) {
                u32 row = (warp_row() * TILES + i) * 16 + g + e / 2 * 8, token = n * 8 + 2 * t + e % 2;
                store_shared(first + (token * SUM_PITCH + row) * 4, sums[i][n][e]);
            }
}

// RUN neighbours of a line of y.
DG_DEVICE void finish(const Problem& p, u32 tile, int run, const Vec<f32, RUN>& sums) {
    int line = p.token(tile) + (int)((u32)run / (ROWS / RUN));
    int column = p.row(tile) + (int)((u32)run % (ROWS / RUN)) * RUN;
    if (line >= p.m) return;
    DG_UNROLL for (int e = 0; e < RUN; e += STORE) {
        if (EDGE_N && column + e >= p.n) return;
        Vec<Number, STORE> out;
        if constexpr (STORE == 1) narrow(sums.v[e], out.v[0]);
        else
            DG_UNROLL for (int i = 0; i < STORE; i += 2) {
                Vec<Number, 2> two;
                narrow_two(sums.v[e + i], sums.v[e + i + 1], two);
                out.v[i] = two.v[0];
                out.v[i + 1] = two.v[1];
            }
        store_global(p.y + line * p.ldy + column + e, out);
    }
}

// Where RUN neighbours of a block's sums lie, and what its warps have of them together.
DG_DEVICE u32 place(int run) {
    return shared_begin() + AT_SUMS + ((u32)run / (ROWS / RUN) * SUM_PITCH + (u32)run % (ROWS / RUN) * RUN) * 4;
}
DG_DEVICE void add(Vec<f32, RUN>& total, const Vec<f32, RUN>& more) {
    DG_UNROLL for (int e = 0; e < RUN; ++e) total.v[e] += more.v[e];
}
DG_DEVICE Vec<f32, RUN> of_warps(int run) {
    Vec<f32, RUN> total = load_shared<Vec<f32, RUN>>(place(run));
    DG_UNROLL for (int w = 1; w < WARPS_K; ++w)
        add(total, load_shared<Vec<f32, RUN>>(place(run) + w * (TOKENS * SUM_PITCH * 4)));
    return total;
}

#if CLUSTER > 1
// A block's sums of a tile and those of its cluster: each block finishes a share of the tile.
DG_DEVICE void leave(const Problem& p, u32 tile, const Sums& sums) {
    constexpr int EACH = RUNS / CLUSTER;
    put(sums);
    barrier();
    if (WARPS_K > 1)
        DG_NO_UNROLL for (int run = thread_id(); run < RUNS; run += THREADS) store_shared(place(run), of_warps(run));
    cluster_meet();
    DG_NO_UNROLL for (int share = first_share(); share < end_of_shares(); ++share)
        DG_NO_UNROLL for (int run = share * EACH + thread_id(); run < (share + 1) * EACH; run += THREADS) {
            Vec<f32, RUN> parts[CLUSTER];
            DG_UNROLL for (int q = 0; q < CLUSTER; ++q) parts[q] = load_from_block<Vec<f32, RUN>>(place(run), q);
            DG_UNROLL for (int q = 1; q < CLUSTER; ++q) add(parts[0], parts[q]);
            finish(p, tile, run, parts[0]);
        }
    cluster_ends();
}
#else
// Adds up the parts of a tile that blocks `first` to `last` have left, in their order.
DG_DEVICE void join(const Problem& p, u32 tile, u32 first, u32 last) {
    for (int run = thread_id(); run < RUNS; run += THREADS) {
        Vec<f32, RUN> total = {};
        DG_NO_UNROLL for (u32 block = first; block <= last; block += AHEAD) {
            Vec<f32, RUN> more[AHEAD];
            DG_UNROLL for (int i = 0; i < AHEAD; ++i)
                if (block + i <= last) more[i] = load_fresh<Vec<f32, RUN>>(p.slot(block + i, tile) + run * RUN);
            DG_UNROLL for (int i = 0; i < AHEAD; ++i)
                if (block + i <= last) add(total, more[i]);
        }
        finish(p, tile, run, total);
    }
}

// A block's sums of a tile: to y if they are of all of K, else beside those of other blocks.
DG_DEVICE void leave(const Problem& p, u32 tile, bool whole, const Sums& sums) {
    put(sums);
    barrier();
    f32* own = whole ? nullptr : p.slot(block_id(), tile);
    DG_NO_UNROLL for (int run = thread_id(); run < RUNS; run += THREADS) {
        Vec<f32, RUN> total = of_warps(run);
        if (whole) finish(p, tile, run, total);
        else store_global(own + run * RUN, total);
    }
    if (!whole) {
        u32 first = p.block_of(tile * p.rounds), last = p.block_of(tile * p.rounds + p.rounds - 1);
        if (arrive(p.arrived + tile) == last - first) {
            join(p, tile, first, last);
            reset(p.arrived + tile);
        }
    }
}
#endif

DG_KERNEL(THREADS, MIN_BLOCKS)
gemm_w4(const Number* x, const u8* w, const Number* scales, const u8* zeros, Number* y, f32* partial, u32* arrived, int m,
        int n, int k, i64 ldx, i64 ldy, int rounds, int token_tiles, u32 share, u32 rest, u32 blocks) {
    Problem p = {x, w, scales, zeros, y, partial, arrived, m, n, k, ldx, ldy, rounds, token_tiles, share, rest, blocks};
    const u32 begin = shared_begin() + NOTE;
    u32 stage = 0;
    // Stages `round` to `end` of a tile; copies run ahead of them.
    auto accumulate = [&](Copies& copies, int round, int end, Sums& total) {
        clear(total);
        DG_NO_UNROLL for (; round < end; ++round) {
            copy_wait<STAGES - 2>();
            barrier();
            copies.next();
            multiply(total, begin + stage);
            stage = stage + STAGE == STAGES * STAGE ? 0 : stage + STAGE;
        }
    };
    // Code that is read once takes time as well: not unrolled.
    auto ahead = [&](Copies& copies) { DG_NO_UNROLL for (int s = 0; s < STAGES - 1; ++s) copies.next(); };
    Sums total;
#if CLUSTER > 1
    u32 tile = (u32)block_id() / CLUSTER;
    int round = (int)((u32)(rounds * cluster_rank()) / CLUSTER);
    int end = (int)((u32)(rounds * (cluster_rank() + 1)) / CLUSTER);
    Copies copies(p, tile, round, end - round, begin);
    ahead(copies);
    accumulate(copies, round, end, total);
    leave(p, tile, total);
    copy_wait<0>();
#else
    if ((u32)block_id() < blocks) {
        u32 at = p.begin(block_id()), tile = at / rounds;
        int left = (int)(p.begin(block_id() + 1) - at), round = (int)(at - tile * rounds);
        Copies copies(p, tile, round, left, begin);
        ahead(copies);
        while (left > 0) {
            int end = round + left < rounds ? round + left : rounds;
            left -= end - round;
            accumulate(copies, round, end, total);
            leave(p, tile, end - round == rounds, total);
            round = 0;
            ++tile;
        }
        copy_wait<0>();
    }
#endif
    block_ends();
}
