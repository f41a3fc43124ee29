// Rows of C that begin anywhere, which the copy engine cannot take, from a warp's buffer to memory.
#pragma once
#include "epilogue.h"

// A row of `count` numbers, of which this lane has one word of every 32, to memory, in words of four bytes.
template <int COUNT>
DG_DEVICE void store_row(TYPE_C* to, int count, const u32 (&word)[COUNT]) {
    int lane = threadIdx.x % 32;
#if C_BYTES == 4
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        if (i * 32 + lane < count) reinterpret_cast<u32*>(to)[i * 32 + lane] = word[i];
#else
    typedef unsigned short u16;
    u16* out = reinterpret_cast<u16*>(to);
    if ((u64)to & 2) {  // words of memory then have the second half of one word and the first of the next
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            u32 before = __shfl_up_sync(~0u, word[i], 1);
            int at = (i * 32 + lane) * 2 - 1;  // of the word's first number
            bool whole = lane > 0 && at + 1 < count;
            if (whole) *reinterpret_cast<u32*>(out + at) = __byte_perm(before, word[i], 0x5432);
            // What no word has: the first number of lane 0, the second of lane 31, and the last of the row.
            if (lane == 0 && at + 1 < count) out[at + 1] = (u16)word[i];
            if (lane == 31 ? at + 2 < count : at + 2 == count - 1) out[at + 2] = (u16)(word[i] >> 16);
        }
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            int at = (i * 32 + lane) * 2;
            if (at + 1 < count)
                *reinterpret_cast<u32*>(out + at) = word[i];
            else if (at < count)
                out[at] = (u16)word[i];
        }
    }
#endif
}

DG_DEVICE void store_lines(const Problem& p, const Piece& w, int row, const acc_t (&sums)[CHUNKS * 4], u32 buffer) {
    constexpr int LANE_WORDS = (C_LINE + 127) / 128, AT_ONCE = LANE_WORDS == 1 ? 8 : 4;  // rows read before any is stored
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < PIECES; ++s) {
        u32 words[WORDS];
        int first = w.m + row + s * PIECE / (BN / 8) * 64, column = w.n + s * PIECE % (BN / 8) * 8;
        pack(p, w, row, s, sums, words);
        __syncwarp();  // all have read what was there
        fill(buffer, words);
        __syncwarp();
        TYPE_C* to = p.c + w.batch * p.stride_c + (i64)first * p.ldc + column;
        int rows = min(p.m - first, 16), count = min(p.n - column, PIECE * 8);
#pragma unroll 1
        for (int r = 0; r < 16; r += AT_ONCE) {
            u32 word[AT_ONCE][LANE_WORDS];
#pragma unroll
            for (int i = 0; i < AT_ONCE * LANE_WORDS; ++i) {
                int from = (i % LANE_WORDS * 32 + lane) * 4;
                if (from < C_LINE)
                    word[i / LANE_WORDS][i % LANE_WORDS] =
                        load_shared(buffer + swizzled((r + i / LANE_WORDS) * C_LINE + from));
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (r + i < rows) store_row(to + (i64)(r + i) * p.ldc, count, word[i]);
        }
    }
}
