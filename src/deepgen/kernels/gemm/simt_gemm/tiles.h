// How a tile of A or B lies in shared memory, how it comes there from global memory, and how a thread reads its part.
#pragma once

constexpr int WARP = LANES_M * LANES_N;
constexpr int THREADS_U = WARPS_M * WARPS_N * WARP;  // threads that share the steps of K
constexpr int THREADS = THREADS_U * SPLIT_U;
constexpr int GROUPS = BK / (GROUP_K * SPLIT_U);  // groups of steps that a thread does in a tile
// Fragments of the next group are loaded while this one is computed. Two sets alternate: their number must come out even.
constexpr bool PREFETCH = REG_PREFETCH && UNROLL % 2 == 0;
static_assert(GROUPS % UNROLL == 0, "the unrolled loop divides the groups");
static_assert(GROUPS * GROUP_K * SPLIT_U == BK, "the groups of steps divide BK");
static_assert(BM == WARPS_M * LANES_M * TM && BN == WARPS_N * LANES_N * TN, "the threads' tiles cover the block's");

// Where a thread stands.
struct Lane {
    int warp_m, warp_n, lane_m, lane_n, group;
    DG_DEVICE Lane() {
        int thread = thread_id(), warp = thread / WARP, lane = thread % WARP;
        group = warp / (WARPS_M * WARPS_N);
        warp %= WARPS_M * WARPS_N;
        warp_m = warp / WARPS_N;
        warp_n = warp % WARPS_N;
#if LANE_ORDER == 1
        // Pairs of rows alternate: neighbours share B and every second lane shares A, so that a half-warp's 16-byte
        // loads of either need one pass over the banks.
        lane_m = lane / (2 * LANES_N) * 2 + lane % 2;
        lane_n = lane % (2 * LANES_N) / 2;
#else
        lane_m = lane / LANES_N;
        lane_n = lane % LANES_N;
#endif
    }
};

// A thread owns T_ rows (of A, or columns of B): runs of TS neighbours. LANES lanes with their runs make a warp's
// repeat, WS / TS of these lie side by side, and WARPS warps make a block's repeat.
template <int LANES, int WARPS, int T_, int WS, int TS>
struct Scatter {
    static constexpr int REPEATS = WS / TS;
    static constexpr int PERIOD = TS == 1 ? 1 : LANES * TS;  // of the order of rows in shared memory
    static_assert(T_ % WS == 0 && WS % TS == 0, "scatter widths divide the thread's tile");
    // Of the i-th of a thread's rows, relative to `first`.
    static DG_DEVICE constexpr int row(int i) {
        return (i / WS * WARPS * REPEATS + i % WS / TS) * LANES * TS + i % TS;
    }
    static DG_DEVICE int first(int warp, int lane) { return (warp * REPEATS * LANES + lane) * TS; }
    // Tiles with K innermost keep rows in an order in which neighbouring lanes read neighbouring lines.
    static DG_DEVICE constexpr int line(int i) {
        return ((i / WS * WARPS * REPEATS + i % WS / TS) * TS + i % TS) * LANES;
    }
    static DG_DEVICE int first_line(int warp, int lane) { return warp * REPEATS * TS * LANES + lane; }
    static DG_DEVICE int row_of_line(int line) {
        if (TS == 1) return line;
        return (line / (LANES * TS) * LANES + line % LANES) * TS + line / LANES % TS;
    }
    static DG_DEVICE int line_of_row(int row) {
        if (TS == 1) return row;
        return (row / (LANES * TS) * TS + row % TS) * LANES + row / TS % LANES;
    }
};

// ROWS x BK of an operand whose memory is contiguous along K (ALONG_K) or along rows. INNER_K: shared memory holds
// a line of BK for each row; otherwise a line of ROWS for each step of K. LOAD: elements of one global load.
template <typename T, int ROWS, typename S, int T_, int TS, bool ALONG_K, bool INNER_K, int PAD, int LOAD, bool EDGE>
struct Tile {
    static constexpr int LINES = INNER_K ? ROWS : BK, PITCH = (INNER_K ? BK : ROWS) + PAD;
    static constexpr int SIZE = sizeof(T);
    static constexpr u32 BYTES = (LINES * PITCH * SIZE + 15) / 16 * 16;
    static constexpr bool SAME = ALONG_K == INNER_K;

    static DG_DEVICE u32 base(int warp, int lane, int group) {
        if (INNER_K) return (S::first_line(warp, lane) * PITCH + group * GROUP_K) * SIZE;
        return (group * GROUP_K * PITCH + S::first(warp, lane)) * SIZE;
    }

    struct Fragment {
        Vec<T, INNER_K ? GROUP_K : TS> v[INNER_K ? T_ : T_ / TS * GROUP_K];

        DG_DEVICE void load(u32 from, int group) {
            if constexpr (INNER_K) {
                DG_UNROLL for (int i = 0; i < T_; ++i)
                    v[i] = load_shared<Vec<T, GROUP_K>>(from + (S::line(i) * PITCH + group * GROUP_K) * SIZE);
            } else {
                DG_UNROLL for (int k = 0; k < GROUP_K; ++k)
                    DG_UNROLL for (int i = 0; i < T_ / TS; ++i)
                        v[k * (T_ / TS) + i] =
                            load_shared<Vec<T, TS>>(from + ((group * GROUP_K + k) * PITCH + S::row(i * TS)) * SIZE);
            }
        }
        DG_DEVICE TYPE_ACC at(int k, int i) const {
            TYPE_ACC wide;
            if constexpr (INNER_K) widen(v[i].v[k], wide);
            else widen(v[k * (T_ / TS) + i / TS].v[i % TS], wide);
            return wide;
        }
        DG_DEVICE Vec<T, DOT> pack(int k, int i) const {
            Vec<T, DOT> out;
            DG_UNROLL for (int e = 0; e < DOT; ++e) out.v[e] = v[i].v[k + e];
            return out;
        }
    };

    struct Loader {
        static constexpr int A_LINE = (ALONG_K ? BK : ROWS) / LOAD;  // loads
        static constexpr int ALL = ROWS * BK / LOAD, EACH = (ALL + THREADS - 1) / THREADS;
        static_assert((ALONG_K ? BK : ROWS) % LOAD == 0, "loads divide a line of the tile");
        // From load to load a thread goes down the same number of rows: then addresses are one sum each.
        static constexpr bool EVEN = LOAD_CONTINUOUS && THREADS % A_LINE == 0;
        static constexpr int STEP = THREADS / A_LINE;
        static constexpr bool LINEAR = EVEN && STEP % S::PERIOD == 0;
        static constexpr bool SIMPLE = EVEN && (LINEAR || !(ALONG_K && INNER_K));
        const char* from;  // the tile's first element, or this thread's (SIMPLE)
        u32 pitch;         // bytes from line to line
        int rows, steps;   // left from here on
        Vec<T, LOAD> held[ASYNC ? 1 : EACH];

        DG_DEVICE Loader(const T* all, int ld, int rows_, int steps_, int row, int step) {
            pitch = (u32)ld * SIZE;
            from = reinterpret_cast<const char*>(all + (ALONG_K ? row * (i64)ld + step : step * (i64)ld + row));
            rows = rows_ - row;
            steps = steps_ - step;
            if (SIMPLE) from += source_offset(0, pitch);
        }
        // The i-th load of this thread, as a place in the tile: a line, and the first element in it.
        static DG_DEVICE int load(int i) {
            return LOAD_CONTINUOUS ? thread_id() + i * THREADS : thread_id() * EACH + i;
        }
        static DG_DEVICE int line(int i) {
            if (EVEN) return thread_id() / A_LINE + i * STEP;
            return load(i) / A_LINE;
        }
        static DG_DEVICE int within(int i) {
            if (EVEN) return thread_id() % A_LINE * LOAD;
            return load(i) % A_LINE * LOAD;
        }
        static DG_DEVICE bool mine(int i) { return ALL % THREADS == 0 || load(i) < ALL; }

        // The line of memory that load i is from.
        static DG_DEVICE int source_line(int i) {
            if (!(ALONG_K && INNER_K)) return line(i);
            return LINEAR ? S::row_of_line(line(0)) + i * STEP : S::row_of_line(line(i));
        }
        DG_DEVICE i64 source_offset(int i, u32 pitch_) const {
            return (i64)((u64)(u32)source_line(i) * pitch_) + within(i) * SIZE;
        }
        // `pitch_` is the pitch, hidden from the compiler: it would keep every product with it in registers.
        DG_DEVICE const char* source(int i, u32 pitch_) const {
            if (SIMPLE) return from + (u64)(u32)(i * STEP) * pitch_;
            return from + source_offset(i, pitch_);
        }
        // Nothing is read past an edge. Another row in its place would be asked for by all blocks at once.
        DG_DEVICE bool real(int i) const {
            if (EDGE && (ALONG_K ? source_line(i) : within(i)) >= rows) return false;
            return !EDGE_K || (ALONG_K ? within(i) : line(i)) < steps;
        }
        // Only the last step ends outside of K: where there are many, the others go without guards.
        DG_DEVICE bool guarded() const { return EDGE || EDGE_K == 1 || (EDGE_K == 2 && steps < BK); }
        // Where element e of load i goes.
        DG_DEVICE u32 target(int i, int e) const {
            if (ALONG_K && INNER_K) return (line(i) * PITCH + within(i) + e) * SIZE;
            if (ALONG_K) return ((within(i) + e) * PITCH + line(i)) * SIZE;
            if (INNER_K) return (S::line_of_row(within(i) + e) * PITCH + line(i)) * SIZE;
            return (line(i) * PITCH + within(i) + e) * SIZE;
        }
        DG_DEVICE void advance() {
            from += ALONG_K ? (i64)BK * SIZE : (i64)BK * pitch;
            steps -= BK;
        }

#if ASYNC
        template <bool GUARDED>
        DG_DEVICE void copy_each(u32 stage) const {
            static_assert(SAME || LOAD == 1, "a copy that turns the tile moves single elements");
            u32 pitch_ = opaque(pitch);
            DG_UNROLL for (int i = 0; i < EACH; ++i)
                if (mine(i)) {
                    if (GUARDED) copy_async_or_zero<LOAD * SIZE>(stage + target(i, 0), source(i, pitch_), real(i));
                    else copy_async<LOAD * SIZE>(stage + target(i, 0), source(i, pitch_));
                }
        }
        DG_DEVICE void copy(u32 stage) {
            if (guarded()) copy_each<true>(stage);
            else copy_each<false>(stage);
            advance();
        }
#else
        template <bool GUARDED>
        DG_DEVICE void fetch_each() {
            u32 pitch_ = opaque(pitch);
            DG_UNROLL for (int i = 0; i < EACH; ++i)
                if (mine(i)) {
                    if (!GUARDED || real(i)) held[i] = load_global<Vec<T, LOAD>>(source(i, pitch_));
                    else held[i] = Vec<T, LOAD>{};
                }
        }
        DG_DEVICE void fetch() {
            if (guarded()) fetch_each<true>();
            else fetch_each<false>();
            advance();
        }
        DG_DEVICE void put(u32 stage) {
            DG_UNROLL for (int i = 0; i < EACH; ++i)
                if (mine(i)) {
                    if constexpr (SAME) store_shared(stage + target(i, 0), held[i]);
                    else
                        DG_UNROLL for (int e = 0; e < LOAD; ++e)
                            store_shared(stage + target(i, e), Vec<T, 1>{{held[i].v[e]}});
                }
        }
#endif
    };
};

typedef Scatter<LANES_M, WARPS_M, TM, WARP_SCATTER_A, THREAD_SCATTER_A> ScatterA;
typedef Scatter<LANES_N, WARPS_N, TN, WARP_SCATTER_B, THREAD_SCATTER_B> ScatterB;
