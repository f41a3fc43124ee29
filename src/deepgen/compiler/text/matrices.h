// Products of matrices by a warp, and loads of matrices from shared memory, as tensor cores have them.
#pragma once
#include "expressions.h"

#if defined(DG_EMULATE)
namespace emulate {

inline i64 conflicts = 0;  // rows of matrices that had to wait for another row's banks

inline void count_conflicts(const u32 (*rows)[8]) {
    for (int matrix = 0; matrix < 4; ++matrix) {
        bool taken[8] = {};
        for (int row = 0; row < 8; ++row) {
            const u32 at = rows[matrix * 8 + row][0];
            if (at % 16 != 0) fail("a row of a matrix is not aligned");
            conflicts += taken[at / 16 % 8];
            taken[at / 16 % 8] = true;
        }
    }
}

inline f64 number(u32 word, int n, f16) { return half_to_float({(u16)(word >> 16 * n)}); }
inline f64 number(u32 word, int n, bf16) { return float_of_bits((word >> 16 * n & 0xFFFF) << 16); }
inline f64 number(u32 word, int n, i8) { return (i8)(word >> 8 * n); }

// Lane 4 * g + t holds row g and row g + 8 of the first operand, column g of the second, words t and t + 4 of each.
template <typename T, typename SUM>
inline void multiply(SUM* d, const u32* a, const u32* b) {
    const u32 mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const u32(*all)[8] = exchange(mine, 6);
    const int lane = machine.thread % 32;
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4, column = lane % 4 * 2 + i % 2;
        f64 sum = 0;
        for (int word = 0; word < 8; ++word)
            for (int n = 0; n < 4 / (int)sizeof(T); ++n)
                sum += number(all[row * 4 + word % 4][i / 2 + word / 4 * 2], n, T()) *
                       number(all[column * 4 + word % 4][4 + word / 4], n, T());
        d[i] = (SUM)(d[i] + sum);
    }
}

}  // namespace emulate

DG_DEVICE void load_matrices(u32* to, u32 from) {
    const u32(*rows)[8] = emulate::exchange(&from, 1);
    const int lane = thread_id() % 32;
    if (lane == 0) emulate::count_conflicts(rows);
    for (int i = 0; i < 4; ++i) to[i] = load_shared<u32>(rows[8 * i + lane / 4][0] + lane % 4 * 4);
}
DG_DEVICE void load_matrices_turned(u32* to, u32 from) {
    const u32(*rows)[8] = emulate::exchange(&from, 1);
    const int lane = thread_id() % 32;
    if (lane == 0) emulate::count_conflicts(rows);
    for (int i = 0; i < 4; ++i) {
        const u32 low = load_shared<u16>(rows[8 * i + lane % 4 * 2][0] + lane / 4 * 2);
        const u32 high = load_shared<u16>(rows[8 * i + lane % 4 * 2 + 1][0] + lane / 4 * 2);
        to[i] = low | high << 16;
    }
}
#define DG_PRODUCT(name, SUM, T, k, instruction) \
    DG_DEVICE void name(SUM* d, const u32* a, const u32* b) { emulate::multiply<T>(d, a, b); }
#else
// Four matrices of eight rows of 16 bytes: lane 8 * i + r gives where row r of matrix i begins, and gets word `lane % 4`
// of row `lane / 4` of each; turned, the same of the columns of two-byte elements.
DG_DEVICE void load_matrices(u32* to, u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}
DG_DEVICE void load_matrices_turned(u32* to, u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}
#define DG_REGISTER_f32 "+f"
#define DG_REGISTER_i32 "+r"
#define DG_PRODUCT(name, SUM, T, k, instruction)                                                                        \
    DG_DEVICE void name(SUM* d, const u32* a, const u32* b) {                                                           \
        asm("mma.sync.aligned." instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"          \
                     : DG_REGISTER_##SUM(d[0]), DG_REGISTER_##SUM(d[1]), DG_REGISTER_##SUM(d[2]),                       \
                       DG_REGISTER_##SUM(d[3])                                                                          \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                               \
    }
#endif
