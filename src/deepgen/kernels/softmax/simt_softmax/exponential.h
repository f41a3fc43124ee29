// What softmax adds to the dialect: the exponential, of numbers up to 0, -inf and NaN.
#pragma once
#include "dialect.h"

#if defined(DG_EMULATE)
DG_DEVICE f32 power_of_two(f32 x) { return std::exp2(x); }
#elif defined(__HIP__)
DG_DEVICE f32 power_of_two(f32 x) { return __builtin_amdgcn_exp2f(x); }
#else
DG_DEVICE f32 power_of_two(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

// By the chip's own instruction, which is good to two units in the last place.
DG_DEVICE f32 exponential(f32 x) { return power_of_two(x * 0x1.715476p0f); }

// By its series: 2^n exp(r), where r is at most half of ln(2). Zero where the result would be no normal number.
DG_DEVICE f64 exponential(f64 x) {
    constexpr f64 ROUNDER = 0x1.8p52;  // added, it leaves n in the lowest bits
    constexpr f64 SERIES[] = {1.,        1.,         1. / 2,      1. / 6,       1. / 24,       1. / 120,       1. / 720,
                              1. / 5040, 1. / 40320, 1. / 362880, 1. / 3628800, 1. / 39916800, 1. / 479001600,
                              1. / 6227020800};
    f64 shifted = fused(x, 0x1.71547652b82fep0, ROUNDER), n = shifted - ROUNDER;
    f64 r = fused(n, -0x1.9ef35793c7673p-41, fused(n, -0x1.62e42fefa2p-1, x));
    f64 sum = SERIES[13];
    DG_UNROLL for (int i = 12; i >= 0; --i) sum = fused(sum, r, SERIES[i]);
    f64 power = bit_cast<f64>((bit_cast<u64>(shifted) + 1023) << 52);
    return x < -708.3964185322641 ? 0. : sum * power;
}

DG_DEVICE f32 lowest(f32) { return -0x1.fffffep127f; }
DG_DEVICE f64 lowest(f64) { return -0x1.fffffffffffffp1023; }
