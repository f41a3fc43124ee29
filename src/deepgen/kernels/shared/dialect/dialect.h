// One dialect for CUDA, HIP and the emulation on a CPU. Every memory access, barrier and special instruction of the
// family goes through here, so that the emulation sees each of them. No other header is needed: a kernel without
// headers compiles in a fraction of a second.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
struct f16 { u16 bits; };
struct bf16 { u16 bits; };


// A few numbers that move as one.
template <typename T, int N>
struct alignas(sizeof(T) * N) Vec {
    T v[N];
};

template <int BYTES> struct Raw;  // what the hardware moves at once

#if defined(DG_EMULATE)
#include "emulate.h"
#elif defined(__HIP__)
#include "dialect_hip.h"
#elif defined(__CUDACC__)
#include "dialect_cuda.h"
#else
#error "compile this with NVRTC, nvcc, clang for HIP, or for a CPU with -DDG_EMULATE"
#endif

// Widening to the type that sums are kept in.
DG_DEVICE void widen(f32 x, f32& y) { y = x; }
DG_DEVICE void widen(f64 x, f64& y) { y = x; }
DG_DEVICE void widen(i32 x, i32& y) { y = x; }
DG_DEVICE void widen(i8 x, i32& y) { y = x; }
DG_DEVICE void widen(f32 x, f64& y) { y = x; }
DG_DEVICE void widen(f16 x, f32& y) { y = half_to_float(x); }
DG_DEVICE void widen(bf16 x, f32& y) { y = float_of_bits((u32)x.bits << 16); }

// Rounding a sum to the type that is stored.
DG_DEVICE void narrow(f32 x, f32& y) { y = x; }
DG_DEVICE void narrow(f64 x, f64& y) { y = x; }
DG_DEVICE void narrow(i32 x, i32& y) { y = x; }
DG_DEVICE void narrow(f64 x, f32& y) { y = (f32)x; }
DG_DEVICE void narrow(f32 x, f16& y) { y = float_to_half(x); }
DG_DEVICE void narrow(f32 x, bf16& y) {
    u32 bits = bits_of_float(x);
    u32 rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    y.bits = (bits & 0x7FFFFFFFu) > 0x7F800000u ? (u16)0x7FC0u : (u16)rounded;
}

DG_DEVICE f32 multiply_add(f32 a, f32 b, f32 c) { return fused(a, b, c); }
DG_DEVICE f64 multiply_add(f64 a, f64 b, f64 c) { return fused(a, b, c); }
DG_DEVICE i32 multiply_add(i32 a, i32 b, i32 c) { return (i32)((u32)a * (u32)b + (u32)c); }
