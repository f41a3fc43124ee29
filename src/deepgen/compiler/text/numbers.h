// Numbers and vectors of numbers, in C with the compiler's own vectors (gcc, clang). 16-bit floats are stored by their
// bits and computed with as f32. Whole numbers wrap around.
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef float f32;
typedef double f64;
typedef uint8_t u8;
typedef int8_t i8;
typedef uint16_t u16;
typedef int16_t i16;
typedef uint32_t u32;
typedef int32_t i32;
typedef uint64_t u64;
typedef int64_t i64;
typedef u16 f16;   // as stored
typedef u16 bf16;  // as stored

// The C library's functions also set errno. Nothing here reads it, and what is the same for a whole row is computed once.
#define OF_NUMBERS_ALONE(name)                           \
    extern double name(double) __attribute__((const)); \
    extern float name##f(float) __attribute__((const));
OF_NUMBERS_ALONE(exp)
OF_NUMBERS_ALONE(log)
OF_NUMBERS_ALONE(sqrt)
OF_NUMBERS_ALONE(tanh)
OF_NUMBERS_ALONE(erf)
OF_NUMBERS_ALONE(sin)
OF_NUMBERS_ALONE(cos)

// Zero, in conditions. Where gcc before 14 knows which lanes of a masked load are wanted, it loads all of them if vectors
// have 16 or 32 bytes, also beyond the end of a tensor; so it must not know.
#if defined(__AVX512VL__) && !defined(__clang__) && __GNUC__ < 14
__attribute__((weak, visibility("hidden"))) i32 nought = 0;
#define NOUGHT nought
#else
#define NOUGHT 0
#endif

static inline i64 least(i64 a, i64 b) { return a < b ? a : b; }
static inline i64 quotient(i64 a, i64 by) { return a / by - (a % by < 0); }
static inline i64 remainder_of(i64 a, i64 by) { return a % by + (a % by < 0 ? by : 0); }

static inline f32 f32_of_bits(u32 bits) {
    f32 x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline u32 bits_of_f32(f32 x) {
    u32 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline f32 widen_bf16(bf16 x) { return f32_of_bits((u32)x << 16); }

static inline bf16 narrow_bf16(f32 x) {
    u32 bits = bits_of_f32(x);
    return x != x ? 0x7fc0 : (bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// By bits also where there is an instruction: compilers make vectors of these, but not of that.
static inline f32 widen_f16(f16 x) {
    u32 size = (u32)(x & 0x7fff) << 13, odd = size >= 0x7c00u << 13 ? 0x7f800000u : 0;
    return f32_of_bits(bits_of_f32(f32_of_bits(size) * 0x1p112f) | odd | (u32)(x & 0x8000) << 16);
}

static inline f16 narrow_f16(f32 x) {
    u32 bits = bits_of_f32(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return 0x7e00;
    if (size >= 0x477ff000) return (f16)(sign | 0x7c00);  // too large, rounded
    if (size < 0x38800000)  // the last bit of 0.5 is that of subnormal numbers
        return (f16)(sign | (bits_of_f32(f32_of_bits(size) + 0.5f) - bits_of_f32(0.5f)));
    return (f16)(sign | (((size + 0xfff + (size >> 13 & 1)) >> 13) - (112 << 10)));
}

#define FLOATS(T, suffix)                                                  \
    static inline T max_##T(T a, T b) { return a > b || a != a ? a : b; }  \
    static inline T min_##T(T a, T b) { return a < b || a != a ? a : b; }  \
    static inline T abs_##T(T x) { return fabs##suffix(x); }               \
    static inline T exp_##T(T x) { return exp##suffix(x); }                \
    static inline T log_##T(T x) { return log##suffix(x); }                \
    static inline T sqrt_##T(T x) { return sqrt##suffix(x); }              \
    static inline T rsqrt_##T(T x) { return 1 / sqrt##suffix(x); }         \
    static inline T tanh_##T(T x) { return tanh##suffix(x); }              \
    static inline T erf_##T(T x) { return erf##suffix(x); }                \
    static inline T sigmoid_##T(T x) { return 1 / (1 + exp##suffix(-x)); } \
    static inline T sin_##T(T x) { return sin##suffix(x); }                \
    static inline T cos_##T(T x) { return cos##suffix(x); }                \
    static inline T floor_##T(T x) { return floor##suffix(x); }            \
    static inline T pow_##T(T a, T b) { return pow##suffix(a, b); }

#define WHOLES(T, U)                                                   \
    static inline T add_##T(T a, T b) { return (T)((U)a + (U)b); }     \
    static inline T sub_##T(T a, T b) { return (T)((U)a - (U)b); }     \
    static inline T mul_##T(T a, T b) { return (T)((U)a * (U)b); }     \
    static inline T max_##T(T a, T b) { return a > b ? a : b; }        \
    static inline T min_##T(T a, T b) { return a < b ? a : b; }        \
    static inline T neg_##T(T x) { return (T)(0 - (U)x); }             \
    static inline T abs_##T(T x) { return x < 0 ? (T)(0 - (U)x) : x; } \
    static inline T floor_##T(T x) { return x; }                       \
    static inline T div_##T(T a, T b) { return (T)(a / b - (a % b != 0 && (a < 0) != (b < 0))); }

FLOATS(f32, f)
FLOATS(f64, )
WHOLES(i8, u32)
WHOLES(u8, u32)
WHOLES(i16, u32)
WHOLES(i32, u32)
WHOLES(i64, u64)

// All lanes of a vector as one number: its halves are joined until one lane is left. Additions lane by lane, each of
// which waits for the one before, would take as long as a row of a thousand numbers.
#define HALVED(T, JOIN, x, half, lanes)                                          \
    typedef T half##_type __attribute__((vector_size((lanes) / 2 * sizeof(T)))); \
    half##_type half##_both[2];                                                  \
    memcpy(half##_both, &x, sizeof half##_both);                                 \
    half##_type half = JOIN(half##_both[0], half##_both[1]);
#define FOLD_2(T, JOIN) HALVED(T, JOIN, x2, x1, 2)
#define FOLD_4(T, JOIN) HALVED(T, JOIN, x4, x2, 4) FOLD_2(T, JOIN)
#define FOLD_8(T, JOIN) HALVED(T, JOIN, x8, x4, 8) FOLD_4(T, JOIN)
#define FOLD_16(T, JOIN) HALVED(T, JOIN, x16, x8, 16) FOLD_8(T, JOIN)
#define FOLD_32(T, JOIN) HALVED(T, JOIN, x32, x16, 32) FOLD_16(T, JOIN)
#define FOLD_64(T, JOIN) HALVED(T, JOIN, x64, x32, 64) FOLD_32(T, JOIN)
#define FOLD_128(T, JOIN) HALVED(T, JOIN, x128, x64, 128) FOLD_64(T, JOIN)
#define JOIN_SUM(a, b) (a + b)
#define JOIN_PROD(a, b) (a * b)
#define JOIN_MOST(a, b) PICKED((a > b) | (a != a), a, b)
#define JOIN_LEAST(a, b) PICKED((a < b) | (a != a), a, b)
#define PICKED(mask, a, b)                                                                 \
    ({                                                                                     \
        __typeof__(mask) chosen = mask;                                                    \
        (__typeof__(a))((chosen & (__typeof__(mask))a) | (~chosen & (__typeof__(mask))b)); \
    })

// A vector of `lanes` numbers T, whose masks are whole numbers M of the same size; `_at` is one anywhere in memory.
#define VECTOR(T, M, lanes)                                                                                    \
    typedef T T##x##lanes __attribute__((vector_size(lanes * sizeof(T))));                                     \
    typedef T T##x##lanes##_at __attribute__((vector_size(lanes * sizeof(T)), aligned(sizeof(T)), may_alias)); \
    typedef M T##x##lanes##_mask __attribute__((vector_size(lanes * sizeof(T))));                              \
    static inline T##x##lanes all_##T##x##lanes(T x) { return x - (T##x##lanes){0}; }                          \
    static inline T##x##lanes at_##T##x##lanes(const T *p) { return *(const T##x##lanes##_at *)p; }            \
    static inline void put_##T##x##lanes(T *p, T##x##lanes x) { *(T##x##lanes##_at *)p = x; }                  \
    static inline T##x##lanes pick_##T##x##lanes(T##x##lanes##_mask m, T##x##lanes yes, T##x##lanes no) {      \
        return (T##x##lanes)((m & (T##x##lanes##_mask)yes) | (~m & (T##x##lanes##_mask)no));                   \
    }                                                                                                          \
    static inline T sum_##T##x##lanes(T##x##lanes x##lanes) {                                                  \
        FOLD_##lanes(T, JOIN_SUM) return x1[0];                                                                \
    }                                                                                                          \
    static inline T prod_##T##x##lanes(T##x##lanes x##lanes) {                                                 \
        FOLD_##lanes(T, JOIN_PROD) return x1[0];                                                               \
    }                                                                                                          \
    static inline T most_##T##x##lanes(T##x##lanes x##lanes) {                                                 \
        FOLD_##lanes(T, JOIN_MOST) return x1[0];                                                               \
    }                                                                                                          \
    static inline T least_##T##x##lanes(T##x##lanes x##lanes) {                                                \
        FOLD_##lanes(T, JOIN_LEAST) return x1[0];                                                              \
    }

#define EACH_LANE(V, lanes, name, scalar)                             \
    static inline V name##_##V(V x) {                                 \
        for (int n = 0; n < lanes; n++) x[n] = name##_##scalar(x[n]); \
        return x;                                                     \
    }
#define EACH_LANE_2(V, lanes, name, scalar)                                 \
    static inline V name##_##V(V a, V b) {                                  \
        for (int n = 0; n < lanes; n++) a[n] = name##_##scalar(a[n], b[n]); \
        return a;                                                           \
    }

#define FLOAT_VECTOR(T, M, lanes)                                               \
    VECTOR(T, M, lanes)                                                         \
    static inline T##x##lanes max_##T##x##lanes(T##x##lanes a, T##x##lanes b) { \
        return pick_##T##x##lanes((a > b) | (a != a), a, b);                    \
    }                                                                           \
    static inline T##x##lanes min_##T##x##lanes(T##x##lanes a, T##x##lanes b) { \
        return pick_##T##x##lanes((a < b) | (a != a), a, b);                    \
    }                                                                           \
    EACH_LANE(T##x##lanes, lanes, sqrt, T)                                      \
    EACH_LANE(T##x##lanes, lanes, rsqrt, T)                                     \
    EACH_LANE(T##x##lanes, lanes, floor, T)                                     \
    EACH_LANE_2(T##x##lanes, lanes, pow, T)

// What vector_math.h has for f32.
#define LANE_MATH(T, lanes)                   \
    EACH_LANE(T##x##lanes, lanes, abs, T)     \
    EACH_LANE(T##x##lanes, lanes, exp, T)     \
    EACH_LANE(T##x##lanes, lanes, log, T)     \
    EACH_LANE(T##x##lanes, lanes, tanh, T)    \
    EACH_LANE(T##x##lanes, lanes, erf, T)     \
    EACH_LANE(T##x##lanes, lanes, sigmoid, T) \
    EACH_LANE(T##x##lanes, lanes, sin, T)     \
    EACH_LANE(T##x##lanes, lanes, cos, T)

#define WHOLE_VECTOR(T, M, U, lanes)                                              \
    VECTOR(T, M, lanes)                                                           \
    typedef U T##x##lanes##_wrap __attribute__((vector_size(lanes * sizeof(T)))); \
    static inline T##x##lanes add_##T##x##lanes(T##x##lanes a, T##x##lanes b) {   \
        return (T##x##lanes)((T##x##lanes##_wrap)a + (T##x##lanes##_wrap)b);      \
    }                                                                             \
    static inline T##x##lanes sub_##T##x##lanes(T##x##lanes a, T##x##lanes b) {   \
        return (T##x##lanes)((T##x##lanes##_wrap)a - (T##x##lanes##_wrap)b);      \
    }                                                                             \
    static inline T##x##lanes mul_##T##x##lanes(T##x##lanes a, T##x##lanes b) {   \
        return (T##x##lanes)((T##x##lanes##_wrap)a * (T##x##lanes##_wrap)b);      \
    }                                                                             \
    static inline T##x##lanes max_##T##x##lanes(T##x##lanes a, T##x##lanes b) {   \
        return pick_##T##x##lanes(a > b, a, b);                                   \
    }                                                                             \
    static inline T##x##lanes min_##T##x##lanes(T##x##lanes a, T##x##lanes b) {   \
        return pick_##T##x##lanes(a < b, a, b);                                   \
    }                                                                             \
    EACH_LANE(T##x##lanes, lanes, neg, T)                                         \
    EACH_LANE(T##x##lanes, lanes, abs, T)                                         \
    EACH_LANE(T##x##lanes, lanes, floor, T)                                       \
    EACH_LANE_2(T##x##lanes, lanes, div, T)

// sums + a * b in 32 bits, of numbers a and b of 16 bits. x86 multiplies pairs of these and adds up each pair: the
// second of a pair is times zero.
#if defined(__AVX512VNNI__) && !defined(__clang__)
#define ADDED_16(sums, a, b) \
    __builtin_ia32_vpdpwssd_v16si(sums, i32_of_i16x16(a), i32_of_i16x16(b) & 0xffff)
#else
#define ADDED_16(sums, a, b) WIDENED(16, sums, a, b)
#endif
#define ADDED_2(sums, a, b) WIDENED(2, sums, a, b)
#define ADDED_4(sums, a, b) WIDENED(4, sums, a, b)
#define ADDED_8(sums, a, b) WIDENED(8, sums, a, b)
#define ADDED_32(sums, a, b) WIDENED(32, sums, a, b)
#define WIDENED(lanes, sums, a, b) add_i32x##lanes(sums, mul_i32x##lanes(i32_of_i16x##lanes(a), i32_of_i16x##lanes(b)))
#define ADD_PRODUCTS(lanes)                                                                              \
    static inline i32x##lanes add_products_i16x##lanes(i32x##lanes sums, i16x##lanes a, i16x##lanes b) { \
        return ADDED_##lanes(sums, a, b);                                                                \
    }

#define U16_VECTOR(lanes) typedef u16 u16x##lanes __attribute__((vector_size(lanes * 2)));

// Of and to f16: by the instruction for vectors of such a length, or by bits.
#define HALVES_BY_BITS(lanes)                                                                               \
    static inline f32x##lanes widen_f16x##lanes(u16x##lanes x) {                                            \
        f32x##lanes##_mask all = i32_of_u16x##lanes(x), size = (all & 0x7fff) << 13;                        \
        f32x##lanes##_mask odd = size >= 0x7c00 << 13;                                                      \
        return (f32x##lanes)((f32x##lanes##_mask)((f32x##lanes)size * 0x1p112f) | (odd & 0x7f800000) |      \
                             (all & 0x8000) << 16);                                                         \
    }                                                                                                       \
    static inline u16x##lanes narrow_f16x##lanes(f32x##lanes x) {                                           \
        f32x##lanes##_mask all = (f32x##lanes##_mask)x, sign = all >> 16 & 0x8000, size = all & 0x7fffffff; \
        f32x##lanes##_mask odd = x != x, large = size >= 0x477ff000, tiny = size < 0x38800000;              \
        f32x##lanes##_mask normal = ((size + 0xfff + (size >> 13 & 1)) >> 13) - (112 << 10);                \
        f32x##lanes##_mask small = (f32x##lanes##_mask)((f32x##lanes)size + 0.5f) - 0x3f000000;             \
        f32x##lanes##_mask out = (large & 0x7c00) | (~large & ((tiny & small) | (~tiny & normal)));         \
        return u16_of_i32x##lanes((odd & 0x7e00) | (~odd & (sign | out)));                                  \
    }
#ifdef __F16C__
typedef i16 halves_8 __attribute__((vector_size(16)));
typedef i16 halves_16 __attribute__((vector_size(32)));
#define HALVES_8                                                                                                  \
    static inline f32x8 widen_f16x8(u16x8 x) { return (f32x8)__builtin_ia32_vcvtph2ps256((halves_8)x); }       \
    static inline u16x8 narrow_f16x8(f32x8 x) { return (u16x8)__builtin_ia32_vcvtps2ph256(x, 0); }
#else
#define HALVES_8 HALVES_BY_BITS(8)
#endif
#ifdef __AVX512F__
#define HALVES_16                                                                                                 \
    static inline f32x16 widen_f16x16(u16x16 x) {                                                                 \
        return (f32x16)__builtin_ia32_vcvtph2ps512_mask((halves_16)x, (f32x16){0}, -1, 4);                     \
    }                                                                                                             \
    static inline u16x16 narrow_f16x16(f32x16 x) {                                                                \
        return (u16x16)__builtin_ia32_vcvtps2ph512_mask(x, 0, (halves_16){0}, -1);                             \
    }
#else
#define HALVES_16 HALVES_BY_BITS(16)
#endif
#define HALVES_2 HALVES_BY_BITS(2)
#define HALVES_4 HALVES_BY_BITS(4)
#define HALVES_32 HALVES_BY_BITS(32)
#define HALVES_64 HALVES_BY_BITS(64)
#define HALVES_128 HALVES_BY_BITS(128)

// Vectors of 16-bit floats in memory.
#define STORED_VECTOR(lanes)                                                                                \
    typedef u16 u16x##lanes##_at __attribute__((vector_size(lanes * 2), aligned(2), may_alias));            \
    static inline u16x##lanes at_u16x##lanes(const u16 *p) { return *(const u16x##lanes##_at *)p; }         \
    static inline void put_u16x##lanes(u16 *p, u16x##lanes x) { *(u16x##lanes##_at *)p = x; }               \
    static inline f32x##lanes widen_bf16x##lanes(u16x##lanes x) {                                           \
        return (f32x##lanes)(i32_of_u16x##lanes(x) << 16);                                                  \
    }                                                                                                       \
    static inline u16x##lanes narrow_bf16x##lanes(f32x##lanes x) {                                          \
        f32x##lanes##_mask all = (f32x##lanes##_mask)x, odd = x != x;                                       \
        f32x##lanes##_mask rounded = (all + 0x7fff + (all >> 16 & 1)) >> 16;                                \
        return u16_of_i32x##lanes((odd & 0x7fc0) | (~odd & rounded));                                       \
    }                                                                                                       \
    HALVES_##lanes
