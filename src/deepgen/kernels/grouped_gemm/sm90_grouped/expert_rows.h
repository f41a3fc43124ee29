// Where an expert's rows end within a tile: other experts' rows follow, which must not count.
#pragma once

// A warpgroup's rows all belong to others: it takes part without any products.
DG_DEVICE void pass_by(const Shared& s, Place& at, int steps, int rank) {
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
        barrier_wait(s.full + at.stage * 8, at.phase);
        release(s.empty + at.stage * 8, rank);
        at.advance();
    }
}

#if GRADIENT
// Lines of a tile of COLUMNS, LINE bytes wide, after those that count.
template <int COLUMNS, int LINE>
DG_DEVICE void clear_lines(u32 tile, int count) {
    constexpr int CHUNKS_OF = LINE / 16, ALL = (COLUMNS * 2 + LINE - 1) / LINE * CHUNKS_OF * 64;
#pragma unroll 1
    for (int i = threadIdx.x % 128; i < ALL; i += 128)
        if (i / CHUNKS_OF % 64 >= count) store_shared(tile + i * 16, uint4{0, 0, 0, 0});
}

// The last step of sums over an expert's rows: others' are cleared, in A as in B, since anything may be there. Every
// warpgroup clears what it reads: none waits for another.
DG_DEVICE void clear_rest(const Shared& s, const Place& at, const Piece& w, int step, int team) {
    int left = w.depth - step * BK;
    if (left >= BK) return;
    barrier_wait(s.full + at.stage * 8, at.phase);
    u32 tile = s.stages + at.stage * STAGE_BYTES;
#pragma unroll 1
    for (int j = 0; j < ATOMS; ++j) {
        int count = max(0, left - j * 64);
        clear_lines<TILE_M, 128>(tile + j * A_BYTES + team * (TILE_M * 128), count);
        clear_lines<BN, B_LINE>(tile + ATOMS * A_BYTES + j * B_BYTES, count);
    }
    writes_ready();
    meet(1 + threadIdx.x / 128, 128);
}
#else
DG_DEVICE void clear_rest(const Shared&, const Place&, const Piece&, int, int) {}
#endif
