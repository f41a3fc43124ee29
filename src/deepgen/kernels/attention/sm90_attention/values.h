// V of 8-bit numbers, whose products want each column's keys next to each other: a launch of its own transposes V into tiles
// of BN keys as they are to lie in shared memory, where one copy each takes them.
//
// Of 16 keys in a row, bytes 4 t to 4 t + 3 are keys 2 t, 2 t + 1, 8 + 2 t and 9 + 2 t: weights of these are what thread t
// of the four that share a row has of the scores, and what it must have of the operand. So none moves between threads.
#pragma once
#include "rows.h"

// Bytes of a line: keys of a column. A tile has BN / V_LINE times DV of them, chunks of 16 swizzled.
constexpr int V_LINE = BN % 128 == 0 ? 128 : BN % 64 == 0 ? 64 : 32;

// Where 32 keys' begin.
DG_DEVICE constexpr int values_step(int i) { return i * 32 / V_LINE * (DV * V_LINE) + i * 32 % V_LINE; }

#if EIGHT
constexpr int TRANSPOSING = 256;  // threads

// A block transposes a tile. A thread takes four columns of 16 keys at a time.
extern "C" __global__ void __launch_bounds__(TRANSPOSING) values(
    const unsigned char* v, i64 v_row, i64 v_head, i64 v_batch, char* to, int heads, int keys, const int* lengths
) {
    extern __shared__ char memory[];
    next_may_begin();
    const u32 start = (shared_address(memory) + 1023) & ~1023u;
    const int tiles = (keys + BN - 1) / BN, of = blockIdx.x / tiles, tile = blockIdx.x - of * tiles;
    const int batch = of / heads, head = of - batch * heads;
    const int own = LENGTHS ? min(max(lengths[batch], 0), keys) : keys;  // others may be no numbers
    const unsigned char* from = v + batch * v_batch + head * v_head;
    for (int at = threadIdx.x; at < DV / 4 * (BN / 16); at += TRANSPOSING) {
        const int chunk = at / (DV / 4), column = (at - chunk * (DV / 4)) * 4, first = tile * BN + chunk * 16;
        u32 rows[16], transposed[4][4];
#pragma unroll
        for (int i = 0; i < 16; ++i)
            rows[i] = first + i < own ? *reinterpret_cast<const u32*>(from + (first + i) * v_row + column) : 0;
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            const u32 a = rows[2 * t], b = rows[2 * t + 1], c = rows[8 + 2 * t], d = rows[9 + 2 * t];
            const u32 low = __byte_perm(a, b, 0x5140), high = __byte_perm(a, b, 0x7362);
            const u32 low_after = __byte_perm(c, d, 0x5140), high_after = __byte_perm(c, d, 0x7362);
            transposed[0][t] = __byte_perm(low, low_after, 0x5410);
            transposed[1][t] = __byte_perm(low, low_after, 0x7632);
            transposed[2][t] = __byte_perm(high, high_after, 0x5410);
            transposed[3][t] = __byte_perm(high, high_after, 0x7632);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 place = values_step(chunk / 2) + chunk % 2 * 16 + (column + i) * V_LINE;
            store_shared(start + (place ^ (place >> 7 & (V_LINE / 16 - 1)) << 4),
                         uint4{transposed[i][0], transposed[i][1], transposed[i][2], transposed[i][3]});
        }
    }
    __syncthreads();
    to += (i64)blockIdx.x * V_BYTES;
    for (int at = threadIdx.x * 16; at < V_BYTES; at += TRANSPOSING * 16)
        *reinterpret_cast<uint4*>(to + at) = load_chunk(start + at);
}
#endif
