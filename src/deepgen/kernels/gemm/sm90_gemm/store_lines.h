// Rows of C that begin anywhere, which the copy engine cannot take, from a warp's buffer to memory: whole chunks of 16
// bytes of memory, and what is left of a row at both ends.
#pragma once
#include "epilogue.h"
#include "shifted.h"

constexpr int ROW_CHUNKS = C_LINE / 16 + 1;  // of memory that a row of a piece lies in

// A warp's piece to its buffer. Rows are an odd number of 16 bytes apart: those of a thread's fall on different banks.
DG_DEVICE void fill_rows(u32 buffer, const u32* words) {
    int lane = threadIdx.x % 32;
    u32 place = buffer + lane / 4 * C_PITCH + lane % 4 * (2 * C_BYTES);
#pragma unroll
    for (int i = 0; i < PIECE * 2; ++i) {
        u32 to = place + i / 2 * (8 * C_BYTES) + i % 2 * (8 * C_PITCH);
#if C_BYTES == 2
        store_shared(to, words[i]);
#else
        store_shared(to, words[2 * i], words[2 * i + 1]);
#endif
    }
}

// Bytes `from` to `to` of a chunk.
DG_DEVICE void store_part(char* chunk, uint4 v, int from, int to) {
    u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 16; i += C_BYTES) {
        if (i < from || i >= to) continue;
#if C_BYTES == 2
        *reinterpret_cast<unsigned short*>(chunk + i) = (unsigned short)(w[i / 4] >> i % 4 * 8);
#else
        *reinterpret_cast<u32*>(chunk + i) = w[i / 4];
#endif
    }
}

// Where a row of a piece lies.
struct Row {
    char* to;        // in memory: the chunk that it begins in
    u32 from, skip;  // its buffer; bytes of that chunk before it
    int end;         // bytes from that chunk on to its end

    DG_DEVICE Row(const Problem& p, const Piece& w, int row, int column, u32 buffer, int r) {
        char* begin = reinterpret_cast<char*>(p.c + w.batch * p.stride_c + (i64)(row + r) * p.ldc + column);
        skip = (u64)begin & 15;
        to = begin - skip;
        from = buffer + r * C_PITCH;
        int bytes = min(p.n - column, C_LINE / C_BYTES) * C_BYTES;
        end = row + r < p.m && bytes > 0 ? (int)skip + bytes : 0;
    }
    // Chunk i as it is to lie in memory; what lies outside of the row may be anything.
    DG_DEVICE uint4 chunk(int i) const {
        uint4 here = load_chunk(from + min(i, C_LINE / 16 - 1) * 16);
        return skip ? shifted(load_chunk(from + max(i - 1, 0) * 16), here, 16 - skip) : here;
    }
};

DG_DEVICE void store_lines(const Problem& p, const Piece& w, int row, const acc_t (&sums)[CHUNKS * 4], u32 buffer) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < PIECES; ++s) {
        u32 words[WORDS];
        int first = w.m + row + s * PIECE / (BN / 8) * 64, column = w.n + s * PIECE % (BN / 8) * 8;
        pack(p, w, row, s, sums, words);
        __syncwarp();  // all have read what was there
        fill_rows(buffer, words);
        __syncwarp();
#pragma unroll 2
        for (int i = lane; i < 16 * ROW_CHUNKS; i += 32) {
            Row own(p, w, first, column, buffer, i / ROW_CHUNKS);
            int chunk = i % ROW_CHUNKS;
            if ((chunk > 0 || own.skip == 0) && chunk * 16 + 16 <= own.end)
                *reinterpret_cast<uint4*>(own.to + chunk * 16) = own.chunk(chunk);
        }
        // A row's two ends: a lane each.
        Row own(p, w, first, column, buffer, lane / 2);
        int last = own.end / 16;
        if (lane % 2 == 0 && own.skip > 0 && own.end > 0) store_part(own.to, own.chunk(0), own.skip, own.end);
        if (lane % 2 == 1 && own.end % 16 && (last > 0 || own.skip == 0))
            store_part(own.to + last * 16, own.chunk(last), 0, own.end % 16);
    }
}
