// Where a line begins anywhere, a chunk of 16 bytes is taken out of two that are aligned.
#pragma once
#include "hopper.h"

// The 16 bytes from `shift` on, of 32.
DG_DEVICE uint4 shifted(uint4 a, uint4 b, u32 shift) {
    u32 w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = shift & 8 ? w[i + 2] : w[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = shift & 4 ? w[i + 1] : w[i];
    u32 bits = (shift & 3) * 8;
    return {__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits), __funnelshift_r(w[2], w[3], bits),
            __funnelshift_r(w[3], w[4], bits)};
}
