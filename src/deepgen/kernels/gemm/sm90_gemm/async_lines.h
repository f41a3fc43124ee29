// Lines of A and B that producers copy to a stage asynchronously, A_COPY or B_COPY bytes at a time: lines whose beginnings
// are multiples of 4 or 8 bytes, which the copy engine does not take, or of 16 but not of 64, which it fetches in two parts
// each, for 2.5 times the time.
//
// Nothing is held in registers, so as many stages are on their way as there are. A stage's barrier is told when a thread's
// copies have come. They are ordinary writes: who multiplies makes them visible to the products first.
#pragma once
#include "hopper.h"

// BYTES of which the first `count` exist; the others become zeros.
template <int BYTES>
DG_DEVICE void copy_async(u32 to, const char* from, int count) {
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(count) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(count)
            : "memory");
}
DG_DEVICE void arrive_when_copied(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
DG_DEVICE void all_copied() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ROWS rows of a tile, in lines of 128 bytes along K or, where they are contiguous, along rows. Neighbouring lanes have
// neighbouring copies.
template <int ROWS, int K_MAJOR, int COPY>
struct Lines {
    static constexpr int SIZE = ELEMENT, WIDE = 128 / SIZE, EACH = 128 / COPY;  // numbers and copies of a line
    static constexpr int AT_ONCE = PRODUCERS / EACH, COUNT = (ROWS + AT_ONCE - 1) / AT_ONCE;  // lines; copies of a thread
    const char* begin;
    i64 apart, matrix_apart;  // bytes from line to line, from matrix to matrix
    int rows, k;              // of a matrix
    const char* from;         // this thread's first copy of a tile
    int own, byte, left;      // its line, and where in it; rows from the tile's first on

    DG_DEVICE Lines(const char* tensor, int rows, int k, int ld, i64 stride, int)
        : begin(tensor), apart((i64)ld * SIZE), matrix_apart(stride * SIZE), rows(rows), k(k) {
        int thread = threadIdx.x - (THREADS - PRODUCERS);
        own = thread / EACH;
        byte = thread % EACH * COPY;
    }
    DG_DEVICE void at_tile(int row, int batch) {
        from = begin + batch * matrix_apart + byte;
        from += K_MAJOR ? (i64)(row + own) * apart : own * apart + (i64)row * SIZE;
        left = rows - row;
    }
    // To a swizzled tile. What lies beyond K is zero; what lies beyond the rows adds to results that do not exist.
    DG_DEVICE void copy(int k_first, u32 tile) const {
        const char* step = from + (K_MAJOR ? (i64)k_first * SIZE : k_first * apart);
        int along = (k - k_first) * SIZE - byte;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            int first = i * AT_ONCE, line = first + own;
            if (ROWS % AT_ONCE && line >= ROWS) break;
            int exist = K_MAJOR ? (line < left ? along : 0)
                                : (k_first + line % WIDE < k ? (left - line / WIDE * WIDE) * SIZE - byte : 0);
            u32 to = tile + line * 128 + (byte & ~15 ^ line % 8 * 16) + byte % 16;
            i64 further = K_MAJOR ? first * apart : first % WIDE * apart + first / WIDE * 128;
            copy_async<COPY>(to, step + further, max(min(exist, COPY), 0));
        }
    }
};

// All producers copy lines; one of them asks the copy engine for the operand that it can take.
struct Loaders {
    const Problem& p;
    const Shared& s;
    const TensorMap *a, *b;
    u64 use_a, use_b;
    Place at;
    Piece w;
#if A_BY_LANES
    Lines<BM, A_K_MAJOR, A_COPY> lines_a;
#endif
#if B_BY_LANES
    Lines<B_ROWS, B_K_MAJOR, B_COPY> lines_b;
#endif

    DG_DEVICE void fill(int k) {
        u32 full = s.full + at.stage * 8, tile = s.stages + at.stage * STAGE_BYTES;
        barrier_wait(s.empty + at.stage * 8, at.phase ^ 1);
        bool asks = !(A_BY_LANES && B_BY_LANES) && threadIdx.x == CONSUMERS * 128;
        if (asks) barrier_expect(full, FETCHED_BYTES);
#pragma unroll
        for (int j = 0; j < ATOMS; ++j, k += BK / ATOMS) {
            u32 of_a = tile + j * A_BYTES, of_b = tile + ATOMS * A_BYTES + j * B_BYTES;
#if A_BY_LANES
            lines_a.copy(k, of_a);
#else
            if (asks)
                get_tile<A_ROWS, 1, A_K_MAJOR, 128, CACHE_A>(
                    of_a, a, full, w.m, k, SHARED_A ? 0 : w.batch, 0, 0, use_a);
#endif
#if B_BY_LANES
            lines_b.copy(k, of_b);
#else
            if (asks) get_tile<B_ROWS, 1, B_K_MAJOR, B_LINE, CACHE_B>(of_b, b, full, w.n, k, w.batch, 0, 0, use_b);
#endif
        }
        arrive_when_copied(full);
        at.advance();
    }
    DG_DEVICE void run(int rank) {
        Schedule schedule(p, rank, 0, 1);
        while (schedule.next(p, w)) {
#if A_BY_LANES
            lines_a.at_tile(w.m, w.batch);
#endif
#if B_BY_LANES
            lines_b.at_tile(w.n, w.batch);
#endif
#pragma unroll 1
            for (int i = 0; i < w.steps; ++i) fill((w.first + i) * BK);
        }
        all_copied();
    }
};
