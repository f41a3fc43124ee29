// From a thread's sums to memory.
#pragma once

// alpha * sums + beta * C, for COUNT neighbours of a row.
template <int COUNT>
DG_DEVICE void finish(const Problem& p, TYPE_C* to, const TYPE_ACC* sums) {
    TYPE_SCALE scaled[COUNT];
    DG_UNROLL for (int e = 0; e < COUNT; ++e) scaled[e] = p.alpha * (TYPE_SCALE)sums[e];
#if BETA
    if (p.beta != 0) {
        Vec<TYPE_C, COUNT> old = load_fresh<Vec<TYPE_C, COUNT>>(to);
        DG_UNROLL for (int e = 0; e < COUNT; ++e) {
            TYPE_ACC wide;
            widen(old.v[e], wide);
            scaled[e] += p.beta * (TYPE_SCALE)wide;
        }
    }
#endif
    Vec<TYPE_C, COUNT> out;
    DG_UNROLL for (int e = 0; e < COUNT; ++e) narrow((TYPE_ACC)scaled[e], out.v[e]);
    store_global(to, out);
}

// STORE neighbours of a row of C, or of the sums that the next step adds up.
DG_DEVICE void store_run(const Problem& p, const Work& w, int row, int column, const TYPE_ACC* sums) {
    if ((EDGE_M && row >= p.m) || (EDGE_N && column >= p.n)) return;
#if FIXUP == 1
    Vec<TYPE_ACC, STORE> out;
    DG_UNROLL for (int e = 0; e < STORE; ++e) out.v[e] = sums[e];
    i64 matrix = (i64)w.part * p.batch + w.batch;
    store_global(p.partial + (matrix * p.m + row) * p.n + column, out);
#else
    finish<STORE>(p, p.c + w.batch * p.stride_c + row * (i64)p.ldc + column, sums);
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
    constexpr int ALL = C_ROWS * BN / STORE, EACH = (ALL + THREADS - 1) / THREADS;
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
        DG_NO_UNROLL for (int i = 0; i < EACH; ++i) {
            int at = REDUCE_CONTINUOUS ? thread_id() + i * THREADS : thread_id() * EACH + i;
            if (ALL % THREADS != 0 && at >= ALL) continue;
            int line = at / (BN / STORE), column = at % (BN / STORE) * STORE;
            TYPE_ACC total[STORE] = {};
            DG_UNROLL for (int u = 0; u < SPLIT_U; ++u) {
                u32 from = first + u * C_BYTES + (line * C_PITCH + column) * sizeof(TYPE_ACC);
                Vec<TYPE_ACC, STORE> part = load_shared<Vec<TYPE_ACC, STORE>>(from);
                DG_UNROLL for (int e = 0; e < STORE; ++e) total[e] += part.v[e];
            }
            int owner = line / STAGE_ROWS;
            int row = ScatterA::first(owner / LANES_M, owner % LANES_M) + ScatterA::row(pass + line % STAGE_ROWS);
            store_run(p, w, w.m + row, w.n + column, total);
        }
    }
}
#else
DG_DEVICE void store(const Problem& p, const Work& w, const Lane& lane, Sums& sums) {
    static_assert(THREAD_SCATTER_B % STORE == 0, "a store takes neighbours of one thread");
    int row = w.m + ScatterA::first(lane.warp_m, lane.lane_m), column = w.n + ScatterB::first(lane.warp_n, lane.lane_n);
    DG_UNROLL for (int i = 0; i < TM; ++i)
        DG_UNROLL for (int j = 0; j < TN; j += STORE)
            store_run(p, w, row + ScatterA::row(i), column + ScatterB::row(j), &sums[i][j]);
}
#endif
