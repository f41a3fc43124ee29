// A block's sums on their way to other blocks.
#pragma once

// A block at work, as `work.h` asks for it.
struct Block {
    const Problem& p;
    const Lane& lane;
    Sums& sums;
#if FIXUP == 2
    // Sums lie in a slot as they lie in the tile, those of all groups added up: no thread needs its own to go on.
    static constexpr int SLOT = BM * BN;
    Work here;

    DG_DEVICE void accumulate(const Work& w) {
        here = w;
        ::accumulate(sums, p, w, lane);
    }
    DG_DEVICE void leave(TYPE_ACC*) const { ::store(p, here, lane, sums); }
    DG_DEVICE void add_up(const TYPE_ACC*, int) const { add_parts(p, here); }
    DG_DEVICE void store(const Work&) const {}
#else
    // Sums lie in a slot as they lie in threads: no index but the thread's own is needed to add them up.
    static constexpr int SLOT = THREADS * TM * TN, RUN = TN % WIDEST == 0 ? WIDEST : TN % 2 == 0 ? 2 : 1;

    DG_DEVICE void accumulate(const Work& w) { ::accumulate(sums, p, w, lane); }
    DG_DEVICE void store(const Work& w) { ::store(p, w, lane, sums); }
    DG_DEVICE void leave(TYPE_ACC* slot) const {
        DG_UNROLL for (int i = 0; i < TM; ++i)
            DG_UNROLL for (int j = 0; j < TN; j += RUN) {
                Vec<TYPE_ACC, RUN> run;
                DG_UNROLL for (int e = 0; e < RUN; ++e) run.v[e] = sums[i][j + e];
                store_global(slot + ((i * TN + j) / RUN * THREADS + thread_id()) * RUN, run);
            }
    }
    DG_DEVICE void add(const TYPE_ACC* slot) {
        DG_UNROLL for (int i = 0; i < TM; ++i)
            DG_UNROLL for (int j = 0; j < TN; j += RUN) {
                Vec<TYPE_ACC, RUN> run =
                    load_fresh<Vec<TYPE_ACC, RUN>>(slot + ((i * TN + j) / RUN * THREADS + thread_id()) * RUN);
                DG_UNROLL for (int e = 0; e < RUN; ++e) sums[i][j + e] += run.v[e];
            }
    }
#endif
};
