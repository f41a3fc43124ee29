// Products of matrices by four warps: each has sixteen rows of the first operand in registers, and all read the second
// one from shared memory, where lines of 128 bytes lie as `swizzled<3, 7>` puts them. They run on their own until they
// are waited for. LEADING is the distance in bytes between blocks of 64 columns where columns are neighbours in memory,
// and 0 where what is summed over is. Where the first operand lies in such lines too, APART is the distance between
// groups of eight of its rows.
#pragma once
#include "matrices.h"

#if defined(DG_EMULATE)
DG_DEVICE void writes_ready() {}
DG_DEVICE void products_begin() {}
DG_DEVICE void products_commit() {}
template <int PENDING>
DG_DEVICE void products_wait() {}
namespace emulate {

template <typename T, int COLUMNS, int LEADING, typename SUM>
inline void multiply_rows(SUM* d, const u32 (*rows)[4], u32 b) {
    if (b % 1024 >= 128) fail("the second operand does not begin with a line of its first rows");
    const int lane = machine.thread % 32;
    for (int column = lane % 4 * 2; column < COLUMNS; column += column % 2 ? 7 : 1) {
        f64 sums[2] = {};
        for (int at = 0; at < 32; at += (int)sizeof(T)) {  // bytes along what is summed over
            const int k = at / (int)sizeof(T);
            const u32 place = LEADING ? column / 64 * LEADING + k * 128 + column % 64 * 2 : column * 128 + at;
            const u32 bits = sizeof(T) == 1 ? (u32)load_shared<u8>(swizzled<3, 7>(b + place))
                                            : (u32)load_shared<u16>(swizzled<3, 7>(b + place));
            for (int half = 0; half < 2; ++half)
                sums[half] += number(rows[lane / 4 * 4 + at / 4 % 4][half + at / 16 * 2], k % (4 / (int)sizeof(T)), T()) *
                              number(bits, 0, T());
        }
        for (int half = 0; half < 2; ++half) {
            SUM& sum = d[column / 8 * 4 + half * 2 + column % 2];
            sum = (SUM)(sum + sums[half]);
        }
    }
}

template <typename T, int COLUMNS, int LEADING, typename SUM>
inline void multiply_wide(SUM* d, const u32* a, u32 b) {
    const u32(*all)[8] = exchange(a, 4);
    u32 rows[32][4];
    for (int lane = 0; lane < 32; ++lane)
        for (int word = 0; word < 4; ++word) rows[lane][word] = all[lane][word];
    multiply_rows<T, COLUMNS, LEADING>(d, rows, b);
}

template <typename T, int COLUMNS, int LEADING, int APART, typename SUM>
inline void multiply_lines(SUM* d, u32 a, u32 b) {
    if (a % 1024 >= 128) fail("the first operand does not begin with a line of its first rows");
    u32 rows[32][4];
    for (int lane = 0; lane < 32; ++lane)
        for (int word = 0; word < 4; ++word) {
            const int row = machine.thread / 32 % 4 * 16 + lane / 4 + word % 2 * 8;
            rows[lane][word] = load_shared<u32>(
                swizzled<3, 7>(a + row / 8 * APART + row % 8 * 128 + lane % 4 * 4 + word / 2 * 16));
        }
    multiply_rows<T, COLUMNS, LEADING>(d, rows, b);
}

}  // namespace emulate
#else
// Ordinary writes to shared memory become visible to the matrix units.
DG_DEVICE void writes_ready() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DG_DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DG_DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
DG_DEVICE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }
// Where the second operand is, the distances between its parts in 16 bytes, and that lines have 128 bytes.
DG_DEVICE u64 second_operand(u32 place, u32 leading) {
    return (u64)((place & 0x3FFFF) >> 4) | (u64)(leading ? leading >> 4 : 1) << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}
DG_DEVICE u64 first_operand(u32 place, u32 apart) {
    return (u64)((place & 0x3FFFF) >> 4) | 1ull << 16 | (u64)(apart >> 4) << 32 | 1ull << 62;
}
#endif
