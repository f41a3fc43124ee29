// Who fills the stages of a convolution: one thread that asks the copy engine for windows of the image and for filters.
//
// K goes through the filter's taps, and of each through TAP_LINES times 64 channels; beyond the last channel there are
// zeros. A tile's rows are output pixels one after the other, whatever rows and images they lie in.
#pragma once

template <int SHARES, int USE>
DG_DEVICE void get(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z, u32 mask, u64 use) {
    if (SHARES > 1)
        fetch_for_many<USE>(to, map, barrier, x, y, z, mask, use);
    else
        fetch<USE>(to, map, barrier, x, y, z, use);
}

constexpr int TAPS = TAPS_H * TAPS_W;

// Where a window begins: the column and row of its first tap may lie outside of the image.
struct Window {
    int x, y, image;
    DG_DEVICE Window(int pixel) {
        int row = pixel / OUT_W;
        image = row / OUT_H;
        x = (pixel - row * OUT_W) * STRIDE_W - PAD_W;
        y = (row - image * OUT_H) * STRIDE_H - PAD_H;
    }
};

#include "im2col.h"

// One atom: a line of channels of one tap for all of a tile's windows and filters. `LINE` is as long as both maps have it.
template <int LINE>
DG_DEVICE void get_atom(
    u32 a_to, u32 b_to, const TensorMap* a, const TensorMap* b, u32 full, const Piece& w, const Window& from, int channel,
    int beyond, int tap, int tap_x, int tap_y, int rank_m, int rank_n, u32 along_m, u32 along_n, u64 use_a, u64 use_b
) {
    constexpr int OWN = A_ROWS / CLUSTER_N;  // pixels that this block fetches, for all blocks along N
    constexpr int OWN_FILTERS = B_ROWS / CLUSTER_M, WIDE = B_LINE / 2;
    a_to += rank_n * OWN * LINE;
#if IM2COL
    get_windows<CLUSTER_N, CACHE_A>(a_to, a, full, beyond, from, tap_x * APART_W, tap_y * APART_H, along_n, use_a);
#else
    get<CLUSTER_N, CACHE_A>(a_to, a, full, beyond, w.m + rank_n * OWN, 0, along_n, use_a);
#endif
    b_to += rank_m * OWN_FILTERS * LINE;
#pragma unroll
    for (int i = 0; i < OWN_FILTERS / WIDE; ++i)
        get<CLUSTER_M, CACHE_B>(
            b_to + i * (WIDE * LINE), b, full, w.n + rank_m * OWN_FILTERS + i * WIDE, channel, tap, along_m, use_b);
}

DG_DEVICE void produce(
    const Problem& p, const Shared& s, const TensorMap* a, const TensorMap* b, int rank,
    [[maybe_unused]] const TensorMap* a_last = nullptr, [[maybe_unused]] const TensorMap* b_last = nullptr
) {
    constexpr int LAST_CHANNEL = (TAP_LINES - 1) * 64;  // the first channel of a tap's last line
    Schedule schedule(p, rank, 0, 1);
    Place at;
    Piece w;
    int rank_m = rank % CLUSTER_M, rank_n = CLUSTER_K > 1 ? 0 : rank / CLUSTER_M;
    u32 along_n = 0, along_m = ((1u << CLUSTER_M) - 1) << rank_n * CLUSTER_M;
#pragma unroll
    for (int i = 0; i < CLUSTER_N; ++i) along_n |= 1u << (rank_m + i * CLUSTER_M);
    u64 use_a = policy<CACHE_A>(), use_b = policy<CACHE_B>();
#ifdef STORED_CI  // of copies, which the launch before makes
    wait_for_launch_before();
#endif
    while (schedule.next(p, w)) {
        const Window from(w.m + rank_n * (A_ROWS / CLUSTER_N));
        int tap = w.first * ATOMS / TAP_LINES, channel = (w.first * ATOMS - tap * TAP_LINES) * 64;
        int tap_y = tap / TAPS_W, tap_x = tap - tap_y * TAPS_W;
#pragma unroll 1
        for (int i = 0; i < w.steps; ++i) {
            u32 full = s.full + at.stage * 8, tile = s.stages + at.stage * STAGE_BYTES;
            barrier_wait(s.empty + at.stage * 8, at.phase ^ 1);
            int shorter = TAP_LINES == 1 ? ATOMS : channel == LAST_CHANNEL || (ATOMS > 1 && channel + 64 == LAST_CHANNEL);
            barrier_expect(full, FETCHED_BYTES - shorter * (FETCHED_BYTES / ATOMS / 128 * (128 - LAST_LINE)));
#pragma unroll
            for (int j = 0; j < ATOMS; ++j) {
                // What fills up the last stage lies beyond the channels of the image: zeros.
                int beyond = ATOMS > 1 && tap >= TAPS ? TAP_LINES * 64 : channel;
                u32 a_to = tile + j * A_BYTES, b_to = tile + ATOMS * A_BYTES + j * B_BYTES;
#if LAST_LINE < 128
                if (channel == LAST_CHANNEL)
                    get_atom<LAST_LINE>(a_to, b_to, a_last, b_last, full, w, from, channel, beyond, tap, tap_x, tap_y,
                                        rank_m, rank_n, along_m, along_n, use_a, use_b);
                else
#endif
                    get_atom<128>(a_to, b_to, a, b, full, w, from, channel, beyond, tap, tap_x, tap_y, rank_m, rank_n,
                                  along_m, along_n, use_a, use_b);
                channel += 64;
                if (channel == TAP_LINES * 64) {
                    channel = 0, ++tap;
                    if (++tap_x == TAPS_W) tap_x = 0, ++tap_y;
                }
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
