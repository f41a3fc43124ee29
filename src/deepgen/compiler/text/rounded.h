// Functions of f32 for results that are rounded to 16 bits.
#pragma once
#include "expressions.h"

// 1 + erf(x), as GELU has it, with a relative error of 1e-5, a 24th of what rounding to f16 adds: by a polynomial in
// t = 1 / (1 + 0.51 |x|) times exp(-x^2), which is 1 - erf(|x|). Two thirds of the instructions of erf for all uses.
DG_DEVICE f32 one_plus_erf_f32(f32 x) {
    const f32 size = abs_f32(x);
#if defined(DG_INSTRUCTIONS)
    f32 t, e;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(1 + 0.51f * size));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * x * -1.442695041f));
#else
    const f32 t = 1 / (1 + 0.51f * size), e = exp_f32(-(x * x));
#endif
    f32 y = -0.19269141f;
    y = y * t + 0.4911207f;
    y = y * t + 0.0918605f;
    y = y * t + 0.32543483f;
    y = y * t + 0.28426633f;
    const f32 beyond = y * t * e;
    return x < 0 ? beyond : 2 - beyond;
}

// By the chip's powers of two: with a relative error of 1e-7 and as much for each unit of x.
DG_DEVICE f32 exp_rounded_f32(f32 x) {
#if defined(DG_INSTRUCTIONS)
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.442695041f));
    return y;
#else
    return exp_f32(x);
#endif
}
DG_DEVICE f32 sigmoid_rounded_f32(f32 x) { return inverse_f32(1 + exp_rounded_f32(-x)); }
