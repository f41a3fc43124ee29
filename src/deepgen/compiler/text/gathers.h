// Runs of elements that lie apart, as a thread loads them to turn a part of a tensor.
#pragma once
#include "expressions.h"

// N elements of two bytes, each APART elements after the one before; zeros where they are not real, and nothing is read.
// Without a branch: what stands in one is waited for before the next begins.
template <typename T, int N>
DG_DEVICE Vec<T, N> gathered(const T* from, int apart, bool real) {
    Vec<T, N> to{};
#if defined(DG_EMULATE) || defined(__HIP__)
    if (real)
        for (int i = 0; i < N; ++i) to.v[i] = load_plain<T>(from + i * (i64)apart);
#else
    DG_UNROLL for (int i = 0; i < N; ++i) {
        u16 bits = 0;
        asm volatile("{\n.reg .pred real;\nsetp.ne.u32 real, %2, 0;\n@real ld.global.u16 %0, [%1];\n}"
            : "+h"(bits) : "l"(from + i * (i64)apart), "r"((u32)real));
        to.v[i] = bit_cast<T>(bits);
    }
#endif
    return to;
}
