// 8-bit floats, stored by their bits and computed with as f32. f8e4m3 has no infinities: numbers beyond its largest,
// 448, become that. To nearest, ties to even.
typedef u8 f8e4m3;
typedef u8 f8e5m2;

#define SIGNED(x, bits) f32_of_bits((u32)((x) & 0x80) << 24 | (bits))

static inline f32 widen_f8e4m3(u8 x) {
    u32 size = x & 0x7f, normal = (size << 20) + (120u << 23);
    return SIGNED(x, size < 8 ? bits_of_f32((f32)size * 0x1p-9f) : size == 0x7f ? 0x7fc00000u : normal);
}

static inline f32 widen_f8e5m2(u8 x) {
    u32 size = x & 0x7f, normal = (size << 21) + (112u << 23);
    return SIGNED(x, size < 4 ? bits_of_f32((f32)size * 0x1p-16f) : size < 0x7c ? normal : size << 21 | 0x7f800000u);
}

// `top`: the largest number, or infinity; numbers below `least` are multiples of the last bit of `unit`.
#define NARROW(name, top, bias, dropped, least, unit)                                                         \
    static inline u8 narrow_##name(f32 x) {                                                                   \
        u32 bits = bits_of_f32(x), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;                        \
        if (size > 0x7f800000) return (u8)(sign | 0x7f);                                                      \
        if (size > top) size = top;                                                                           \
        if (size < least) return (u8)(sign | (bits_of_f32(f32_of_bits(size) + unit) - bits_of_f32(unit)));    \
        u32 rounded = (size + ((1u << (dropped - 1)) - 1) + (size >> dropped & 1)) >> dropped;                \
        return (u8)(sign | (rounded - (bias << (23 - dropped))));                                             \
    }
NARROW(f8e4m3, 0x43e00000u, 120u, 20, 0x3c800000u, 0x1p14f)
NARROW(f8e5m2, 0x47800000u, 112u, 21, 0x38800000u, 0x1p7f)

// By way of f16, for which processors have instructions: f8e5m2 is the upper half of one, f8e4m3 has another exponent.
#define EIGHT_BITS_VECTOR(lanes)                                                                          \
    static inline f32x##lanes widen_f8e4m3x##lanes(u8x##lanes x) {                                        \
        i16x##lanes all = i16_of_u8x##lanes(x), size = all & 0x7f, odd = (i16x##lanes)(size == 0x7f);     \
        i16x##lanes half = (all & 0x80) << 8 | size << 7 | (odd & 0x7c00);                                \
        return widen_f16x##lanes((u16x##lanes)half) * 0x1p8f;                                             \
    }                                                                                                     \
    static inline f32x##lanes widen_f8e5m2x##lanes(u8x##lanes x) {                                        \
        return widen_f16x##lanes((u16x##lanes)(i16_of_u8x##lanes(x) << 8));                               \
    }                                                                                                     \
    NARROW_VECTOR(f8e4m3, lanes, 0x43e00000, 120, 20, 0x3c800000, 0x1p14f, 0x46800000)                    \
    NARROW_VECTOR(f8e5m2, lanes, 0x47800000, 112, 21, 0x38800000, 0x1p7f, 0x43000000)
#define NARROW_VECTOR(name, lanes, top, bias, dropped, least, unit, unit_bits)                            \
    static inline u8x##lanes narrow_##name##x##lanes(f32x##lanes x) {                                     \
        f32x##lanes##_mask all = (f32x##lanes##_mask)x, size = all & 0x7fffffff, odd = x != x;            \
        f32x##lanes##_mask large = size > top, held = (large & top) | (~large & size), tiny = held < least; \
        f32x##lanes##_mask rounded = (held + ((1 << (dropped - 1)) - 1) + (held >> dropped & 1)) >> dropped; \
        f32x##lanes##_mask small = (f32x##lanes##_mask)((f32x##lanes)held + unit) - unit_bits;            \
        f32x##lanes##_mask out = (tiny & small) | (~tiny & (rounded - (bias << (23 - dropped))));         \
        out = (odd & 0x7f) | (~odd & out) | (all >> 24 & 0x80);                                           \
        return __builtin_convertvector(u16_of_i32x##lanes(out), u8x##lanes);                              \
    }
