// Rows of C that begin anywhere, from a warp's buffer to memory. The buffer holds them as they lie there, from a multiple
// of GRAIN bytes on: what memory writes at once. What of a piece does not fill a grain goes with the next piece.
//
// With OVERLAP, neighbouring tiles have some columns both: of each row the left one stores those before the first grain
// that the right one fills. So no grain is stored in two parts, but where rows of C begin and end.
#pragma once
#include "epilogue.h"

constexpr int TILE_BYTES = BN * C_BYTES, ROW_CHUNKS = C_LINE / 16, GRAIN_CHUNKS = GRAIN / 16;
static_assert(C_LINE >= GRAIN || C_LINE == TILE_BYTES, "what a piece leaves goes with the next");
static_assert(OVERLAP == 0 || (STEP_N * C_BYTES % GRAIN == 0 && (OVERLAP + 1) * C_BYTES >= GRAIN), "tiles share a grain");

// Sixteen rows of a tile. Positions in a row are bytes from the grain on that it begins in.
struct Rows {
    char* begin;  // of the first
    i64 apart;
    int count, bytes;  // rows that exist; what exists of each
    bool first, last;  // of the tiles of a row

    DG_DEVICE Rows(const Problem& p, const Piece& w, int row) {
        begin = reinterpret_cast<char*>(p.c + w.batch * p.stride_c + (i64)row * p.ldc + w.n);
        apart = (i64)p.ldc * C_BYTES;
        count = p.m - row;
        bytes = min(p.n - w.n, BN) * C_BYTES;
        first = OVERLAP == 0 || w.n == 0;
        last = OVERLAP == 0 || p.n - w.n <= BN;
        if (bytes <= (first ? 0 : OVERLAP * C_BYTES)) count = 0;
    }
    DG_DEVICE int shift(int r) const { return ((u32)(u64)begin + r * (u32)apart) & (GRAIN - 1); }
    DG_DEVICE char* grain(int r, int shift) const { return begin + r * apart - shift; }
    // What is stored of a row.
    DG_DEVICE int from(int shift) const { return first ? shift : shift ? GRAIN : 0; }
    DG_DEVICE int to(int r, int shift) const {
        return r >= count ? 0 : last ? shift + bytes : STEP_N * C_BYTES + (shift ? GRAIN : 0);
    }
};

// A warp's piece to its buffer. Rows are an odd number of 16 bytes apart: those of a thread's fall on different banks.
DG_DEVICE void fill_rows(const Rows& rows, u32 buffer, const u32* words) {
    int lane = threadIdx.x % 32, row = lane / 4;
    int shifts[2] = {rows.shift(row), rows.shift(row + 8)};
    u32 place = buffer + row * C_PITCH + lane % 4 * (2 * C_BYTES);
    [[maybe_unused]] bool halves = ((u32)(u64)rows.begin | (u32)rows.apart) & 2;  // some begin within four bytes
#pragma unroll
    for (int i = 0; i < PIECE * 2; ++i) {
        u32 to = place + i / 2 * (8 * C_BYTES) + i % 2 * (8 * C_PITCH) + shifts[i % 2];
#if C_BYTES == 2
        if (halves) {
            store_shared(to, (unsigned short)words[i]);
            store_shared(to + 2, (unsigned short)(words[i] >> 16));
        } else {
            store_shared(to, words[i]);
        }
#else
        store_shared(to, words[2 * i]);
        store_shared(to + 4, words[2 * i + 1]);
#endif
    }
}

// What did not fill a grain goes before what comes next.
DG_DEVICE void carry_rows(u32 buffer) {
    constexpr int EACH = (16 * GRAIN_CHUNKS + 31) / 32;
    uint4 left[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        int at = threadIdx.x % 32 + i * 32;
        if (at < 16 * GRAIN_CHUNKS)
            left[i] = load_chunk(buffer + at / GRAIN_CHUNKS * C_PITCH + C_LINE + at % GRAIN_CHUNKS * 16);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        int at = threadIdx.x % 32 + i * 32;
        if (at < 16 * GRAIN_CHUNKS) store_shared(buffer + at / GRAIN_CHUNKS * C_PITCH + at % GRAIN_CHUNKS * 16, left[i]);
    }
}

// Bytes `at` to `end` of a chunk, as few numbers as they are.
DG_DEVICE void store_part(char* to, u32 from, int at, int end) {
#pragma unroll
    for (int up = 1; up >= 0; --up)
#pragma unroll
        for (int i = 1; i < 4; ++i) {
            int size = up ? 1 << i : 16 >> i;
            if (size < C_BYTES || at + size > end || (up && !(at & size) && size < 8)) continue;
            if (size == 8) *reinterpret_cast<u64*>(to + at) = load_shared<u64>(from + at);
            if (size == 4) *reinterpret_cast<u32*>(to + at) = load_shared<u32>(from + at);
            if (size == 2) *reinterpret_cast<unsigned short*>(to + at) = load_shared<unsigned short>(from + at);
            at += size;
        }
}

// COUNT chunks of each row, which the buffer holds from position `x` on. Lanes keep their chunk and go down the rows, all
// at once: what a store waits for is known long before.
template <int COUNT>
DG_DEVICE void store_chunks(const Rows& rows, u32 buffer, int x) {
    constexpr int LANES = COUNT > 16 ? 32 : COUNT > 8 ? 16 : COUNT > 4 ? 8 : COUNT > 2 ? 4 : 2;  // of a row
    constexpr int AT_ONCE = 32 / LANES;                                                          // rows
#pragma unroll
    for (int y = threadIdx.x % LANES * 16; y < COUNT * 16; y += LANES * 16) {
        int own = threadIdx.x % 32 / LANES, at = x + y, grain = at & -GRAIN;
        // Bytes from the tile's first column on, but for the shift, that are not before it and not beyond `most`.
        int least = rows.first ? at : grain, last = rows.last ? at + 16 : grain + C_BYTES;
        int most = rows.last ? rows.bytes : STEP_N * C_BYTES;
        const char* row = rows.begin + own * rows.apart;
        constexpr int TIMES = 16 / AT_ONCE, HELD = TIMES < 4 ? TIMES : 4;
#pragma unroll
        for (int i = 0; i < TIMES; i += HELD) {
            uint4 held[HELD];
#pragma unroll
            for (int j = 0; j < HELD; ++j) held[j] = load_chunk(buffer + (own + (i + j) * AT_ONCE) * C_PITCH + y);
#pragma unroll
            for (int j = 0; j < HELD; ++j, row += AT_ONCE * rows.apart) {
                int shift = (u32)(u64)row & (GRAIN - 1);
                if (least >= shift && last - shift <= most && own + (i + j) * AT_ONCE < rows.count)
                    *reinterpret_cast<uint4*>(((u64)row & -(u64)GRAIN) + at) = held[j];
            }
        }
    }
}

// What of a row's chunks between positions `x` and `end` it has in part, at its two ends: a lane each.
DG_DEVICE void store_ends(const Rows& rows, u32 buffer, int x, int end) {
    int r = threadIdx.x % 32 / 2, shift = rows.shift(r), from = rows.from(shift), to = rows.to(r, shift);
    bool second = threadIdx.x % 2;
    int at = second ? to : from, chunk = at & ~15;
    if (to == 0 || at == chunk || chunk < x || chunk >= end || (second && chunk < from && from % 16)) return;
    store_part(rows.grain(r, shift) + chunk, buffer + r * C_PITCH + chunk - x, max(from - chunk, 0), min(to - chunk, 16));
}

DG_DEVICE void store_lines(const Problem& p, const Piece& w, int row, acc_t (&sums)[CHUNKS * 4], u32 buffer) {
    constexpr int BESIDE = BN / 8 / PIECE;  // pieces
#pragma unroll 1
    for (int s = 0; s < PIECES; ++s) {
        int x = s % BESIDE * C_LINE;
        Rows rows(p, w, w.m + row + s / BESIDE * 64);
        if (x >= rows.bytes + GRAIN) continue;
        __syncwarp();  // all have read what was there
        if (x > 0) carry_rows(buffer);
        __syncwarp();
        Problem again = p;
        pin(again.alpha);  // nothing is done to all sums ahead: there are no registers for that
#pragma unroll
        for (int q = 0; q < PIECES; ++q) {  // sums are registers, which have no index: the rest is there once
            if (q != s) continue;
            u32 words[WORDS];
            pack(again, w, row, q, sums, words);
            fill_rows(rows, buffer, words);
        }
        __syncwarp();
        bool last = x + C_LINE == TILE_BYTES;
        store_chunks<ROW_CHUNKS>(rows, buffer, x);
        if (last) store_chunks<GRAIN_CHUNKS>(rows, buffer + C_LINE, TILE_BYTES);
        // Whole chunks have no ends, and what neighbours share they have whole.
        bool begins = x == 0 && rows.first, ends = rows.last && x + C_LINE + GRAIN > rows.bytes;
        bool parts = ((u32)(u64)rows.begin | (u32)rows.apart | (u32)rows.bytes) & 15;
        if (parts && (begins || ends)) store_ends(rows, buffer, x, x + C_LINE + last * GRAIN);
    }
}
