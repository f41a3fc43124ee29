// C = activation(alpha * op(A) op(B) * scale + beta * C + bias) on Hopper's tensor cores, batched.
//
// What it uses, and what each step gained on an H200: bf16 nt, cold L2, the best config without it and with it, in us
// (*: in two runs).
//   copy engine, swizzled tiles, barriers, products of two warpgroups, 128 x 256     4096^3: 197
//   results through stmatrix and the copy engine      4096^3: 197 to 177; batch 16 of 1024x1024x128: 37 to 17
//   stages that run on over tiles                     batch 16 of 1024x1024x128: 17.0 to 15.4
//   pairs of blocks that share tiles (multicast)      4096^3: 177 to 174; 8192^3: 1376 to 1358; nothing on small shapes
//   arrivals at the other block without a fence       without this a cluster takes two to three times as long
//   two warpgroups that take turns (ping-pong)        6144x6144x1024: 112 to 105; 8192^3: 1376 to 1427, slower
//   K over a cluster, added up in shared memory       384x384x4096: 13.2 to 10.0
//   K over blocks, the last one adds up               256x4096x14336: 54.8 to 51.2
//   K over blocks, each adds up a share (exchange)    128x128x16384: 12.1 to 10.2; 256x256x65536: 36.8 to 29.7
//   even shares of all steps (stream)                 nothing on any of 26 shapes
//   results stored while the next tile's products run (late)   4096x14336x4096: 595 to 588; 4096^3: 175.5 to 173.0
//   tiles of any multiple of 8 columns                2048x11008x4096: 239 to 232 (168: four full rounds)
//   what streams leaves the L2 cache first            128x11008x4096: 33.0 to 29.9; 4096x128x4096: 17.0 to 15.2
//   of a low matrix only its rows are fetched         16x4096x4096: 17.6 to 14.9*
//   more loads under way when parts are added up      256x256x65536: 29.7 to 28.0*
//   32-bit results through the copy engine            i8 6144x6144x1024: 92.7 to 68.0*
//   results where the tiles were (reuse)              nothing, but shared memory for another stage
//   parts of K among blocks that share tiles          nothing in bf16; fp8 with f32 sums 256x4096x14336: 34.7 to 33.8
//   sizes and factors in the code (FIXED)             1024^3: 8.64 to 8.29; 384x384x4096: 10.34 to 9.95; batch 64 of
//                                                     512x512x64: 14.4 to 13.7; 4096^3: 178.1 to 176.7; all of 26 shapes
//   pairs that share tiles of any width               nothing in bf16; fp8 2048x11008x4096: 127.6 to 126.5
//   parts of the tiles beyond the last full round     nn 2048x11008x4096: 243.7 to 233.7; nt: nothing (168 fits)
//   squares of tiles along Hilbert's curve            nothing: 1 % at most, in three of 130
//   rows that begin anywhere, loaded by producers     2332x24x10: 8.4 (copied first) to 5.8; 1139x576x30 i8: 8.8 to 6.5
//   such rows of C in aligned chunks                  3186x5526x64: 30.6 to 26.0; 128 of 197x197x64: 14.9 to 13.8
//   8-bit floats: a second set of sums, in f32        exact to f32, not to 14 bits; 4096^3: 94 to 109, 8192^3: 720 to 755
// Tried and left out: to move such sums at different times in the warpgroups of a block, half a stage apart (0 to 6 %
// slower, in 12 of 14 shapes); to go through the storing once, outside of C, while the first tile is on its way (more
// registers, up to three times as long); to ask for C's descriptor early, and the producer's code first (nothing); tiles
// of 72 to 200 columns in nn (168: 370 us where nt takes 236: instructions want whole lines of contiguous columns).
//
// A block computes BM x BN of C, BK steps of K at a time. One thread has the copy engine fetch tiles of A and B into
// STAGES swizzled buffers; CONSUMERS warpgroups multiply them. A stage's `full` barrier tells that its bytes have come,
// its `empty` barrier that all have used them. The knobs are macros; `lower.py` gives them all.
#include "epilogue.h"
#include "products.h"
#if REALIGN
#include "realign.h"
#endif
#if STORE_LINES
#include "store_lines.h"
#endif
#ifndef TAP_LINES
// Of a convolution K goes through taps, each in so many lines of 128 bytes, the last of which may be shorter.
#define TAP_LINES 1
#define LAST_PRODUCTS 4
#define LAST_LINE 128
#endif
#ifndef SHARED_A
#define SHARED_A 0  // 1: all matrices of a batch have the same A, which is fetched as the first
#endif
constexpr int THREADS = CONSUMERS * 128 + PRODUCERS;
#if PAIRED
#include "paired.h"
#endif

// Lines of a tile that each of some blocks fetches for all. Where lines lie along K these are whole groups of eight, as
// the swizzle has them: if the tile does not divide into such shares, neighbours fetch some lines both.
DG_DEVICE constexpr int share_of_tile(int lines, int blocks, int k_major) {
    return k_major ? (lines + 8 * blocks - 1) / (8 * blocks) * 8 : lines / blocks;
}
// Lines of a tile lie along K, or along rows where these are contiguous: then in blocks of B_LINE bytes of them.
constexpr int B_ROWS = B_K_MAJOR ? BN : (BN * 2 + B_LINE - 1) / B_LINE * (B_LINE / 2);
constexpr int A_BYTES = BM * 128, B_BYTES = B_ROWS * 128;  // of an atom: 128 bytes along K
constexpr int STAGE_BYTES = ATOMS * (A_BYTES + B_BYTES);
// Of a matrix that is lower than a tile only A_ROWS are fetched: to fill the others with zeros takes as long as to
// fetch them. Whatever lies there adds to rows of C that do not exist.
constexpr int FETCHED_BYTES =
    ATOMS * 128 * (!A_BY_LANES * A_ROWS + !B_BY_LANES * CLUSTER_M * share_of_tile(B_ROWS, CLUSTER_M, B_K_MAJOR));
constexpr int BUFFER_BYTES = (STORE_TMA || STORE_LINES) && !REUSE ? CONSUMERS * 4 * EPILOGUE_BUFFERS * 16 * C_PITCH : 0;
constexpr int SHARERS = CLUSTER_M + CLUSTER_N - 1;  // blocks that a block shares tiles with, and itself
constexpr int TEAM = PING_PONG ? 1 : CONSUMERS;     // warpgroups that use a stage
#if ASYNC_LINES
constexpr int FILLERS = PRODUCERS + !(A_BY_LANES && B_BY_LANES);  // arrive at `full`
#else
constexpr int FILLERS = A_BY_LANES || B_BY_LANES ? PRODUCERS / 32 + !(A_BY_LANES && B_BY_LANES) : 1;  // arrive at `full`
#endif
constexpr int ORDER = 1 + CONSUMERS;                // named barriers: one for each warpgroup, then whose turn it is
static_assert(BM == TILE_M * TEAM, "warpgroups cover the tile");

// Where in the ring of stages someone is.
struct Place {
    int stage = 0;
    u32 phase = 0;
    DG_DEVICE void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    DG_DEVICE void skip(int steps) {
        stage += steps;
        phase ^= stage / STAGES & 1;
        stage %= STAGES;
    }
};

// The block's shared memory, as addresses.
struct Shared {
    u32 stages, buffers, full, empty;
#if BLOCK_SCALES
    u32 factors;
#endif
    u32* flags;
    DG_DEVICE Shared(char* memory) {
        u32 start = shared_address(memory);
        stages = (start + 1023) & ~1023u;
        buffers = stages + STAGES * STAGE_BYTES;
#if BLOCK_SCALES
        factors = buffers + BUFFER_BYTES;
        full = factors + CONSUMERS * (BLOCK_B == 1 ? 1 : 4) * FACTOR_RING * FACTORS * 4;
#else
        full = buffers + BUFFER_BYTES;
#endif
        empty = full + STAGES * 8;
        flags = reinterpret_cast<u32*>(memory + (empty + STAGES * 8 - start));
    }
};

#include "producers.h"
#if BLOCK_SCALES
#include "factors.h"
#endif

// Tells everyone who writes to this block's stage that a warp is done with it.
DG_DEVICE void release(u32 empty, int rank) {
    int lane = threadIdx.x % 32;
    if (SHARERS == 1) {
        if (lane == 0) barrier_arrive(empty);
    } else if (lane < SHARERS) {
        int rank_m = rank % CLUSTER_M, rank_n = rank / CLUSTER_M, other = lane - CLUSTER_M;
        int to = lane < CLUSTER_M ? lane + rank_n * CLUSTER_M : rank_m + (other + (other >= rank_n)) * CLUSTER_M;
        barrier_arrive_at(empty, to);
    }
}

#if GROUPED
#include "expert_rows.h"

#endif
// The products of an atom are put in line. `add`: to sums that there are.
template <int COUNT = 4, int LINE = 128>
DG_DEVICE void put_products(acc_t (&sums)[CHUNKS * 4], u64 a, u64 b, bool add) {
#pragma unroll
    for (int q = 0; q < COUNT; ++q)
#pragma unroll
        for (int t = 0; t < TILE_M / 64; ++t)
            product(
                &sums[t * (BN / 2)],
                a + ((t * (64 * LINE) + q * (A_K_MAJOR ? 32 : 2048)) >> 4),
                b + (q * (B_K_MAJOR ? 32 : B_LINE * 16) >> 4),
                q > 0 || add);
}

// The products of one step are put in line behind those of the step before, whose stage is let go when they are done.
DG_DEVICE void multiply_step(
    acc_t (&sums)[CHUNKS * 4], const Shared& s, Place& at, u64 a, u64 b, bool first, u32& last, int rank,
    [[maybe_unused]] int& line, [[maybe_unused]] int team
) {
    barrier_wait(s.full + at.stage * 8, at.phase);
#if ASYNC_LINES
    writes_ready();
#endif
    u64 tile = (u32)(at.stage * STAGE_BYTES) >> 4;
    products_begin();
#pragma unroll
    for (int j = 0; j < ATOMS; ++j) {
        u64 more_a = tile + (j * A_BYTES >> 4), more_b = tile + (j * B_BYTES >> 4);
        if (LAST_PRODUCTS < 4 && ++line == TAP_LINES) {
            line = 0;
            u64 last_a = operand<LAST_LINE>(s.stages + team * (TILE_M * LAST_LINE), 16, LAST_LINE * 8);
            u64 last_b = operand<B_LINE>(s.stages + ATOMS * A_BYTES, B_LINE * (LAST_LINE / 2), B_LINE * 8);
            put_products<LAST_PRODUCTS, LAST_LINE>(sums, last_a + more_a, last_b + more_b, j > 0 || !first);
        } else {
            put_products(sums, a + more_a, b + more_b, j > 0 || !first);
        }
    }
    products_commit();
    if (!first) {
        products_wait<1>();
        release(last, rank);
    }
    last = s.empty + at.stage * 8;
    at.advance();
}

// Of sums of 8-bit floats the chip keeps fewer bits than f32 has: those of an atom, 128 products, are added to a second
// set. A stage is let go before that.
DG_DEVICE void multiply_exact_step(
    acc_t (&sums)[CHUNKS * 4], const Shared& s, Place& at, u64 a, u64 b, bool last, int rank
#if BLOCK_SCALES
    , Factors& factors
#endif
) {
    barrier_wait(s.full + at.stage * 8, at.phase);
#if ASYNC_LINES
    writes_ready();
#endif
    u64 tile = (u32)(at.stage * STAGE_BYTES) >> 4;
#pragma unroll
    for (int j = 0; j < ATOMS; ++j) {
        acc_t some[CHUNKS * 4];
        products_begin();
        put_products(some, a + tile + (j * A_BYTES >> 4), b + tile + (j * B_BYTES >> 4), false);
        products_commit();
#if BLOCK_SCALES
        u32 mine = factors.next();
#endif
        products_wait<0>();
        if (j + 1 == ATOMS && !last) release(s.empty + at.stage * 8, rank);
#if BLOCK_SCALES
        factors.add(sums, some, mine);
#else
#pragma unroll
        for (int k = 0; k < CHUNKS * 4; ++k) pin(some[k]), sums[k] += some[k];
#endif
    }
    at.advance();
}

#if AHEAD
// The same in two halves: a step's products are put in line before those of the step before are added, so that the tensor
// cores do not wait for that.
DG_DEVICE void begin_exact_step(acc_t (&some)[CHUNKS * 4], const Shared& s, Place& at, u64 a, u64 b) {
    barrier_wait(s.full + at.stage * 8, at.phase);
#if ASYNC_LINES
    writes_ready();
#endif
    u64 tile = (u32)(at.stage * STAGE_BYTES) >> 4;
    products_begin();
    put_products(some, a + tile, b + tile, false);
    products_commit();
    at.advance();
}
template <int BEHIND>  // steps in line behind this one
DG_DEVICE void end_exact_step(
    acc_t (&sums)[CHUNKS * 4], acc_t (&some)[CHUNKS * 4], const Shared& s, int& stage, bool last, int rank
#if BLOCK_SCALES
    , Factors& factors
#endif
) {
#if BLOCK_SCALES
    u32 mine = factors.next();
#endif
    products_wait<BEHIND>();
    if (!last) release(s.empty + stage * 8, rank);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
#if BLOCK_SCALES
    factors.add(sums, some, mine);
#else
#pragma unroll
    for (int k = 0; k < CHUNKS * 4; ++k) pin(some[k]), sums[k] += some[k];
#endif
}

#endif
// A tile's results, rounded, that are stored while the next tile's products run: the tensor cores do not wait for them.
struct Late {
#if LATE
    const TensorMap* map;
    int row;
    u32 buffers;
    int& turn;
    u32 words[PIECES][WORDS];
    Piece w;
    bool any = false;
#if EARLY
    const Problem& p;
    Early early;  // in the registers of results, when these are stored

    DG_DEVICE Late(const Problem& p, const TensorMap* map, int row, u32 buffers, int& turn)
        : map(map), row(row), buffers(buffers), turn(turn), p(p) {}
#else

    DG_DEVICE Late(const TensorMap* map, int row, u32 buffers, int& turn)
        : map(map), row(row), buffers(buffers), turn(turn) {}
#endif
#if PAIRED
    DG_DEVICE void keep(const Problem& p, const Piece& tile, const acc_t (&sums)[RESULT_CHUNKS * 4]) {
#else
    DG_DEVICE void keep(const Problem& p, const Piece& tile, const acc_t (&sums)[CHUNKS * 4]) {
#endif
#pragma unroll
#if EARLY
        for (int piece = 0; piece < PIECES; ++piece) {
            early.ask(p, tile, row, piece + EARLY_PIECES);
            pack(p, early.of[piece], piece, sums, words[piece]);
        }
#else
        for (int piece = 0; piece < PIECES; ++piece) pack(p, tile, row, piece, sums, words[piece]);
#endif
#pragma unroll
        for (int i = 0; i < PIECES * WORDS; ++i) pin(words[i / WORDS][i % WORDS]);
        w = tile;
        any = true;
    }
    DG_DEVICE void store(int piece) {
        if (any) send(map, w, row, piece, words[piece], buffers, turn);
    }
#endif
};

// One tile's steps.
DG_DEVICE void multiply(
    acc_t (&sums)[CHUNKS * 4], const Shared& s, Place& at, const Piece& w, u64 a, u64 b, int rank,
    [[maybe_unused]] int team, [[maybe_unused]] Late& late
#if BLOCK_SCALES
    , Factors& factors
#endif
) {
    int i = 0, steps = w.steps;
    [[maybe_unused]] int line = LAST_PRODUCTS < 4 ? w.first * ATOMS % TAP_LINES : 0;
#if GROUPED
    if (w.m + team * TILE_M >= w.end) {
#if LATE
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) late.store(piece);
        late.any = false;
#endif
        pass_by(s, at, steps, rank);
        return;
    }
#endif
#if EXACT
#pragma unroll
    for (int k = 0; k < CHUNKS * 4; ++k) sums[k] = 0;
#if AHEAD
#if BLOCK_SCALES
#define FACTORS_OF_STEP , factors
#else
#define FACTORS_OF_STEP
#endif
    acc_t even[CHUNKS * 4], odd[CHUNKS * 4];
    int done = at.stage;
    begin_exact_step(even, s, at, a, b);
#pragma unroll 1
    for (i = 1; i + 1 < steps; i += 2) {
        begin_exact_step(odd, s, at, a, b);
        end_exact_step<1>(sums, even, s, done, false, rank FACTORS_OF_STEP);
        begin_exact_step(even, s, at, a, b);
        end_exact_step<1>(sums, odd, s, done, false, rank FACTORS_OF_STEP);
    }
    if (i < steps) {
        begin_exact_step(odd, s, at, a, b);
        end_exact_step<1>(sums, even, s, done, false, rank FACTORS_OF_STEP);
        end_exact_step<0>(sums, odd, s, done, true, rank FACTORS_OF_STEP);
    } else {
        end_exact_step<0>(sums, even, s, done, true, rank FACTORS_OF_STEP);
    }
#else
#pragma unroll 1
#if BLOCK_SCALES
    for (; i < steps; ++i) multiply_exact_step(sums, s, at, a, b, i + 1 == steps, rank, factors);
#else
    for (; i < steps; ++i) multiply_exact_step(sums, s, at, a, b, i + 1 == steps, rank);
#endif
#endif
    u32 last = s.empty + (at.stage == 0 ? STAGES - 1 : at.stage - 1) * 8;
#else
    u32 last = 0;
#if LATE
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece) {
#if GROUPED
        if (i < steps) clear_rest(s, at, w, i, team);
#endif
        if (i < steps) multiply_step(sums, s, at, a, b, i == 0, last, rank, line, team), ++i;
        late.store(piece);
    }
    late.any = false;
#if EARLY
    late.early.begin(late.p, w, late.row);
#endif
#endif
#pragma unroll 1
#if GROUPED
    for (; i < steps; ++i) {
        clear_rest(s, at, w, i, team);
        multiply_step(sums, s, at, a, b, i == 0, last, rank, line, team);
    }
#else
    for (; i < steps; ++i) multiply_step(sums, s, at, a, b, i == 0, last, rank, line, team);
#endif
#endif
    if (PING_PONG) return;
    products_wait<0>();
    release(last, rank);
}

#if BLOCK_SCALES
DG_DEVICE void consume(
    const Problem& p, const Shared& s, const TensorMap* c, int rank, int group, const BlockScales& scales
) {
#else
DG_DEVICE void consume(const Problem& p, const Shared& s, const TensorMap* c, int rank, int group) {
#endif
    Schedule schedule(p, rank, PING_PONG ? group : 0, PING_PONG ? 2 : 1);
    Place at;
    Piece w;
    int team = PING_PONG ? 0 : group, row = team * TILE_M + threadIdx.x / 32 % 4 * 16;
    u64 a = operand<128>(s.stages + team * (TILE_M * 128), A_K_MAJOR ? 16 : 8192, 1024);
    u64 b = operand<B_LINE>(s.stages + ATOMS * A_BYTES, B_K_MAJOR ? 16 : B_LINE * 64, B_LINE * 8);
#if STORE_TMA || STORE_LINES
    u32 buffers = (REUSE ? s.stages : s.buffers) + threadIdx.x / 32 * (SLOTS * PIECE_BYTES);
    [[maybe_unused]] int turn = 0;
#endif
#if LATE
#if EARLY
    Late late(p, c, row, buffers, turn);
#else
    Late late(c, row, buffers, turn);
#endif
#else
    Late late;
#endif
    if (PING_PONG && group == 1) {
        at.skip(schedule.steps);
        notify(ORDER, 256);
    }
#if BLOCK_SCALES
    Schedule ahead = schedule;
    Piece w_ahead;
    Factors factors(s.factors);
    if (ahead.next(p, w_ahead)) factors.begin(p, scales, w_ahead, row);
#endif
    while (schedule.next(p, w)) {
#if GROUPED
        const Problem& whole = p;
        const Problem p = of_expert(whole, w);
#endif
        acc_t sums[CHUNKS * 4];
#if EARLY
#if !LATE
        Early early;
        early.begin(p, w, row);
#endif
#endif
        if (PING_PONG) meet(ORDER + group, 256);
#if BLOCK_SCALES
        multiply(sums, s, at, w, a, b, rank, team, late, factors);
        if (ahead.next(p, w_ahead)) factors.begin(p, scales, w_ahead, row);
#else
        multiply(sums, s, at, w, a, b, rank, team, late);
#endif
        if (PING_PONG) {
            if (schedule.more(1)) notify(ORDER + 1 - group, 256);
            products_wait<0>();
            release(s.empty + (at.stage == 0 ? STAGES - 1 : at.stage - 1) * 8, rank);
            at.skip(schedule.steps);
        }
#pragma unroll
        for (int i = 0; i < CHUNKS * 4; ++i) pin(sums[i]);  // no use of them moves before the wait
#if PAIRED
        acc_t results[RESULT_CHUNKS * 4];
        pair_up(p, w, row, sums, results);
#if LATE
        late.keep(p, w, results);
#elif STORE_TMA
        if (REUSE) meet(ORDER, WORKERS);  // results go where all have read their tiles
        store_copied(p, c, w, row, results, buffers, turn);
#else
        store_straight<RESULT_CHUNKS>(p, w, row, results, 0);
#endif
#else
#if GROUPED
        int left = w.end - w.m - row;  // rows from this warp's first on: the copy engine would store others' too
        if (!GRADIENT && left < TILE_M - 48) {
            if (left > 0) store_straight<CHUNKS>(p, w, row, sums, 0);
            continue;
        }
#endif
#if EXCHANGE
        if (FIXUP == SPLIT || w.steps < schedule.steps) {  // a part
            acc_t own[SHARE * 4];
            int tile = (w.tile - schedule.whole) * CLUSTER + rank;
            if (exchange(p, w, sums, own, tile, group)) store_straight<SHARE>(p, w, row, own, w.part * SHARE);
            continue;
        }
#endif
#if FIXUP == SPLIT && !EXCHANGE
#if CLUSTER_K > 1
        acc_t own[OWN_CHUNKS * 4];
        meet(ORDER, WORKERS);  // the sums go where all have read their tiles: warps, too, run apart
        add_cluster(sums, own, s.stages, rank);
#else
        acc_t(&own)[CHUNKS * 4] = sums;
#endif
        if (PARTS > 1 && !add_parts(p, w, own, rank, group, s.flags + group)) continue;
        store_straight<OWN_CHUNKS>(p, w, row, own, CLUSTER_K > 1 ? rank * OWN_CHUNKS : 0);
#elif FIXUP != SPLIT
#if FIXUP == STREAM
        if (!add_stream(p, schedule, w, sums, group)) continue;
#endif
#if LATE
        late.keep(p, w, sums);
#elif STORE_TMA
        if (REUSE) meet(ORDER, WORKERS);  // results go where all have read their tiles
#if EARLY
        store_copied(p, c, w, row, sums, buffers, turn, early);
#else
        store_copied(p, c, w, row, sums, buffers, turn);
#endif
#elif STORE_LINES
        store_lines(p, w, row, sums, buffers);
#else
        store_straight<CHUNKS>(p, w, row, sums, 0);
#endif
#endif
#endif  // PAIRED
    }
#if LATE
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece) late.store(piece);
#endif
#if STORE_TMA
    if (threadIdx.x % 32 == 0) puts_read<0>();
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) gemm(
#if A_BY_LANES
    const char* a, int lda, i64 stride_a,
#else
    const __grid_constant__ TensorMap a,
#endif
#if B_BY_LANES
    const char* b, int ldb, i64 stride_b,
#else
    const __grid_constant__ TensorMap b,
#endif
#if PAIRED
    const __grid_constant__ TensorMap b2,
#endif
#if LAST_LINE < 128
    const __grid_constant__ TensorMap a_last, const __grid_constant__ TensorMap b_last,
#endif
#if STORE_TMA
    const __grid_constant__ TensorMap c_map,
#endif
    TYPE_C* c, const TYPE_C* bias, const float* scale, float4* partial, u32* arrived,
    int m, int n, int k, int batch, int ldc, i64 stride_c, TYPE_SCALE alpha, TYPE_SCALE beta, int streamed
#if BLOCK_SCALES
    , const float* scale_a, const float* scale_b,
    i64 a_matrix, i64 a_row, i64 a_step, i64 b_matrix, i64 b_row, i64 b_step
#endif
#if EPILOGUE
    EPILOGUE_PARAMETERS
#endif
) {
    extern __shared__ char memory[];
#if FIXED
    // Nothing is read, and nothing divided, before the first tile is asked for.
    const Problem p{c, bias, scale, partial, arrived, SIZE_M, SIZE_N, SIZE_K, SIZE_BATCH, SIZE_N, STRIDE_C,
#if EPILOGUE
                    ALPHA, BETA_VALUE, streamed, EPILOGUE_GIVEN};
#else
                    ALPHA, BETA_VALUE, streamed};
#endif
#else
#if EPILOGUE
    const Problem p{c, bias, scale, partial, arrived, m, n, k, batch, ldc, stride_c, alpha, beta, streamed, EPILOGUE_GIVEN};
#else
    const Problem p{c, bias, scale, partial, arrived, m, n, k, batch, ldc, stride_c, alpha, beta, streamed};
#endif
#endif
    const Shared s(memory);
    int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), rank = CLUSTER > 1 ? cluster_rank() : 0;
    if (threadIdx.x == CONSUMERS * 128) {
#if !A_BY_LANES
        prefetch_map(&a);
#endif
#if !B_BY_LANES
        prefetch_map(&b);
#endif
#pragma unroll
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(s.full + i * 8, FILLERS);
            barrier_init(s.empty + i * 8, TEAM * 4 * SHARERS);
        }
        barriers_ready();
    }
    // Consumers wait until there are barriers. The one who made them need not wait for anyone in this block.
    __syncwarp();
    if (CLUSTER > 1)
        cluster_meet();
    else if (warp >= CONSUMERS * 4 && !(A_BY_LANES || B_BY_LANES))
        notify(0, THREADS);
    else
        meet(0, THREADS);
    if (warp >= CONSUMERS * 4) {
#if REGISTERS
        registers_down<REGISTERS_DOWN>();
#endif
#if A_BY_LANES || B_BY_LANES
        Loaders loaders{
            p, s,
#if A_BY_LANES
            nullptr,
#else
            &a,
#endif
#if B_BY_LANES
            nullptr,
#else
            &b,
#endif
            policy<CACHE_A>(), policy<CACHE_B>(), {}, {},
#if A_BY_LANES
            {a, p.m, p.k, lda, stride_a, p.batch},
#endif
#if B_BY_LANES
            {b, p.n, p.k, ldb, stride_b, p.batch},
#endif
        };
        loaders.run(rank);
#else
        if (threadIdx.x == CONSUMERS * 128)
#if PAIRED
            produce(p, s, &a, &b, &b2, JOINED ? p.n : 0, rank
#else
            produce(p, s, &a, &b, rank
#endif
#if LAST_LINE < 128
                , &a_last, &b_last
#endif
            );
#endif
        __syncwarp();
        if (CLUSTER_K > 1) cluster_share(), cluster_done();  // as the consumers do
    } else {
#if REGISTERS
        registers_up<REGISTERS>();
#endif
#if BLOCK_SCALES
        const BlockScales scales{scale_a, scale_b, a_matrix, a_row, a_step, b_matrix, b_row, b_step};
#if STORE_TMA
        consume(p, s, &c_map, rank, warp / 4, scales);
#else
        consume(p, s, nullptr, rank, warp / 4, scales);
#endif
#else
#if STORE_TMA
        consume(p, s, &c_map, rank, warp / 4);
#else
        consume(p, s, nullptr, rank, warp / 4);
#endif
#endif
    }
    if (CLUSTER_K > 1) cluster_all_done();  // no block may go while its sums are read
}
