// What decoding adds to the dialect: warps that meet by themselves, and powers of two.
#pragma once
#include "dialect_mma.h"

constexpr f32 LOG2_E = 1.4426950408889634f;
DG_DEVICE f32 infinity() { return float_of_bits(0x7F800000u); }

#if defined(DG_EMULATE)
// All warps of a block go through as many tiles: here they meet together, and every access is still checked.
DG_DEVICE void warp_barrier() { barrier(); }
DG_DEVICE f32 power_of_two(f32 x) { return std::exp2(x); }
DG_DEVICE f32 log_of_two(f32 x) { return std::log2(x); }
DG_DEVICE f32 reciprocal(f32 x) { return 1 / x; }
#else
DG_DEVICE void warp_barrier() { __syncwarp(); }
DG_DEVICE f32 power_of_two(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DG_DEVICE f32 log_of_two(f32 x) {
    f32 y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DG_DEVICE f32 reciprocal(f32 x) {
    f32 y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif
DG_DEVICE f32 larger(f32 a, f32 b) { return a > b ? a : b; }
DG_DEVICE int least(int a, int b) { return a < b ? a : b; }
DG_DEVICE int most_of(int a, int b) { return a > b ? a : b; }
