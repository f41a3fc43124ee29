// What kernels that come from Triton's IR have in common: numbers, reductions, atomic operations, threads.
#include <math.h>
#include <stdint.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cpu_pool.h"

// Who loads several kernels into one process lets all of them use the threads of the first.
void (*deepgen_pool_run)(int threads, pool_work work, void *job) = pool_run;

static inline int64_t within(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

// Whether `length` numbers from `number` on have remainders that go up by one each.
static inline int does_not_wrap(int64_t number, int64_t by, int64_t length) {
    return by > 0 && number >= 0 && number % by + length <= by;
}

// How many programs a thread draws at once: enough that drawing costs nothing, few enough that threads end together.
static inline long chunk(long all, long threads) {
    long each = all / (threads * 16);
    return each < 1 ? 1 : each > 64 ? 64 : each;
}

// Narrow floats are stored in types of their own and computed with as f32.
#if defined(__aarch64__)
typedef __fp16 f16_t;
static inline float widen_f16(f16_t x) { return x; }
static inline f16_t narrow_f16(float x) { return (f16_t)x; }
#elif defined(__clang__) && defined(__F16C__)
typedef _Float16 f16_t;
static inline float widen_f16(f16_t x) { return x; }
static inline f16_t narrow_f16(float x) { return (f16_t)x; }
#else
typedef struct { uint16_t bits; } f16_t;
static inline float widen_f16(f16_t x) {
    uint32_t size = (uint32_t)(x.bits & 0x7fff) << 13, odd = size >= 0x7c00u << 13 ? 0x7f800000u : 0, out;
    float scaled;
    memcpy(&scaled, &size, 4);
    scaled *= 0x1p112f;
    memcpy(&out, &scaled, 4);
    out |= odd | (uint32_t)(x.bits & 0x8000) << 16;
    memcpy(&scaled, &out, 4);
    return scaled;
}
static inline f16_t narrow_f16(float x) {
    uint32_t bits, sum;
    memcpy(&bits, &x, 4);
    uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    float tiny;
    memcpy(&tiny, &size, 4);
    tiny += 0.5f;  // whose last bit is that of subnormal numbers
    memcpy(&sum, &tiny, 4);
    uint32_t normal = ((size + 0xfff + (size >> 13 & 1)) >> 13) - (112 << 10);
    uint32_t out = size < 0x38800000 ? sum - 0x3f000000 : normal;
    out = size >= 0x477ff000 ? 0x7c00 : out;
    out = size > 0x7f800000 ? 0x7e00 : out;
    return (f16_t){(uint16_t)(sign | out)};
}
#endif
typedef struct { uint16_t bits; } bf16_t;
typedef struct { uint8_t bits; } e4m3_t;
typedef struct { uint8_t bits; } e5m2_t;

#define BITS(from, From, to, To)                     \
    static inline To bits_##from##_##to(From x) {    \
        To y;                                        \
        memcpy(&y, &x, sizeof y);                    \
        return y;                                    \
    }
BITS(f32, float, i32, int32_t)
BITS(i32, int32_t, f32, float)
BITS(f64, double, i64, int64_t)
BITS(i64, int64_t, f64, double)

static inline float widen_bf16(bf16_t x) { return bits_i32_f32((int32_t)((uint32_t)x.bits << 16)); }
static inline bf16_t narrow_bf16(float x) {
    uint32_t bits = (uint32_t)bits_f32_i32(x);
    return (bf16_t){x != x ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

static inline float widen_e5m2(e5m2_t x) {
    uint16_t half = (uint16_t)(x.bits << 8);
    f16_t out;
    memcpy(&out, &half, 2);
    return widen_f16(out);
}
static inline e5m2_t narrow_e5m2(float x) {
    uint32_t bits = (uint32_t)bits_f32_i32(x), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return (e5m2_t){0x7f};
    if (size >= 0x47700000) return (e5m2_t){(uint8_t)(sign | 0x7c)};
    if (size < 0x38800000)  // below 2^-14, in steps of 2^-16
        return (e5m2_t){(uint8_t)(sign | (uint32_t)(rintf(bits_i32_f32((int32_t)size) * 0x1p16f)))};
    return (e5m2_t){(uint8_t)(sign | (((size + 0xfffff + (size >> 21 & 1)) >> 21) - (112 << 2)))};
}
// What a conversion gives: infinity, and what is too large, become the largest number, as on GPUs.
static inline float saturated_e5m2(float x) { return fabsf(x) > 57344 ? copysignf(57344, x) : x; }
static inline float widen_e4m3(e4m3_t x) {
    uint32_t size = x.bits & 0x7f, sign = (uint32_t)(x.bits & 0x80) << 24;
    float out = size == 0x7f ? NAN : bits_i32_f32((int32_t)(size << 20)) * 0x1p120f;
    return bits_i32_f32((int32_t)((uint32_t)bits_f32_i32(out) | sign));
}
static inline e4m3_t narrow_e4m3(float x) {
    uint32_t bits = (uint32_t)bits_f32_i32(x), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return (e4m3_t){0x7f};
    if (size >= 0x43e80000) return (e4m3_t){(uint8_t)(sign | 0x7e)};  // the largest number: there is no infinity
    if (size < 0x3c800000)  // below 2^-6, in steps of 2^-9
        return (e4m3_t){(uint8_t)(sign | (uint32_t)(rintf(bits_i32_f32((int32_t)size) * 0x1p9f)))};
    return (e4m3_t){(uint8_t)(sign | (((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3)))};
}

// For scaled products: four bits, the lowest of x, and a scale that is a power of two.
static inline float widen_e2m1(int x) {
    float size = (x & 7) < 2 ? 0.5f * (x & 1) : bits_i32_f32(((x & 7) << 22) + (126 << 23));
    return x & 8 ? -size : size;
}
static inline float widen_e8m0(int8_t x) { return x == -1 ? NAN : bits_i32_f32((int32_t)(uint8_t)x << 23); }

#define ROUNDED(name)                                                                    \
    static inline float round_##name(float x) { return widen_##name(narrow_##name(x)); }
ROUNDED(f16)
ROUNDED(bf16)
ROUNDED(e4m3)
ROUNDED(e5m2)

#define NARROW_BITS(name, whole, Whole)                        \
    static inline Whole bits_##name##_##whole(float x) {       \
        name##_t stored = narrow_##name(x);                    \
        Whole out;                                             \
        memcpy(&out, &stored, sizeof out);                     \
        return out;                                            \
    }                                                          \
    static inline float bits_##whole##_##name(Whole x) {       \
        name##_t stored;                                       \
        memcpy(&stored, &x, sizeof x);                         \
        return widen_##name(stored);                           \
    }
NARROW_BITS(f16, i16, int16_t)
NARROW_BITS(bf16, i16, int16_t)
NARROW_BITS(e4m3, i8, int8_t)
NARROW_BITS(e5m2, i8, int8_t)
// Towards zero: what is nearest, or the number before that.
#define TOWARD_ZERO(name, whole)                                                             \
    static inline float toward_zero_##name(float x) {                                        \
        float y = round_##name(x);                                                           \
        return fabsf(y) > fabsf(x) ? bits_##whole##_##name(bits_##name##_##whole(y) - 1) : y; \
    }
TOWARD_ZERO(f16, i16)
TOWARD_ZERO(bf16, i16)
TOWARD_ZERO(e4m3, i8)
TOWARD_ZERO(e5m2, i8)
static inline float bits_f16_bf16(float x) { return bits_i16_bf16(bits_f16_i16(x)); }
static inline float bits_bf16_f16(float x) { return bits_i16_f16(bits_bf16_i16(x)); }

// A division by zero, which elements that a mask leaves out may ask for, must not end the process.
#define WHOLES(name, T)                                                                      \
    static inline T max_##name(T a, T b) { return a > b ? a : b; }                           \
    static inline T min_##name(T a, T b) { return a < b ? a : b; }                           \
    static inline T div_##name(T a, T b) { return b == 0 ? (T)0 : a / b; }                   \
    static inline T rem_##name(T a, T b) { return b == 0 ? a : a % b; }                      \
    static inline T ceildiv_##name(T a, T b) { return div_##name(a, b) + (rem_##name(a, b) != 0 && (a < 0) == (b < 0)); }
#define SIGNED(name, T, U)                                                                                         \
    static inline T max_##name(T a, T b) { return a > b ? a : b; }                                                 \
    static inline T min_##name(T a, T b) { return a < b ? a : b; }                                                 \
    static inline T div_##name(T a, T b) { return b == 0 ? (T)0 : b == -1 ? (T)(0 - (U)a) : (T)(a / b); }          \
    static inline T rem_##name(T a, T b) { return b == 0 ? a : b == -1 ? (T)0 : (T)(a % b); }                      \
    static inline T ceildiv_##name(T a, T b) { return div_##name(a, b) + (rem_##name(a, b) != 0 && (a < 0) == (b < 0)); } \
    static inline T floordiv_##name(T a, T b) { return div_##name(a, b) - (rem_##name(a, b) != 0 && (a < 0) != (b < 0)); } \
    static inline T abs_##name(T x) { return x < 0 ? (T)(0 - (U)x) : x; }                                          \
    static inline T ctpop_##name(T x) { return (T)__builtin_popcountll((uint64_t)(U)x); }                          \
    static inline T ctlz_##name(T x) {                                                                             \
        return x == 0 ? (T)(8 * sizeof(T)) : (T)(__builtin_clzll((uint64_t)(U)x) - (64 - 8 * (int)sizeof(T)));     \
    }
SIGNED(i8, int8_t, uint8_t)
SIGNED(i16, int16_t, uint16_t)
SIGNED(i32, int32_t, uint32_t)
SIGNED(i64, int64_t, uint64_t)
WHOLES(u8, uint8_t)
WHOLES(u16, uint16_t)
WHOLES(u32, uint32_t)
WHOLES(u64, uint64_t)
static inline _Bool max_u1(_Bool a, _Bool b) { return a | b; }
static inline _Bool min_u1(_Bool a, _Bool b) { return a & b; }
static inline _Bool max_i1(_Bool a, _Bool b) { return a & b; }
static inline _Bool min_i1(_Bool a, _Bool b) { return a | b; }
static inline uint32_t mulhi_u32(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }
static inline uint64_t mulhi_u64(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }

#include "tile_math.h"

// Vectors of the compiler's own, as wide as the registers.
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#elif defined(__riscv_v_min_vlen)
#define VECTOR_BYTES (__riscv_v_min_vlen / 8)
#else
#define VECTOR_BYTES 16
#endif
#define VECTOR(name, T, M)                                                                                  \
    typedef T v_##name __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(T)), may_alias));           \
    typedef M m_##name __attribute__((vector_size(VECTOR_BYTES)));                                          \
    static inline v_##name pick_##name(m_##name m, v_##name yes, v_##name no) {                             \
        return (v_##name)((m & (m_##name)yes) | (~m & (m_##name)no));                                       \
    }
VECTOR(f32, float, int32_t)
VECTOR(f64, double, int64_t)
VECTOR(i32, int32_t, int32_t)
VECTOR(i64, int64_t, int64_t)

// The elements of a row brought together, in four vectors side by side.
#define REDUCE(kind, name, T, first, vector, scalar)                             \
    static inline T reduce_##kind##_##name(const T *row, int64_t size) {         \
        enum { LANES = VECTOR_BYTES / sizeof(T) };                               \
        v_##name a[4];                                                           \
        T out = first;                                                           \
        int64_t n = 0;                                                           \
        for (int j = 0; j < 4; j++) a[j] = (v_##name){0} + (T)(first);           \
        for (; n + 4 * LANES <= size; n += 4 * LANES)                            \
            for (int j = 0; j < 4; j++) {                                        \
                v_##name y = a[j], x = *(const v_##name *)(row + n + j * LANES); \
                a[j] = vector;                                                   \
            }                                                                    \
        for (; n + LANES <= size; n += LANES) {                                  \
            v_##name y = a[0], x = *(const v_##name *)(row + n);                 \
            a[0] = vector;                                                       \
        }                                                                        \
        for (int j = 1; j < 4; j++) {                                            \
            v_##name y = a[0], x = a[j];                                         \
            a[0] = vector;                                                       \
        }                                                                        \
        for (int j = 0; j < LANES; j++) {                                        \
            T y = out, x = a[0][j];                                              \
            out = scalar;                                                        \
        }                                                                        \
        for (; n < size; n++) {                                                  \
            T y = out, x = row[n];                                               \
            out = scalar;                                                        \
        }                                                                        \
        return out;                                                              \
    }
#define SUMS(name, T)                            \
    REDUCE(add, name, T, 0, y + x, y + x)        \
    REDUCE(mul, name, T, 1, y * x, y * x)
#define FLOAT_ORDERS(name, T)                                                                                  \
    REDUCE(least_or_number, name, T, INFINITY, pick_##name(x < y, x, y), x < y ? x : y)                        \
    REDUCE(most_or_number, name, T, -INFINITY, pick_##name(x > y, x, y), x > y ? x : y)                        \
    REDUCE(maximum, name, T, -INFINITY, pick_##name((x > y) | (x != x), x, y), x > y || x != x ? x : y)        \
    REDUCE(minimum, name, T, INFINITY, pick_##name((x < y) | (x != x), x, y), x < y || x != x ? x : y)         \
    static inline T only_nans_##name(const T *row, int64_t size, T out) {                                      \
        for (int64_t n = 0; n < size; n++)                                                                     \
            if (row[n] == row[n]) return out;                                                                  \
        return NAN;                                                                                            \
    }                                                                                                          \
    static inline T reduce_maxnum_##name(const T *row, int64_t size) {                                         \
        T out = reduce_most_or_number_##name(row, size);                                                       \
        return out == -INFINITY ? only_nans_##name(row, size, out) : out;                                      \
    }                                                                                                          \
    static inline T reduce_minnum_##name(const T *row, int64_t size) {                                         \
        T out = reduce_least_or_number_##name(row, size);                                                      \
        return out == INFINITY ? only_nans_##name(row, size, out) : out;                                       \
    }
#define WHOLE_ORDERS(name, T, least, most)                                            \
    REDUCE(max, name, T, least, pick_##name(x > y, x, y), x > y ? x : y)              \
    REDUCE(min, name, T, most, pick_##name(x < y, x, y), x < y ? x : y)
SUMS(f32, float)
SUMS(f64, double)
SUMS(i32, int32_t)
SUMS(i64, int64_t)
FLOAT_ORDERS(f32, float)
FLOAT_ORDERS(f64, double)
WHOLE_ORDERS(i32, int32_t, INT32_MIN, INT32_MAX)
WHOLE_ORDERS(i64, int64_t, INT64_MIN, INT64_MAX)

#include "tile_atomics.h"
#include "tile_dot.h"
#include "tile_dot_narrow.h"
