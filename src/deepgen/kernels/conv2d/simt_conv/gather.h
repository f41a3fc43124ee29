// B: how a tile of pixels comes from the image, a line for each input channel and tap.
#pragma once

// Bit j: whether tap j meets the image.
template <int COUNT, int STEP, int SIZE>
DG_DEVICE u32 inside(int first) {
    u32 bits = 0;
    DG_UNROLL for (int j = 0; j < COUNT; ++j) bits |= (u32)((u32)(first + j * STEP) < (u32)SIZE) << j;
    return bits;
}

// Loads of what is read again soon, which L1 keeps: the table of lines, and pixels that several taps meet.
#if defined(__CUDA_ARCH__) && !defined(DG_EMULATE)
DG_DEVICE Line load_line(const Line* from) {  // free to move ahead of copies
    int2 both = __ldg(reinterpret_cast<const int2*>(from));
    return {{both.x, both.y}};
}
template <typename V>
DG_DEVICE V load_pixels(const void* from) {  // begins where it is written
    typename Raw<sizeof(V)>::type raw;
    if constexpr (TAPS_D * TAPS_H * TAPS_W == 1) return load_global<V>(from);
    else if constexpr (sizeof(V) == 16)
        asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w) : "l"(from) : "memory");
    else if constexpr (sizeof(V) == 8)
        asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(raw.x), "=r"(raw.y) : "l"(from) : "memory");
    else asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(raw) : "l"(from) : "memory");
    return bit_cast<V>(raw);
}
#else
DG_DEVICE Line load_line(const Line* from) { return load_global<Line>(from); }
template <typename V>
DG_DEVICE V load_pixels(const void* from) { return load_global<V>(from); }
#endif

struct TileB : Tile<TYPE_B, BN, ScatterB, TN, THREAD_SCATTER_B, false, false, PAD_B, LOAD_B, EDGE_N == 1> {
    // A thread loads the same pixels of every line, LOAD_B neighbours at once, and goes down some lines from load to
    // load. ONE_TAP: the lines of a step are BK channels of one tap, so that what depends on the tap is done once.
    struct Loader {
        static constexpr int RUNS = BN / LOAD_B;
        static constexpr int PIXELS = RUNS > THREADS ? RUNS / THREADS : 1, DOWN = RUNS > THREADS ? 1 : THREADS / RUNS;
        static constexpr int EACH = (BK + DOWN - 1) / DOWN;
        static constexpr bool CHECKED = GUARD_D || GUARD_H || GUARD_W || EDGE_N == 1;
        static_assert(RUNS % THREADS == 0 || THREADS % RUNS == 0, "a thread has whole lines, or a run of each");
        typedef Vec<TYPE_B, LOAD_B> Run;
        const TYPE_B* from[PIXELS];
        u32 met[PIXELS][3];  // by tap, in each dimension
        const Line* lines;
        int left;
        Line next;  // ONE_TAP: of the next step
        Run held[ASYNC ? 1 : EACH * PIXELS];

        DG_DEVICE Loader(const Problem& p, const TYPE_B* image, int column, int step) {
            lines = p.lines + step;
            left = p.k - step;
            if (ONE_TAP) next = left > 0 ? load_line(lines) : Line{};
            DG_UNROLL for (int i = 0; i < PIXELS; ++i) {
                int at = column + pixel(i), row = at / PIXELS_W;
                int d = row / PIXELS_H * STRIDE_D + p.first[0], h = row % PIXELS_H * STRIDE_H + p.first[1];
                int w = at % PIXELS_W * STRIDE_W + p.first[2];
                from[i] = image + (d * IN_H + h) * IN_W + w;
                if (ONE_TAP) from[i] += (i64)line(0) * IMAGE;
                bool real = EDGE_N != 1 || at < p.n;
                met[i][0] = real ? inside<TAPS_D, STEP_D, IN_D>(d) : 0;
                met[i][1] = inside<TAPS_H, STEP_H, IN_H>(h);
                met[i][2] = inside<TAPS_W, STEP_W, IN_W>(w);
            }
        }
        static DG_DEVICE int pixel(int i) {
            return (thread_id() % (RUNS > THREADS ? THREADS : RUNS) + i * THREADS) * LOAD_B;
        }
        static DG_DEVICE int line(int i) { return (RUNS > THREADS ? 0 : thread_id() / RUNS) + i * DOWN; }
        static DG_DEVICE bool mine(int i) { return BK % DOWN == 0 || line(i) < BK; }
        static DG_DEVICE u32 target(int i, int of) { return (line(i) * PITCH + pixel(of)) * SIZE; }
        DG_DEVICE bool real(const Line& entry, int of) const {
            u32 taps = (u32)entry.v[1], all = 1;
            if (GUARD_D || EDGE_N == 1) all &= met[of][0] >> (taps & 255);
            if (GUARD_H) all &= met[of][1] >> (taps >> 8 & 255);
            if (GUARD_W) all &= met[of][2] >> (taps >> 16 & 255);
            return all & 1;
        }
        DG_DEVICE void advance() {
            lines += BK;
            left -= BK;
        }

        // Calls visit(i, of, address, real) for each load of a step. GUARDED: lines past the last are zeros.
        template <bool GUARDED, typename Visit>
        DG_DEVICE void each_load(Visit visit) {
            if constexpr (ONE_TAP) {
                Line at = next;
                if (left > BK) next = load_line(lines + BK);
                DG_UNROLL for (int of = 0; of < PIXELS; ++of) {
                    const TYPE_B* first = from[of] + at.v[0];
                    bool there = !CHECKED || real(at, of);
                    DG_UNROLL for (int i = 0; i < EACH; ++i)
                        if (mine(i)) visit(i, of, first + (i64)(i * DOWN) * IMAGE, there);
                }
            } else {
                Line at[EACH];  // all of them first: no load of a pixel waits for the one before it
                DG_UNROLL for (int i = 0; i < EACH; ++i)
                    at[i] = mine(i) && (!GUARDED || line(i) < left) ? load_line(lines + line(i)) : Line{{0, -1}};
                DG_UNROLL for (int i = 0; i < EACH; ++i)
                    if (mine(i))
                        DG_UNROLL for (int of = 0; of < PIXELS; ++of)
                            visit(i, of, from[of] + at[i].v[0],
                                  (!GUARDED || line(i) < left) && (!CHECKED || real(at[i], of)));
            }
        }
        // Only the last step ends outside of K: where there are many, the others go without guards.
        DG_DEVICE bool guarded() const { return EDGE_K == 1 || (EDGE_K == 2 && left < BK); }

#if ASYNC
        template <bool GUARDED>
        DG_DEVICE void copy_each(u32 stage) {
            each_load<GUARDED>([&](int i, int of, const TYPE_B* at, bool there) {
                u32 to = stage + target(i, of);
                if (CHECKED || GUARDED) copy_async_or_zero<LOAD_B * SIZE>(to, at, there);
                else copy_async<LOAD_B * SIZE>(to, at);
            });
        }
        DG_DEVICE void copy(u32 stage) {
            if (guarded()) copy_each<true>(stage);
            else copy_each<false>(stage);
            advance();
        }
#else
        template <bool GUARDED>
        DG_DEVICE void fetch_each() {
            each_load<GUARDED>([&](int i, int of, const TYPE_B* at, bool there) {
                Run& one = held[i * PIXELS + of];
                if (!(CHECKED || GUARDED) || there) one = load_pixels<Run>(at);
                else one = Run{};
            });
        }
        DG_DEVICE void fetch() {
            if (guarded()) fetch_each<true>();
            else fetch_each<false>();
            advance();
        }
        DG_DEVICE void put(u32 stage) {
            DG_UNROLL for (int i = 0; i < EACH; ++i)
                if (mine(i))
                    DG_UNROLL for (int of = 0; of < PIXELS; ++of) store_shared(stage + target(i, of), held[i * PIXELS + of]);
        }
#endif
    };
};
