// Number formats of results, without any header: how they are widened, and how sums are rounded to them.
#pragma once
#include "hopper.h"

struct bf16 {
    unsigned short bits;
};
struct f16 {
    unsigned short bits;
};
typedef float f32;
typedef int i32;

DG_DEVICE float widen(bf16 x) { return __int_as_float((u32)x.bits << 16); }
DG_DEVICE float widen(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
DG_DEVICE float widen(f32 x) { return x; }
DG_DEVICE int widen(i32 x) { return x; }

// Two neighbours as they lie in memory.
template <class T>
struct Pair;
template <>
struct Pair<bf16> {
    u32 bits;
    DG_DEVICE Pair(float a, float b) { asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(b), "f"(a)); }
    DG_DEVICE bf16 first() const { return {(unsigned short)bits}; }
    DG_DEVICE bf16 second() const { return {(unsigned short)(bits >> 16)}; }
};
template <>
struct Pair<f16> {
    u32 bits;
    DG_DEVICE Pair(float a, float b) { asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(b), "f"(a)); }
    DG_DEVICE f16 first() const { return {(unsigned short)bits}; }
    DG_DEVICE f16 second() const { return {(unsigned short)(bits >> 16)}; }
};
template <>
struct alignas(8) Pair<f32> {
    float a, b;
    DG_DEVICE Pair(float a, float b) : a(a), b(b) {}
    DG_DEVICE float first() const { return a; }
    DG_DEVICE float second() const { return b; }
};
template <>
struct alignas(8) Pair<i32> {
    int a, b;
    DG_DEVICE Pair(int a, int b) : a(a), b(b) {}
    DG_DEVICE int first() const { return a; }
    DG_DEVICE int second() const { return b; }
};

DG_DEVICE u32 bits(float x) { return __float_as_uint(x); }
DG_DEVICE u32 bits(int x) { return (u32)x; }

// Sums travel through memory as four words, whatever they are.
DG_DEVICE float4 words(float a, float b, float c, float d) { return {a, b, c, d}; }
DG_DEVICE float4 words(int a, int b, int c, int d) {
    return {__int_as_float(a), __int_as_float(b), __int_as_float(c), __int_as_float(d)};
}
DG_DEVICE void add(float* sums, float4 v) { sums[0] += v.x, sums[1] += v.y, sums[2] += v.z, sums[3] += v.w; }
DG_DEVICE void add(int* sums, float4 v) {
    sums[0] += __float_as_int(v.x), sums[1] += __float_as_int(v.y);
    sums[2] += __float_as_int(v.z), sums[3] += __float_as_int(v.w);
}

// Keeps what comes later behind what was done to a sum so far, and the other way round.
DG_DEVICE void pin(float& sum) { asm volatile("" : "+f"(sum)::"memory"); }
DG_DEVICE void pin(int& sum) { asm volatile("" : "+r"(sum)::"memory"); }
DG_DEVICE void pin(u32& word) { asm volatile("" : "+r"(word)::"memory"); }
