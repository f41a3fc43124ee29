// C = alpha * op(A) op(B) + beta * C on plain arithmetic units, batched, any sizes: CUDA, HIP and CPU emulation.
//
// A block computes BM x BN of C. It moves BK steps of K at a time through STAGES buffers of shared memory; each of its
// threads holds TM x TN sums in registers. operands.h says what A, B and C are, and entry.h how the kernel is called.
// The knobs are macros; `lower.py` gives them all.
#include "dialect.h"
#include "tiles.h"
#include "operands.h"
#include "work.h"

// Where a block's tile begins. One that would end outside of a matrix that is large enough (EDGE 2) is moved back: loads
// need no guards, and what the tile before has too is not stored.
DG_DEVICE int first_row(const Problem& p, const Work& w) { return EDGE_M == 2 && w.m > p.m - BM ? p.m - BM : w.m; }
DG_DEVICE int first_column(const Problem& p, const Work& w) { return EDGE_N == 2 && w.n > p.n - BN ? p.n - BN : w.n; }

// The fragments of A and B that BK_GROUP steps of K need.
struct Fragments {
    TileA::Fragment a;
    TileB::Fragment b;
};

// Where a thread's fragments begin in a stage.
struct Bases {
    u32 a, b;
    DG_DEVICE Bases(const Lane& l)
        : a(TileA::base(l.warp_m, l.lane_m, l.group)), b(TileA::BYTES + TileB::base(l.warp_n, l.lane_n, l.group)) {}
};

DG_DEVICE void load_fragments(Fragments& f, const Bases& bases, u32 stage, int group) {
    f.a.load(stage + bases.a, group * SPLIT_U);
    f.b.load(stage + bases.b, group * SPLIT_U);
}

constexpr int MIDDLE = UNROLL < GROUPS ? GROUPS / UNROLL / 2 * UNROLL : GROUPS / 2;  // among the groups of a step

typedef TYPE_ACC Sums[TM][TN];

DG_DEVICE void multiply(Sums& sums, const Fragments& f) {
#if DOT > 1
    DG_UNROLL for (int k = 0; k < GROUP_K; k += DOT)
        DG_UNROLL for (int i = 0; i < TM; ++i)
            DG_UNROLL for (int j = 0; j < TN; ++j) sums[i][j] = dot(f.a.pack(k, i), f.b.pack(k, j), sums[i][j]);
#else
    // To and fro along the shorter side: each multiply-add then shares an operand with the one before it, which the
    // chip keeps at hand. Three operands from the register file take a cycle more than two.
    constexpr bool ALONG_N = TN < TM;
    constexpr int LONG = ALONG_N ? TM : TN, SHORT = ALONG_N ? TN : TM;
    DG_UNROLL for (int outer = 0; outer < LONG; ++outer)
        DG_UNROLL for (int k = 0; k < GROUP_K; ++k)
            DG_UNROLL for (int along = 0; along < SHORT; ++along) {
                int turned = (outer * GROUP_K + k) % 2 ? SHORT - 1 - along : along;
                int i = ALONG_N ? outer : turned, j = ALONG_N ? turned : outer;
                sums[i][j] = multiply_add(f.a.at(k, i), f.b.at(k, j), sums[i][j]);
            }
#endif
}

// All steps of one piece of work, into `sums`.
#if BANDED
DG_DEVICE void accumulate(Sums& sums, const Problem& p, const Work& whole, const Lane& lane) {
    const Work w = of_band(p, whole, first_row(p, whole), first_column(p, whole));
#else
DG_DEVICE void accumulate(Sums& sums, const Problem& p, const Work& w, const Lane& lane) {
#endif
    DG_UNROLL for (int i = 0; i < TM; ++i)
        DG_UNROLL for (int j = 0; j < TN; ++j) sums[i][j] = 0;
#if BANDED
    if (w.steps == 0) return;
#endif

    TileA::Loader load_a = loader_a(p, w.batch, first_row(p, w), w.k);
    TileB::Loader load_b = loader_b(p, w.batch, first_column(p, w), w.k);
    constexpr u32 STAGE = TileA::BYTES + TileB::BYTES;
    const u32 first = shared_begin(), end = first + STAGE * STAGES;

#if ASYNC
    // Copies run STAGES - 1 steps ahead of the arithmetic.
    u32 fill = first, stage = first;
    DG_NO_UNROLL for (int s = 0; s < STAGES - 1; ++s) {
        if (s < w.steps) {
            load_a.copy(fill);
            load_b.copy(fill + TileA::BYTES);
        }
        copy_commit();
        fill += STAGE;
    }
    copy_wait<STAGES - 2>();
    barrier();
#else
    u32 stage = first;
    if (w.steps > 0) {
        load_a.fetch();
        load_b.fetch();
        load_a.put(first);
        load_b.put(first + TileA::BYTES);
    }
    if (w.steps > 1) {
        load_a.fetch();
        load_b.fetch();
    }
    barrier();
#endif

    Fragments f[1 + PREFETCH];
    Bases bases(lane);
    if (PREFETCH) load_fragments(f[0], bases, first, 0);
    for (int step = 0; step < w.steps; ++step) {
        u32 here = stage;
        if (STAGES > 1) stage = stage + STAGE == end ? first : stage + STAGE;
#if ASYNC
        if (step + STAGES - 1 < w.steps) {
            load_a.copy(fill);
            load_b.copy(fill + TileA::BYTES);
        }
        copy_commit();
        fill = fill + STAGE == end ? first : fill + STAGE;
#else
        // What was loaded during the last step goes to the next stage, and the loads of the one after that begin: a
        // whole step of arithmetic hides them. The compiler moves them down, but not past a barrier.
        auto pass_on = [&]() {
            load_a.put(stage);  // the last time in vain: a branch here would cut the compiler's schedule in two
            load_b.put(stage + TileA::BYTES);
            if (step + 2 < w.steps) {
                load_a.fetch();
                load_b.fetch();
            }
        };
#endif
        auto turn = [&]() {  // the next step's tiles are there for all, and this one's may be overwritten
#if ASYNC
            copy_wait<STAGES - 2>();
#else
            if (STAGES == 1) {
                barrier();
                pass_on();
            }
#endif
            barrier();
        };
        DG_NO_UNROLL for (int outer = 0; outer < GROUPS; outer += UNROLL) {
            DG_UNROLL for (int inner = 0; inner < UNROLL; ++inner) {
                bool last = inner == UNROLL - 1 && outer == GROUPS - UNROLL;
#if !ASYNC
                // In the middle: the stores to shared memory neither delay the barrier nor are delayed by it.
                if (STAGES > 1 && inner == MIDDLE % UNROLL && outer + inner == MIDDLE) pass_on();
#endif
                if (!PREFETCH) load_fragments(f[0], bases, here, outer + inner);
                else if (!last) load_fragments(f[(inner + 1) % 2], bases, here, outer + inner + 1);
                else if (STAGES > 1) {
                    turn();
                    load_fragments(f[(inner + 1) % 2], bases, stage, 0);
                }
                multiply(sums, f[PREFETCH ? inner % 2 : 0]);
            }
        }
        if (!PREFETCH || STAGES == 1) turn();
        if (PREFETCH && STAGES == 1) load_fragments(f[0], bases, first, 0);
    }
#if ASYNC
    copy_wait<0>();
#endif
}

#include "epilogue.h"
#include "schedule.h"
#include "entry.h"
