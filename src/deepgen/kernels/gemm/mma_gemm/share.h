// A block's sums on their way to other blocks, and the kernels.
#pragma once

// A block at work, as `work.h` asks for it. Of warps that share K the first has all sums in the end.
struct Block {
    // Sums lie in a slot as they lie in threads: no index but the thread's own is needed to add them up.
    static constexpr i64 SLOT = (i64)THREADS_K * TILES_M * TILES_N * 4;
    const Problem& p;
    const Place& at;
    Sums& sums;

    DG_DEVICE void accumulate(const Work& w) { ::accumulate(sums, p, w, at); }
    DG_DEVICE void store(const Work& w) { ::store(p, w, at, sums); }
    DG_DEVICE void leave(TYPE_ACC* slot) const {
        if (at.group != 0) return;
        DG_UNROLL for (int i = 0; i < TILES_M * TILES_N; ++i)
            store_global(slot + (i * THREADS_K + thread_id()) * 4, as_one(sums[i / TILES_N][i % TILES_N]));
    }
    DG_DEVICE void add(const TYPE_ACC* slot) {
        if (at.group != 0) return;
        DG_UNROLL for (int i = 0; i < TILES_M * TILES_N; ++i) {
            Vec<TYPE_ACC, 4> more = load_fresh<Vec<TYPE_ACC, 4>>(slot + (i * THREADS_K + thread_id()) * 4);
            DG_UNROLL for (int e = 0; e < 4; ++e) sums[i / TILES_N][i % TILES_N][e] += more.v[e];
        }
    }
    DG_DEVICE void add_up(const TYPE_ACC* slots, int count) {
        DG_UNROLL for (int i = 0; i < TILES_M; ++i)
            DG_UNROLL for (int j = 0; j < TILES_N; ++j)
                DG_UNROLL for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;
        DG_NO_UNROLL for (int s = 0; s < count; ++s) add(slots + s * SLOT);
    }
};

DG_KERNEL(THREADS, MIN_BLOCKS)
gemm(DG_PROBLEM) {
    Problem p = DG_GIVEN;
    Place at;
    Sums sums;
    Block block = {p, at, sums};
    do_share(p, block);
    block_ends();
}

#if FIXUP == 1
// The second step: adds up the parts of K.
DG_KERNEL(256, 1)
gemm_reduce(DG_PROBLEM) {
    Problem p = DG_GIVEN;
    int runs = n / PART;
    i64 now = (i64)block_id() * 256 + thread_id(), all = (i64)batch * m * runs;
    if (now >= all) return;
    TYPE_ACC total[PART] = {};
    for (int s = 0; s < splits; ++s) {
        Vec<TYPE_ACC, PART> more = load_fresh<Vec<TYPE_ACC, PART>>(partial + (s * all + now) * PART);
        DG_UNROLL for (int e = 0; e < PART; ++e) total[e] += more.v[e];
    }
    i64 line = now / runs;
    int matrix = (int)(line / m);
    finish<PART>(p, matrix, (int)(line - (i64)matrix * m), (int)(now - line * runs) * PART, total);
}
#endif
