// Producers that load lines themselves, instead of the copy engine.
#pragma once
#include "lines.h"

// All producers load lines of a stage, and then write those of the stage before. One of them asks the copy engine for the
// operand that it can take.
struct Loaders {
    const Problem& p;
    const Shared& s;
    const TensorMap *a, *b;
    u64 use_a, use_b;
    Place at;
    Piece w;
#if A_BY_LANES
    Lines<BM, A_K_MAJOR> lines_a;
#endif
#if B_BY_LANES
    Lines<B_ROWS, B_K_MAJOR> lines_b;
#endif
    struct Held {
#if A_BY_LANES
        Chunks<Lines<BM, A_K_MAJOR>::COUNT> a[ATOMS];
#endif
#if B_BY_LANES
        Chunks<Lines<B_ROWS, B_K_MAJOR>::COUNT> b[ATOMS];
#endif
    };

    DG_DEVICE void load(Held& held, int step) {
        int k = (w.first + step) * BK;
#pragma unroll
        for (int j = 0; j < ATOMS; ++j) {
#if A_BY_LANES
            lines_a.load(held.a[j], k + j * (BK / ATOMS));
#endif
#if B_BY_LANES
            lines_b.load(held.b[j], k + j * (BK / ATOMS));
#endif
        }
    }
    DG_DEVICE void store(const Held& held, int step) {
        u32 full = s.full + at.stage * 8, tile = s.stages + at.stage * STAGE_BYTES;
        barrier_wait(s.empty + at.stage * 8, at.phase ^ 1);
        if (FILLERS > PRODUCERS / 32 && threadIdx.x == CONSUMERS * 128) barrier_expect(full, FETCHED_BYTES);
#pragma unroll
        for (int j = 0; j < ATOMS; ++j) {
            int k = (w.first + step) * BK + j * (BK / ATOMS);
            u32 of_a = tile + j * A_BYTES, of_b = tile + ATOMS * A_BYTES + j * B_BYTES;
#if A_BY_LANES
            lines_a.store(held.a[j], k, of_a);
#else
            if (threadIdx.x == CONSUMERS * 128)
                get_tile<A_ROWS, 1, A_K_MAJOR, 128, CACHE_A>(
                    of_a, a, full, w.m, k, SHARED_A ? 0 : w.batch, 0, 0, use_a);
#endif
#if B_BY_LANES
            lines_b.store(held.b[j], k, of_b);
#else
            if (threadIdx.x == CONSUMERS * 128)
                get_tile<B_ROWS, 1, B_K_MAJOR, B_LINE, CACHE_B>(of_b, b, full, w.n, k, w.batch, 0, 0, use_b);
#endif
        }
        writes_ready();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(full);
        at.advance();
    }
    DG_DEVICE void run(int rank) {
        Schedule schedule(p, rank, 0, 1);
        if (REALIGN) wait_for_launch_before();
        while (schedule.next(p, w)) {
#if A_BY_LANES
            lines_a.at_tile(w.m, w.batch);
#endif
#if B_BY_LANES
            lines_b.at_tile(w.n, w.batch);
#endif
            Held even, odd;
            load(even, 0);
#pragma unroll 1
            for (int i = 0; i < w.steps; i += 2) {
                if (i + 1 < w.steps) load(odd, i + 1);
                store(even, i);
                if (i + 2 < w.steps) load(even, i + 2);
                if (i + 1 < w.steps) store(odd, i + 1);
            }
        }
    }
};
