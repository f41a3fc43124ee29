// Weights of 4 bits as pairs of f16 or bf16, exactly.
#pragma once
#include "dialect_mma.h"

// A number whose last four bits are a weight: 128 + q in bf16, 1024 + q in f16. Both halves of a word at once. f16 has
// place for a weight in the four bits before these too: 1024 + 16 q, a sixteenth of which is 64 + q.
template <typename T> struct Biased;
template <> struct Biased<bf16> { static constexpr u32 PAIR = 0x43004300u; };
template <> struct Biased<f16> { static constexpr u32 PAIR = 0x64006400u; };

#if defined(DG_EMULATE)
DG_DEVICE u32 biased(u32 word, u32 mask, u32 pair) { return (word & mask) | pair; }
DG_DEVICE u32 sixteenths_and_pairs(u32 a, u32 b) {
    Vec<f16, 2> x = bit_cast<Vec<f16, 2>>(a), y = bit_cast<Vec<f16, 2>>(b);
    for (int i = 0; i < 2; ++i) {
        f32 left, right;
        widen(x.v[i], left);
        widen(y.v[i], right);
        narrow(left / 16 + right, x.v[i]);
    }
    return bit_cast<u32>(x);
}
template <typename T>
DG_DEVICE u32 add_pairs(u32 a, u32 b) {
    Vec<T, 2> x = bit_cast<Vec<T, 2>>(a), y = bit_cast<Vec<T, 2>>(b);
    for (int i = 0; i < 2; ++i) {
        f32 left, right;
        widen(x.v[i], left);
        widen(y.v[i], right);
        narrow(left + right, x.v[i]);
    }
    return bit_cast<u32>(x);
}
#else
DG_DEVICE u32 biased(u32 word, u32 mask, u32 pair) {  // in one instruction, which compilers do not always find
    u32 both;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(both) : "r"(word), "r"(mask), "r"(pair));
    return both;
}
DG_DEVICE u32 sixteenths_and_pairs(u32 a, u32 b) {
    u32 sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(0x2C002C00u), "r"(b));
    return sum;
}
template <typename T> DG_DEVICE u32 add_pairs(u32 a, u32 b);
template <> DG_DEVICE u32 add_pairs<f16>(u32 a, u32 b) {
    u32 sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}
template <> DG_DEVICE u32 add_pairs<bf16>(u32 a, u32 b) {  // sm_80 adds bf16 only so
    u32 sum;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(0x3F803F80u), "r"(b));
    return sum;
}
#endif

// What is added to a biased weight to subtract its zero point: minus the bias and the point. `row`: of two.
template <typename T>
DG_DEVICE u32 minus_zero(u32 zero, int) { return Biased<T>::PAIR | 0x80008000u | zero | zero << 16; }
template <>
DG_DEVICE u32 minus_zero<f16>(u32 zero, int row) {
    return row == 0 ? 0xE400E400u | zero | zero << 16 : 0xD400D400u | zero << 4 | zero << 20;
}

// The first operand of a product from a lane's word: 16 rows, of which the lane has two, by 16 steps of K, of which it
// has four. `minus`: by row.
template <typename T>
DG_DEVICE void weights_of(u32 (&a)[4], u32 word, const u32 (&minus)[2]) {
    DG_UNROLL for (int i = 0; i < 4; ++i)
        a[i] = add_pairs<T>(biased(word >> 4 * i, 0x000F000Fu, Biased<T>::PAIR), minus[i % 2]);
}
template <>
DG_DEVICE void weights_of<f16>(u32 (&a)[4], u32 word, const u32 (&minus)[2]) {  // one shift, not three
    DG_UNROLL for (int i = 0; i < 4; i += 2) {
        const u32 two = word >> 4 * i;
        a[i] = add_pairs<f16>(biased(two, 0x000F000Fu, Biased<f16>::PAIR), minus[0]);
        a[i + 1] = sixteenths_and_pairs(biased(two, 0x00F000F0u, Biased<f16>::PAIR), minus[1]);
    }
}
