// Lines of A and B that begin anywhere, from memory through registers to a stage: the copy engine takes only those that
// begin at multiples of 16 bytes. PRODUCERS threads load a stage while they still hold the one before.
//
// A line is 128 bytes of a tile, along K or, where rows are contiguous, along these. Eight lanes have a chunk of 16 bytes
// each. The next lines of a thread are a multiple of 16 bytes further on: what all its chunks begin after is the same.
#pragma once
#include "shifted.h"

template <int COUNT>
struct Chunks {
    uint4 low[COUNT], high[COUNT];
};

template <int ROWS, int K_MAJOR>
struct Lines {
    static constexpr int AT_ONCE = PRODUCERS / 8, COUNT = ROWS / AT_ONCE;  // lines of all threads; chunks of each
    static constexpr int SIZE = ELEMENT, WIDE = 128 / SIZE;  // bytes of a number, numbers of a line
    typedef Chunks<COUNT> Held;
    const char *begin, *end;  // of the tensor
    i64 apart, matrix_apart;  // bytes from line to line, from matrix to matrix
    int rows, k;              // of a matrix
    const char* from;         // this thread's first chunk of a tile
    u32 shift;                // where it begins, in 16 bytes
    int own, chunk, left;     // its line and chunk; rows from the tile's first on

    DG_DEVICE Lines(const char* tensor, int rows, int k, int ld, i64 stride, int batch)
        : begin(tensor), apart((i64)ld * SIZE), matrix_apart(stride * SIZE), rows(rows), k(k) {
        int thread = threadIdx.x - (THREADS - PRODUCERS);
        own = thread / 8;
        chunk = thread % 8 * 16;
        int lines = K_MAJOR ? rows : k, line = (K_MAJOR ? k : rows) * SIZE;
        end = begin + (batch - 1) * matrix_apart + (lines - 1) * apart + line;
    }
    static DG_DEVICE u32 number_at(const char* at) {
        if (SIZE == 1) return *reinterpret_cast<const unsigned char*>(at);
        if (SIZE == 2) return *reinterpret_cast<const unsigned short*>(at);
        return *reinterpret_cast<const u32*>(at);
    }
    DG_DEVICE void at_tile(int row, int batch) {
        from = begin + batch * matrix_apart + chunk;
        from += K_MAJOR ? (i64)(row + own) * apart : own * apart + (i64)row * SIZE;
        shift = (u64)from & 15;
        left = rows - row;
    }
    // Bytes of chunk i that exist, at step `k_first`.
    DG_DEVICE int count(int i, int k_first) const {
        int line = i * AT_ONCE + own;
        int exists = K_MAJOR ? (line < left ? (k - k_first) * SIZE : 0)
                             : (k_first + line % WIDE < k ? (left - line / WIDE * WIDE) * SIZE : 0);
        return min(exists - chunk, 16);
    }
    // From one chunk of this thread to the next.
    DG_DEVICE i64 further(int i) const {
        int line = i * AT_ONCE;
        return K_MAJOR ? line * apart : line % WIDE * apart + line / WIDE * 128;
    }
    DG_DEVICE void load(Held& held, int k_first) const {
        const char* step = from - shift + (K_MAJOR ? (i64)k_first * SIZE : k_first * apart);
        i64 furthest = K_MAJOR ? further(COUNT - 1) : (WIDE - AT_ONCE) * apart + (ROWS / WIDE - 1) * 128;
        if (__all_sync(~0u, step + furthest + 32 <= end)) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const uint4* at = reinterpret_cast<const uint4*>(step + further(i));
                held.low[i] = __ldg(at);
                held.high[i] = __ldg(at + 1);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            int exist = count(i, k_first) + (int)shift;  // bytes from there on
            bool any = exist > (int)shift, two = any && exist > 16;
            const char* at = step + further(i);
            held.low[i] = held.high[i] = uint4{0, 0, 0, 0};
            if (any && at + 16 <= end) held.low[i] = __ldg(reinterpret_cast<const uint4*>(at));
            if (two && at + 32 <= end) held.high[i] = __ldg(reinterpret_cast<const uint4*>(at + 16));
        }
        // Nothing beyond the tensor is read. It ends in one chunk of a thread at most.
        const char* within = end - ((u64)end & 15);
        int place = -1;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            int exist = count(i, k_first) + (int)shift;
            const char* at = step + further(i);
            if (exist > (int)shift && at == within) place = 2 * i;
            if (exist > 16 && exist > (int)shift && at + 16 == within) place = 2 * i + 1;
        }
        if (place < 0 || within == end) return;
        uint4 some = before_end(within);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (place == 2 * i) held.low[i] = some;
            if (place == 2 * i + 1) held.high[i] = some;
        }
    }
    // Sixteen bytes of which the tensor ends in some.
    DG_DEVICE uint4 before_end(const char* at) const {
        u32 w[4] = {};
#pragma unroll
        for (int i = 0; i < 16; i += SIZE)
            if (at + i < end) w[i / 4] |= number_at(at + i) << i % 4 * 8;
        return {w[0], w[1], w[2], w[3]};
    }
    // To a swizzled tile. What lies beyond K is zero; what lies beyond the rows adds to results that do not exist.
    DG_DEVICE void store(const Held& held, int k_first, u32 tile) const {
        u32 to = tile + own * 128 + (chunk ^ own % 8 * 16);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            uint4 v = shifted(held.low[i], held.high[i], shift);
            if (k_first + WIDE > k) {
                int exist = count(i, k_first);
                v.x &= first_bytes(exist);
                v.y &= first_bytes(exist - 4);
                v.z &= first_bytes(exist - 8);
                v.w &= first_bytes(exist - 12);
            }
            store_shared(to + i * (AT_ONCE * 128), v);
        }
    }
    static DG_DEVICE u32 first_bytes(int count) { return count <= 0 ? 0 : count >= 4 ? ~0u : (1u << count * 8) - 1; }
};
