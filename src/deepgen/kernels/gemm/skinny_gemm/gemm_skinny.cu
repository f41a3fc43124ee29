// GEMM of a few rows or columns (the thin operand) against a large matrix: bound by reading that matrix once.
// C = activation(alpha * op(A) op(B) * scale + beta * C + bias), batched, all layouts, sm_80 and later.
//
// The ladder, from the ground up:
//   1. the large matrix goes in loads of 16 bytes straight to registers, past L1 and first out of L2        HINT
//   2. it is the side of 16 of warp-wide products, the thin operand that of 8; f32 is multiplied plainly     -
//   3. UNROLL times 64 bytes of K a row are on their way while as many are multiplied                        UNROLL
//   4. the thin operand lies in shared memory, CHUNK rounds of K at a time, the next ones copied ahead       CHUNK
//   5. warps share out K (WARPS_K) and rows (WARPS_R), and add up through shared memory                      WARPS_K, WARPS_R
//   6. blocks share out K too, and whoever comes last adds up, where rows alone would not fill the chip      SPLITS
// docs/kernels/skinny_gemm.md has what they gained.
#include "problem.h"
#include "large.h"

// THIN_M: A is thin and B large; otherwise the other way round.
constexpr int THREADS = WARPS_R * WARPS_K * 32;
constexpr int ROWS_W = ROW_BLOCKS * 8, ROWS = WARPS_R * ROWS_W;  // of the large matrix, by warp and by block
constexpr int ROUND = UNROLL * WARPS_K * BLOCK;                  // elements of K that a block takes at once
constexpr int LINE = CHUNK * ROUND * SIZE, PITCH_X = LINE + (LINE % 128 == 0 ? 64 : 0);  // half the banks apart
constexpr u32 BYTES_X = THIN * PITCH_X;
constexpr int C_ROWS = THIN_M ? THIN : ROWS, C_COLUMNS = THIN_M ? ROWS : THIN, C_PITCH = C_COLUMNS + (THIN_M ? 4 : 8);
constexpr int RUNS = C_ROWS * C_COLUMNS / STORE, PART = STORE < 4 ? STORE : 4;

// The thin operand, a chunk of K after the other, as lines of K in shared memory; zeros past its edges.
struct Thin {
    const TYPE_A* from;
    int ld, rows, steps;

    DG_DEVICE void copy(u32 to, int k) const {
        constexpr int CHUNKS = LINE / 16;
        DG_NO_UNROLL for (int i = thread_id(); i < THIN * CHUNKS; i += THREADS) {
            int line = i / CHUNKS, step = k + i % CHUNKS * WIDTH;
            u32 target = to + line * PITCH_X + i % CHUNKS * 16;
            int left = line < rows ? steps - step : 0;
            left = left < 0 ? 0 : left < WIDTH ? left * SIZE : 16;
            const TYPE_A* source = from + (THIN_ALONG ? line * (i64)ld + step : step * (i64)ld + line);
            if constexpr (THIN_ALONG && COPY_THIN >= 4) {
                DG_UNROLL for (int b = 0; b < 16; b += COPY_THIN) {
                    int real = left - b;
                    real = real < 0 ? 0 : real < COPY_THIN ? real : COPY_THIN;
                    copy_async_part<COPY_THIN>(target + b, reinterpret_cast<const char*>(source) + b, real);
                }
            } else {  // element by element
                Vec<TYPE_A, WIDTH> all;
                DG_UNROLL for (int e = 0; e < WIDTH; ++e) {
                    all.v[e] = TYPE_A{};
                    if (e * SIZE < left) all.v[e] = load_global<TYPE_A>(source + e * (i64)(THIN_ALONG ? 1 : ld));
                }
                store_shared(target, all);
            }
        }
    }
};

#if PLAIN
typedef TYPE_ACC Sums[ROW_BLOCKS][THIN];
DG_DEVICE void clear(Sums& sums) {
    DG_UNROLL for (int i = 0; i < ROW_BLOCKS; ++i)
        DG_UNROLL for (int n = 0; n < THIN; ++n) sums[i][n] = 0;
}
#else
typedef TYPE_ACC Sums[ROW_BLOCKS / 2][THIN / 8][4];
DG_DEVICE void clear(Sums& sums) {
    DG_UNROLL for (int i = 0; i < ROW_BLOCKS / 2; ++i)
        DG_UNROLL for (int n = 0; n < THIN / 8; ++n)
            DG_UNROLL for (int e = 0; e < 4; ++e) sums[i][n][e] = 0;
}
#endif

// `x`: where the lane's 16 bytes of the first line of the thin operand lie.
DG_DEVICE void multiply(Sums& sums, const Large::Piece& piece, u32 x) {
    DG_UNROLL for (int u = 0; u < UNROLL; ++u)
#if PLAIN
        DG_UNROLL for (int n = 0; n < THIN; ++n) {
            Vec<f32, 4> thin = load_shared<Vec<f32, 4>>(x + n * PITCH_X + u * 64);
            DG_UNROLL for (int i = 0; i < ROW_BLOCKS; ++i)
                DG_UNROLL for (int w = 0; w < 4; ++w)
                    sums[i][n] = multiply_add(float_of_bits(piece.word(u, i, w)), thin.v[w], sums[i][n]);
        }
#else
        DG_UNROLL for (int n = 0; n < THIN / 8; ++n) {
            Vec<u32, 4> thin = load_shared<Vec<u32, 4>>(x + n * 8 * PITCH_X + u * 64);
            DG_UNROLL for (int s = 0; s < 4; s += 2) {
                const u32 b[2] = {thin.v[s], thin.v[s + 1]};
                DG_UNROLL for (int i = 0; i < ROW_BLOCKS; i += 2) {
                    const u32 a[4] = {piece.word(u, i, s), piece.word(u, i + 1, s), piece.word(u, i, s + 1),
                                      piece.word(u, i + 1, s + 1)};
                    product(sums[i / 2][n], a, b);
                }
            }
        }
#endif
}

// Rounds `begin` to `end` of K for the rows from `row` on of matrix `batch`.
DG_DEVICE void accumulate(Sums& sums, const Problem& p, int batch, int row, int begin, int end) {
    clear(sums);
    int warp = thread_id() / 32, warp_k = warp / WARPS_R, lane = thread_id() % 32;
    Thin thin = {THIN_M ? p.a + batch * p.stride_a : p.b + batch * p.stride_b, THIN_M ? p.lda : p.ldb,
                 THIN_M ? p.m : p.n, p.k};
    Large large(THIN_M ? p.b + batch * p.stride_b : p.a + batch * p.stride_a, THIN_M ? p.ldb : p.lda,
                THIN_M ? p.n : p.m, p.k, row + warp % WARPS_R * ROWS_W);
    const u32 first = shared_begin();
    u32 here = first, there = first + (BUFFERS - 1) * BYTES_X;
    const u32 own = (PLAIN ? 0 : lane / 4 * PITCH_X) + lane % 4 * 16 + warp_k * UNROLL * 64;
    Large::Piece piece[2];
    auto round_k = [&](int round) { return (round * WARPS_K + warp_k) * UNROLL * BLOCK; };
    if (begin < end) {
        thin.copy(here, begin * ROUND);
        copy_commit();
        large.load(piece[0], round_k(begin));
    }
    // Before the first round of a chunk: it has come, and the next one is asked for.
    auto turn = [&](int round) {
        if (BUFFERS == 1 && round > begin) {
            barrier();
            thin.copy(here, round * ROUND);
            copy_commit();
        }
        copy_wait<0>();
        barrier();
        if (BUFFERS == 2) {
            if (round > begin) {
                u32 last = here;
                here = there;
                there = last;
            }
            if (round + CHUNK < end) thin.copy(there, (round + CHUNK) * ROUND);
            copy_commit();
        }
    };
    DG_NO_UNROLL for (int two = begin; two < end; two += 2)
        DG_UNROLL for (int b = 0; b < 2; ++b) {
            int round = two + b;
            if (round < end) {
                // Before the barrier: loads are on their way while the block waits for the thin operand.
                if (round + 1 < end) large.load(piece[1 - b], round_k(round + 1));
                if ((round - begin) % CHUNK == 0) turn(round);
                multiply(sums, piece[b], here + own + (round - begin) % CHUNK * (ROUND * SIZE));
            }
        }
    copy_wait<0>();
}

// A warp's sums to its place in shared memory, laid out like C.
DG_DEVICE void put(const Sums& sums) {
    int warp = thread_id() / 32, lane = thread_id() % 32, g = lane / 4, t = lane % 4;
    u32 first = shared_begin() + warp / WARPS_R * (C_ROWS * C_PITCH * 4);
    auto place = [&](int i, int x) {
        int row = warp % WARPS_R * ROWS_W + Large::row(i, g);
        return first + (THIN_M ? x * C_PITCH + row : row * C_PITCH + x) * 4;
    };
    DG_UNROLL for (int i = 0; i < ROW_BLOCKS; ++i) {
#if PLAIN
        DG_UNROLL for (int n = 0; n < THIN; ++n) {
            f32 sum = sums[i][n];
            sum += from_lane_across(sum, 1);
            sum += from_lane_across(sum, 2);
            if (n % 4 == t) store_shared(place(i, n), sum);
        }
#else
        DG_UNROLL for (int n = 0; n < THIN / 8; ++n)
            DG_UNROLL for (int e = 0; e < 2; ++e) store_shared(place(i, n * 8 + 2 * t + e), sums[i / 2][n][i % 2 * 2 + e]);
#endif
    }
}

// Calls `use(number, sums)` for each of this thread's runs of STORE neighbours of C, added up over the warps.
template <typename F>
DG_DEVICE void each_run(F use) {
    for (int run = thread_id(); run < RUNS; run += THREADS) {
        u32 at = shared_begin() + (run / (C_COLUMNS / STORE) * C_PITCH + run % (C_COLUMNS / STORE) * STORE) * 4;
        TYPE_ACC total[STORE] = {};
        DG_UNROLL for (int w = 0; w < WARPS_K; ++w)
            DG_UNROLL for (int e = 0; e < STORE; e += PART) {
                Vec<TYPE_ACC, PART> more = load_shared<Vec<TYPE_ACC, PART>>(at + w * (C_ROWS * C_PITCH * 4) + e * 4);
                DG_UNROLL for (int i = 0; i < PART; ++i) total[e + i] += more.v[i];
            }
        use(run, total);
    }
}

DG_KERNEL(THREADS, MIN_BLOCKS)
gemm(DG_PROBLEM) {
    Problem p = DG_GIVEN;
    int large = THIN_M ? n : m, strips = (large + ROWS - 1) / ROWS, tiles = strips * batch;
    int part = block_id() / tiles, tile = block_id() - part * tiles, matrix = tile / strips;
    int row = (tile - matrix * strips) * ROWS, rounds = (k + ROUND - 1) / ROUND;
    Sums sums;
    accumulate(sums, p, matrix, row, (int)((i64)rounds * part / splits), (int)((i64)rounds * (part + 1) / splits));
    barrier();
    put(sums);
    barrier();
    auto finished = [&](int run, const TYPE_ACC* total) {
        int line = run / (C_COLUMNS / STORE), column = run % (C_COLUMNS / STORE) * STORE;
        finish_run<STORE>(p, matrix, THIN_M ? line : row + line, THIN_M ? row + column : column, total);
    };
#if SPLIT
    // Whoever comes last adds up all parts, in their order, so that the result does not depend on who that is.
    constexpr i64 SLOT = (i64)RUNS * STORE;
    TYPE_ACC* slots = partial + (i64)tile * splits * SLOT;
    each_run([&](int run, const TYPE_ACC* total) {
        DG_UNROLL for (int e = 0; e < STORE; e += PART) {
            Vec<TYPE_ACC, PART> out;
            DG_UNROLL for (int i = 0; i < PART; ++i) out.v[i] = total[e + i];
            store_global(slots + part * SLOT + (i64)run * STORE + e, out);
        }
    });
    if (arrive(arrived + tile) == (u32)splits - 1) {
        for (int run = thread_id(); run < RUNS; run += THREADS) {
            TYPE_ACC total[STORE] = {};
            DG_NO_UNROLL for (int s = 0; s < splits; ++s)
                DG_UNROLL for (int e = 0; e < STORE; e += PART) {
                    Vec<TYPE_ACC, PART> more =
                        load_fresh<Vec<TYPE_ACC, PART>>(slots + s * SLOT + (i64)run * STORE + e);
                    DG_UNROLL for (int i = 0; i < PART; ++i) total[e + i] += more.v[i];
                }
            finished(run, total);
        }
        reset(arrived + tile);
    }
#else
    each_run(finished);
#endif
    block_ends();
}
