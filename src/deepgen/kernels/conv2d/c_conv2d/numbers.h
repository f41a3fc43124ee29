// Number formats: how each is stored, widened for sums and rounded back. By bits where a C compiler may lack the type.
#include <stdint.h>
#include <string.h>

typedef float f32;
typedef double f64;
typedef int8_t i8;
typedef int32_t i32;
typedef uint16_t f16;
typedef uint16_t bf16;

static inline f32 float_of_bits(uint32_t bits) {
    f32 x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline uint32_t bits_of_float(f32 x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline f32 widen_f32(f32 x) { return x; }
static inline f64 widen_f64(f64 x) { return x; }
static inline i32 widen_i8(i8 x) { return x; }
static inline f32 widen_bf16(bf16 x) { return float_of_bits((uint32_t)x << 16); }
static inline f32 widen_f16(f16 x) {
    uint32_t size = (x & 0x7fffu) << 13, sign = (x & 0x8000u) << 16;
    // The exponents differ by 112; multiplying also makes subnormal numbers normal. Inf and NaN keep the highest one.
    uint32_t wide = size >= 0x0f800000u ? size | 0x7f800000u : bits_of_float(float_of_bits(size) * 0x1p112f);
    return float_of_bits(wide | sign);
}

// To nearest, ties to even.
static inline f32 narrow_f32(f32 x) { return x; }
static inline f64 narrow_f64(f64 x) { return x; }
static inline i32 narrow_i32(i32 x) { return x; }
static inline bf16 narrow_bf16(f32 x) {
    uint32_t bits = bits_of_float(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;  // rounding the bits of a NaN could carry into infinity
    return (bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline f16 narrow_f16(f32 x) {
    uint32_t bits = bits_of_float(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return (f16)(sign | 0x7e00);
    if (size >= 0x477ff000u) return (f16)(sign | 0x7c00);  // 65520 and above round to infinity
    // Subnormal results: adding one half leaves steps of 2^-24, and the addition rounds.
    if (size < 0x38800000u) return (f16)(sign | (bits_of_float(float_of_bits(size) + 0.5f) - 0x3f000000u));
    return (f16)(sign | (((size + 0xfff + (size >> 13 & 1)) >> 13) - (112 << 10)));
}
