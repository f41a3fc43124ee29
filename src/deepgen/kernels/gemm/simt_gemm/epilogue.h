// From a thread's sums to memory.
#pragma once

constexpr int WIDEST = 16 / sizeof(TYPE_ACC);  // sums of one load or store
// Sums of one store: neighbours of a row of C, or of a tile's part that its last block adds up.
constexpr int OUT = FIXUP != 2 ? STORE : STAGE_ROWS || THREAD_SCATTER_B > WIDEST ? WIDEST : THREAD_SCATTER_B;

// Whether this tile stores what is there.
DG_DEVICE bool own(const Problem& p, const Work& w, int row, int column) {
    if ((EDGE_M == 1 && row >= p.m) || (EDGE_N == 1 && column >= p.n)) return false;
    return !((EDGE_M == 2 && row < w.m) || (EDGE_N == 2 && column < w.n));
}

// OUT neighbours of a row of C, or of the sums that another block or the next step adds up. From the tile's beginning.
DG_DEVICE void store_run(const Problem& p, const Work& w, int row, int column, const TYPE_ACC* sums) {
    int m = first_row(p, w) + row, n = first_column(p, w) + column;
#if FIXUP == 2
    if ((EDGE_M == 1 && m >= p.m) || (EDGE_N == 1 && n >= p.n)) return;
    TYPE_ACC* to = p.partial + ((i64)w.tile * p.splits + w.part) * (BM * BN) + row * BN + column;
#else
    if (!own(p, w, m, n)) return;
#endif
#if FIXUP == 1
    TYPE_ACC* to = p.partial + (((i64)w.part * p.batch + w.batch) * p.m + m) * p.n + n;
#endif
#if FIXUP == 1 || FIXUP == 2
    Vec<TYPE_ACC, OUT> out;
    DG_UNROLL for (int e = 0; e < OUT; ++e) out.v[e] = sums[e];
    store_global(to, out);
#else
    finish_at<STORE>(p, w.batch, m, n, sums);
#endif
}

#if SPLIT_U > 1 || STAGE_ROWS
// Through shared memory: the sums of all groups are added, and every thread stores its share in long runs.
constexpr int C_ROWS = WARPS_M * LANES_M * STAGE_ROWS, C_PITCH = BN + PAD_C;
constexpr u32 C_BYTES = C_ROWS * C_PITCH * sizeof(TYPE_ACC);

DG_DEVICE void store(const Problem& p, const Work& w, const Lane& lane, Sums& sums) {
    static_assert(TM % STAGE_ROWS == 0, "passes divide the thread's rows");
    constexpr int RUN = THREAD_SCATTER_B;
    const u32 first = shared_begin();
    constexpr int ALL = C_ROWS * BN / OUT, EACH = (ALL + THREADS - 1) / THREADS;
    constexpr int AT_ONCE = EACH % 4 == 0 ? 4 : EACH % 2 == 0 ? 2 : 1;  // no load waits for the store before it
    DG_UNROLL for (int pass = 0; pass < TM; pass += STAGE_ROWS) {
        barrier();
        DG_UNROLL for (int i = 0; i < STAGE_ROWS; ++i)
            DG_UNROLL for (int j = 0; j < TN; j += RUN) {
                Vec<TYPE_ACC, RUN> run;
                DG_UNROLL for (int e = 0; e < RUN; ++e) run.v[e] = sums[pass + i][j + e];
                int row = (lane.warp_m * LANES_M + lane.lane_m) * STAGE_ROWS + i;
                int column = ScatterB::first(lane.warp_n, lane.lane_n) + ScatterB::row(j);
                store_shared(first + lane.group * C_BYTES + (row * C_PITCH + column) * sizeof(TYPE_ACC), run);
            }
        barrier();
        DG_NO_UNROLL for (int i = 0; i < EACH; i += AT_ONCE) {
            TYPE_ACC total[AT_ONCE][OUT] = {};
            auto place = [&](int r) { return REDUCE_CONTINUOUS ? thread_id() + (i + r) * THREADS : thread_id() * EACH + i + r; };
            DG_UNROLL for (int r = 0; r < AT_ONCE; ++r) {
                int at = place(r), line = at / (BN / OUT), column = at % (BN / OUT) * OUT;
                if (ALL % THREADS != 0 && at >= ALL) continue;
                DG_UNROLL for (int u = 0; u < SPLIT_U; ++u) {
                    u32 from = first + u * C_BYTES + (line * C_PITCH + column) * sizeof(TYPE_ACC);
                    Vec<TYPE_ACC, OUT> part = load_shared<Vec<TYPE_ACC, OUT>>(from);
                    DG_UNROLL for (int e = 0; e < OUT; ++e) total[r][e] += part.v[e];
                }
            }
            DG_UNROLL for (int r = 0; r < AT_ONCE; ++r) {
                int at = place(r), line = at / (BN / OUT), column = at % (BN / OUT) * OUT, owner = line / STAGE_ROWS;
                if (ALL % THREADS != 0 && at >= ALL) continue;
                int row = ScatterA::first(owner / LANES_M, owner % LANES_M) + ScatterA::row(pass + line % STAGE_ROWS);
                store_run(p, w, row, column, total[r]);
            }
        }
    }
}
#else
DG_DEVICE void store(const Problem& p, const Work& w, const Lane& lane, Sums& sums) {
    static_assert(THREAD_SCATTER_B % OUT == 0, "a store takes neighbours of one thread");
    int row = ScatterA::first(lane.warp_m, lane.lane_m), column = ScatterB::first(lane.warp_n, lane.lane_n);
    DG_UNROLL for (int i = 0; i < TM; ++i)
        DG_UNROLL for (int j = 0; j < TN; j += OUT)
            store_run(p, w, row + ScatterA::row(i), column + ScatterB::row(j), &sums[i][j]);
}
#endif

#if FIXUP == 2
// All parts of a tile, in their order: many loads are under way at once, since nothing else hides how long they take.
DG_DEVICE void add_parts(const Problem& p, const Work& w) {
    constexpr int LINE = BN / WIDEST, ALL = BM * LINE, EACH = (ALL + THREADS - 1) / THREADS;
    constexpr int RUNS = EACH % 4 == 0 ? 4 : EACH % 2 == 0 ? 2 : 1;
    constexpr int AHEAD = (THREADS * MIN_BLOCKS > 512 ? 8 : 16) / RUNS;  // as registers allow
    const TYPE_ACC* slots = p.partial + (i64)w.tile * p.splits * (BM * BN);
    DG_NO_UNROLL for (int i = 0; i < EACH; i += RUNS) {
        TYPE_ACC total[RUNS][WIDEST] = {};
        DG_NO_UNROLL for (int s = 0; s < p.splits; s += AHEAD) {
            Vec<TYPE_ACC, WIDEST> part[AHEAD][RUNS] = {};
            DG_UNROLL for (int a = 0; a < AHEAD; ++a)
                DG_UNROLL for (int r = 0; r < RUNS; ++r) {
                    int at = thread_id() + (i + r) * THREADS, row = at / LINE, column = at % LINE * WIDEST;
                    bool inside = (EDGE_M != 1 || w.m + row < p.m) && (EDGE_N != 1 || w.n + column < p.n);
                    if ((ALL % THREADS == 0 || at < ALL) && inside && s + a < p.splits)
                        part[a][r] = load_fresh<Vec<TYPE_ACC, WIDEST>>(slots + (i64)(s + a) * (BM * BN) + at * WIDEST);
                }
            DG_UNROLL for (int a = 0; a < AHEAD; ++a)
                DG_UNROLL for (int r = 0; r < RUNS; ++r)
                    DG_UNROLL for (int e = 0; e < WIDEST; ++e) total[r][e] += part[a][r].v[e];
        }
        DG_UNROLL for (int r = 0; r < RUNS; ++r) {
            int at = thread_id() + (i + r) * THREADS;
            if (ALL % THREADS != 0 && at >= ALL) continue;
            int row = first_row(p, w) + at / LINE, column = first_column(p, w) + at % LINE * WIDEST;
            TYPE_C* to = p.c + w.batch * p.stride_c + row * (i64)p.ldc + column;
            DG_UNROLL for (int e = 0; e < WIDEST; e += STORE)
                if (own(p, w, row, column + e)) finish<STORE>(p, to + e, &total[r][e]);
        }
    }
}
#endif
