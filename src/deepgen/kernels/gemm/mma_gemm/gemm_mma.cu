// C = activation(alpha * op(A) op(B) * scale + beta * C + bias) on tensor cores by warp-wide products; batched, any
// sizes, all layouts, sm_80 and later. The knobs are macros; `mma_gemm.py` gives them all.
//
// The ladder, from the ground up:
//   1. products of 16 x 8 x 32 bytes by a warp (mma.sync); a warp holds WM x WN sums                      WM, WN
//   2. tiles of BM x BN x BK in shared memory, read as matrices (ldmatrix), turned on the way for 16 bits  BM, BN, BK
//   3. chunks exchanged by XOR: no two rows that are read together share banks                             always
//   4. copies run STAGES - 1 tiles ahead (cp.async)                                                        STAGES
//   5. fragments of the next 32 bytes of K are loaded during the products of these                         FRAGMENTS
//   6. columns interleaved over 1, 2 or 4 products: a thread stores 2, 4 or 8 neighbours at once            WIDE
//   7. warps of a block share out the steps of K, and add up through shared memory                         WARPS_K
//   8. blocks share out K: evenly (a second step, or whoever comes last, adds up), or as one stream         FIXUP
//   9. blocks run in groups that share columns of B in L2                                                  MAPPING
// docs/kernels/mma_gemm.md has what they gained.
#include "problem.h"

constexpr int WARPS_M = BM / WM, WARPS_N = BN / WN;
constexpr int THREADS_K = WARPS_M * WARPS_N * 32;  // threads that share the steps of K
constexpr int THREADS = THREADS_K * WARPS_K;
constexpr int TILES_M = WM / 16, TILES_N = WN / 8;  // products of a warp
constexpr int STEPS = BK * (int)sizeof(TYPE_A) / 32;
static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 16 == 0, "warps' tiles cover the block's");
static_assert(STEPS % (WARPS_K * FRAGMENTS) == 0, "a tile has as many steps of K for each warp, and sets of fragments");

#include "operands.h"

typedef Operand<TYPE_A, BM, !A_T, true, 1, COPY_A, EDGE_M> OperandA;
typedef Operand<TYPE_B, BN, B_T, false, WIDE, COPY_B, EDGE_N> OperandB;
typedef TYPE_ACC Sums[TILES_M][TILES_N][4];

#include "work.h"

struct Fragments {
    typename OperandA::template Fragment<WM> a;
    typename OperandB::template Fragment<WN> b;

    DG_DEVICE void load(u32 stage, int m, int n, int step) {
        a.load(stage, m, step);
        b.load(stage + OperandA::BYTES, n, step);
    }
};

DG_DEVICE void multiply(Sums& sums, const Fragments& f) {
    DG_UNROLL for (int i = 0; i < TILES_M; ++i) {
        const u32 a[4] = {f.a.word[2 * i][0], f.a.word[2 * i + 1][0], f.a.word[2 * i][1], f.a.word[2 * i + 1][1]};
        DG_UNROLL for (int j = 0; j < TILES_N; ++j) {
            int turned = i % 2 ? TILES_N - 1 - j : j;  // to and fro: each product shares an operand with the last one
            product(sums[i][turned], a, f.b.word[turned]);
        }
    }
}

// Where a warp stands.
struct Place {
    int m, n, group;  // its first row and column in the block's tile; which share of the steps
    DG_DEVICE Place() {
        int warp = thread_id() / 32;
        group = warp / (WARPS_M * WARPS_N);
        warp %= WARPS_M * WARPS_N;
        m = warp % WARPS_M * WM;
        n = warp / WARPS_M * WN;
    }
};

DG_DEVICE Vec<TYPE_ACC, 4> as_one(const TYPE_ACC (&x)[4]) { return {{x[0], x[1], x[2], x[3]}}; }

// All steps of one piece of work, into `sums`.
DG_DEVICE void accumulate(Sums& sums, const Problem& p, const Work& w, const Place& at) {
    DG_UNROLL for (int i = 0; i < TILES_M; ++i)
        DG_UNROLL for (int j = 0; j < TILES_N; ++j)
            DG_UNROLL for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;

    typename OperandA::Loader load_a(p.a + w.batch * p.stride_a, p.lda, p.m, p.k, w.m, w.k);
    typename OperandB::Loader load_b(p.b + w.batch * p.stride_b, p.ldb, p.n, p.k, w.n, w.k);
    constexpr u32 STAGE = OperandA::BYTES + OperandB::BYTES;
    const u32 first = shared_begin(), end = first + STAGE * STAGES;
    u32 fill = first, stage = first;
    int asked = 0;
    auto ask = [&]() {  // for the next tiles
        if (asked < w.steps) {
            load_a.copy(fill);
            load_b.copy(fill + OperandA::BYTES);
        }
        ++asked;
        copy_commit();
        fill = fill + STAGE == end ? first : fill + STAGE;
    };
    auto next = [&]() {  // tiles are there for all, and those before the last may be overwritten
        copy_wait<STAGES - 2>();
        barrier();
    };
    DG_NO_UNROLL for (int s = 0; s < STAGES - 1; ++s) ask();  // compilers take long for copies of its text
    constexpr int OWN = STEPS / WARPS_K;  // steps of a tile that are this warp's
    Fragments f[FRAGMENTS];
#if FRAGMENTS == 2
    next();
    f[0].load(stage, at.m, at.n, at.group);
    DG_NO_UNROLL for (int tile = 0; tile < w.steps; ++tile) {
        ask();
        DG_UNROLL for (int s = 0; s < OWN; ++s) {
            if (s == OWN - 1) {
                next();
                stage = stage + STAGE == end ? first : stage + STAGE;
                f[(s + 1) % 2].load(stage, at.m, at.n, at.group);
            } else f[(s + 1) % 2].load(stage, at.m, at.n, (s + 1) * WARPS_K + at.group);
            multiply(sums, f[s % 2]);
        }
    }
#else
    DG_NO_UNROLL for (int tile = 0; tile < w.steps; ++tile) {
        next();
        ask();
        DG_UNROLL for (int s = 0; s < OWN; ++s) {
            f[0].load(stage, at.m, at.n, s * WARPS_K + at.group);
            multiply(sums, f[0]);
        }
        stage = stage + STAGE == end ? first : stage + STAGE;
    }
#endif
    copy_wait<0>();
#if WARPS_K > 1
    // The first group adds up what the others have: sums lie in its threads as in theirs.
    u32 own = first + thread_id() % THREADS_K * 16;
    DG_NO_UNROLL for (int other = 1; other < WARPS_K; ++other) {
        barrier();
        if (at.group == other)
            DG_UNROLL for (int i = 0; i < TILES_M * TILES_N; ++i)
                store_shared(own + i * THREADS_K * 16, as_one(sums[i / TILES_N][i % TILES_N]));
        barrier();
        if (at.group == 0)
            DG_UNROLL for (int i = 0; i < TILES_M * TILES_N; ++i) {
                Vec<TYPE_ACC, 4> more = load_shared<Vec<TYPE_ACC, 4>>(own + i * THREADS_K * 16);
                DG_UNROLL for (int e = 0; e < 4; ++e) sums[i / TILES_N][i % TILES_N][e] += more.v[e];
            }
    }
#endif
}

constexpr int PART = STORE < 4 ? STORE : 4;  // neighbours of a store of sums

// Neighbours of a row.
template <int COUNT>
DG_DEVICE void store_run(const Problem& p, const Work& w, int row, int column, const TYPE_ACC* sums) {
#if FIXUP == 1
    if (EDGE_M && row >= p.m) return;
    i64 line = ((i64)w.part * p.batch + w.batch) * p.m + row;
    DG_UNROLL for (int e = 0; e < COUNT; e += PART)
        if (!EDGE_N || column + e < p.n) {
            Vec<TYPE_ACC, PART> out;
            DG_UNROLL for (int i = 0; i < PART; ++i) out.v[i] = sums[e + i];
            store_global(p.partial + line * p.n + column + e, out);
        }
#else
    finish_run<COUNT>(p, w.batch, row, column, sums);
#endif
}

// A warp's sums to C, or to where the next step adds them up.
DG_DEVICE void store(const Problem& p, const Work& w, const Place& at, const Sums& sums) {
    if (at.group != 0) return;
    constexpr int BLOCKS = OperandB::SPREAD ? 4 : WIDE;  // that make a run
    int g = thread_id() % 32 / 4, t = thread_id() % 4;
    DG_UNROLL for (int i = 0; i < TILES_M * 2; ++i)
        DG_UNROLL for (int j = 0; j < TILES_N; j += BLOCKS) {
            TYPE_ACC run[BLOCKS * 2];
            DG_UNROLL for (int b = 0; b < BLOCKS; ++b)
                DG_UNROLL for (int e = 0; e < 2; ++e)
                    run[OperandB::SPREAD ? e * 4 + b : b * 2 + e] = sums[i / 2][j + b][i % 2 * 2 + e];
            store_run<BLOCKS * 2>(p, w, w.m + at.m + OperandA::row(i, g), w.n + at.n + OperandB::row(j, 2 * t), run);
        }
}

#include "share.h"
