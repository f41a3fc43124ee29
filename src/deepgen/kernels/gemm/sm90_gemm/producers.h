// Who fills the stages: one thread that asks the copy engine for tiles, or, where lines begin anywhere, many that load.
#pragma once

template <int SHARES, int USE>
DG_DEVICE void get(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z, u32 mask, u64 use) {
    if (SHARES > 1)
        fetch_for_many<USE>(to, map, barrier, x, y, z, mask, use);
    else
        fetch<USE>(to, map, barrier, x, y, z, use);
}

// Fetches this block's share of a tile: K is contiguous, or, where `K_MAJOR` is 0, rows are, `LINE` bytes of them.
template <int ROWS, int SHARES, int K_MAJOR, int LINE, int USE>
DG_DEVICE void get_tile(
    u32 to, const TensorMap* map, u32 barrier, int row, int k, int z, int share, u32 mask, u64 use
) {
    constexpr int OWN = SHARES > 1 ? share_of_tile(ROWS, SHARES, K_MAJOR) : ROWS, WIDE = LINE / 2;
    int first = min(share * OWN, ROWS - OWN);
    row += first;
    to += first * 128;
    if (K_MAJOR) {
        get<SHARES, USE>(to, map, barrier, k, row, z, mask, use);
    } else {
#pragma unroll
        for (int i = 0; i < OWN / WIDE; ++i)
            get<SHARES, USE>(to + i * (LINE * 64), map, barrier, row + i * WIDE, k, z, mask, use);
    }
}

#if PAIRED
DG_DEVICE void produce(
    const Problem& p, const Shared& s, const TensorMap* a, const TensorMap* b, const TensorMap* b2, int from, int rank
) {
#else
DG_DEVICE void produce(const Problem& p, const Shared& s, const TensorMap* a, const TensorMap* b, int rank) {
#endif
    Schedule schedule(p, rank, 0, 1);
    Place at;
    Piece w;
    int rank_m = rank % CLUSTER_M, rank_n = CLUSTER_K > 1 ? 0 : rank / CLUSTER_M;
    u32 along_n = 0, along_m = ((1u << CLUSTER_M) - 1) << rank_n * CLUSTER_M;
#pragma unroll
    for (int i = 0; i < CLUSTER_N; ++i) along_n |= 1u << (rank_m + i * CLUSTER_M);
    u64 use_a = policy<CACHE_A>(), use_b = policy<CACHE_B>();
    if (REALIGN) wait_for_launch_before();
    while (schedule.next(p, w)) {
#if GROUPED
        int k = w.k, of_b = GRADIENT ? 0 : w.expert;
#else
        int k = w.first * BK;
#endif
#pragma unroll 1
        for (int i = 0; i < w.steps; ++i) {
            u32 full = s.full + at.stage * 8, tile = s.stages + at.stage * STAGE_BYTES;
            barrier_wait(s.empty + at.stage * 8, at.phase ^ 1);
            barrier_expect(full, FETCHED_BYTES);
#pragma unroll
            for (int j = 0; j < ATOMS; ++j) {
                get_tile<A_ROWS, CLUSTER_N, A_K_MAJOR, 128, CACHE_A>(
                    tile + j * A_BYTES, a, full, w.m, k, SHARED_A ? 0 : w.batch, rank_n, along_n, use_a);
#if GROUPED
                get_tile<B_ROWS, CLUSTER_M, B_K_MAJOR, B_LINE, CACHE_B>(
                    tile + ATOMS * A_BYTES + j * B_BYTES, b, full, w.n, k, of_b, rank_m, along_m, use_b);
#else
#if PAIRED
                u32 second = tile + ATOMS * A_BYTES + j * B_BYTES + B_BYTES / 2;
                get<CLUSTER_M, CACHE_B>(second - B_BYTES / 2, b, full, k, w.n, 0, along_m, use_b);
                get<CLUSTER_M, CACHE_B>(second, b2, full, k, from + w.n, 0, along_m, use_b);
#else
                get_tile<B_ROWS, CLUSTER_M, B_K_MAJOR, B_LINE, CACHE_B>(
                    tile + ATOMS * A_BYTES + j * B_BYTES, b, full, w.n, k, w.batch, rank_m, along_m, use_b);
#endif
#endif
                k += BK / ATOMS;
            }
            at.advance();
        }
    }
    // No block may go while another could still tell it that a stage is free.
    for (int i = 0; SHARERS > 1 && i < STAGES; ++i) {
        barrier_wait(s.empty + at.stage * 8, at.phase ^ 1);
        at.advance();
    }
}

#if A_BY_LANES || B_BY_LANES
#if ASYNC_LINES
#include "async_lines.h"
#else
#include "loaders.h"
#endif
#endif
