// What the references of expressions are written with: numbers in f64 or i64, and the errors that they may carry, as
// rounding.py has them. In C, in CUDA and HIP, and emulated on a CPU, where the emulation gives the dialect.

#if defined(DG_HOST)
#include <math.h>
#include <stdint.h>
typedef int8_t i8;
typedef uint8_t u8;
typedef int16_t i16;
typedef uint16_t u16;
typedef int32_t i32;
typedef uint32_t u32;
typedef int64_t i64;
typedef uint64_t u64;
typedef float f32;
typedef double f64;
#define DG_DEVICE static inline
#define LOAD(T, from, i) (((const T*)(from))[i])
#define STORE(T, to, i, x) (((T*)(to))[i] = (T)(x))
#define root sqrt
#define RESTRICT restrict
#else
#define RESTRICT __restrict__
#include "reference_device.h"
#define LOAD(T, from, i) load_global<T>((const T*)(from) + (i))
#define STORE(T, to, i, x) store_global<T>((T*)(to) + (i), (T)(x))
#define PART(T, place, lane) load_shared<T>(((place) * 256 + (lane)) * 8)
#define OTHER(T, place) PART(T, place, thread_id() + half)
#define KEEP(T, place, x) store_shared<T>(((place) * 256 + thread_id()) * 8, (x))
#endif

DG_DEVICE f64 real(i64 bits) {
    union { i64 bits; f64 value; } both;
    both.bits = bits;
    return both.value;
}
DG_DEVICE f32 single(u32 bits) {
    union { u32 bits; f32 value; } both;
    both.bits = bits;
    return both.value;
}
#define INFINITE real(0x7ff0000000000000ll)
#define LEAST (-0x7fffffffffffffffll - 1)
#define MOST 0x7fffffffffffffffll

// Formats as numbers. The digits of a narrow float are put where f32 has them, and the exponent is mended by a factor,
// which is exact for denormal numbers too.
DG_DEVICE f64 read_f64(const void* from, i64 i) { return LOAD(f64, from, i); }
DG_DEVICE f64 read_f32(const void* from, i64 i) { return LOAD(f32, from, i); }
DG_DEVICE f64 read_bf16(const void* from, i64 i) { return single((u32)LOAD(u16, from, i) << 16); }
DG_DEVICE f64 read_f16(const void* from, i64 i) {
    const u32 bits = LOAD(u16, from, i), size = bits & 0x7fff;
    const u32 sign = (bits & 0x8000) << 16;
    const f32 usual = single(size << 13) * 0x1p112f;
    return single(sign | 0x3f800000) * (size < 0x7c00 ? usual : single(0x7f800000 | (size & 0x3ff) << 13));
}
DG_DEVICE f64 read_f8e4m3(const void* from, i64 i) {
    const u32 bits = LOAD(u8, from, i), size = bits & 0x7f;
    return single((bits & 0x80) << 24 | 0x3f800000) * (size < 0x7f ? single(size << 20) * 0x1p120f : single(0x7fc00000));
}
DG_DEVICE f64 read_f8e5m2(const void* from, i64 i) {
    const u32 bits = LOAD(u8, from, i), size = bits & 0x7f;
    const f32 usual = single(size << 21) * 0x1p112f;
    return single((bits & 0x80) << 24 | 0x3f800000) * (size < 0x7c ? usual : single(0x7f800000 | (size & 3) << 21));
}
DG_DEVICE i64 read_i8(const void* from, i64 i) { return LOAD(i8, from, i); }
DG_DEVICE i64 read_u8(const void* from, i64 i) { return LOAD(u8, from, i); }
DG_DEVICE i64 read_i16(const void* from, i64 i) { return LOAD(i16, from, i); }
DG_DEVICE i64 read_i32(const void* from, i64 i) { return LOAD(i32, from, i); }
DG_DEVICE i64 read_i64(const void* from, i64 i) { return LOAD(i64, from, i); }

// Whole numbers: sums and products wrap around, quotients are rounded down.
DG_DEVICE i64 whole_add(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DG_DEVICE i64 whole_sub(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
DG_DEVICE i64 whole_mul(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
DG_DEVICE i64 whole_max(i64 a, i64 b) { return a > b ? a : b; }
DG_DEVICE i64 whole_min(i64 a, i64 b) { return a < b ? a : b; }
DG_DEVICE i64 whole_neg(i64 a) { return whole_sub(0, a); }
DG_DEVICE i64 whole_abs(i64 a) { return a < 0 ? whole_sub(0, a) : a; }
DG_DEVICE i64 whole_div(i64 a, i64 b) {
    if (b == 0) return a;
    if (b == -1) return whole_sub(0, a);
    const i64 quotient = a / b;
    return quotient - (a % b != 0 && (a < 0) != (b < 0));
}
DG_DEVICE i64 whole_mod(i64 a, i64 b) { return a - whole_div(a, b) * b; }
DG_DEVICE i64 inside(i64 a, i64 extent) { return a < 0 ? 0 : a < extent ? a : extent - 1; }

DG_DEVICE f64 size(f64 x) { return x < 0 ? -x : x; }
DG_DEVICE int is_finite(f64 x) { return x - x == 0; }
DG_DEVICE f64 own(f64 x) { return is_finite(x) ? size(x) : 0; }  // an infinity is not rounded
DG_DEVICE f64 rounded(f64 x, f64 steps, f64 largest) { return own(x) > largest ? INFINITE : steps * own(x); }
DG_DEVICE f64 maximum(f64 a, f64 b) { return a != a ? a : b != b ? b : a > b ? a : b; }
DG_DEVICE f64 minimum(f64 a, f64 b) { return a != a ? a : b != b ? b : a < b ? a : b; }
DG_DEVICE f64 chosen(f64 v, f64 a, f64 ea, f64 b, f64 eb) {
    return size(a - b) > ea + eb ? (v == a ? ea : eb) : maximum(ea, eb);
}
DG_DEVICE f64 of_quotient(f64 v, f64 ea, f64 b, f64 eb) { return (ea + size(v) * eb) / maximum(size(b) - eb, 0); }
DG_DEVICE f64 scale_of(f64 scale, f64 value, f64 most) {
    return !is_finite(value) ? 0 : is_finite(scale) ? minimum(scale, most) : most;
}
DG_DEVICE f64 fn_sqrt(f64 x) { return root(x); }
DG_DEVICE f64 fn_rsqrt(f64 x) { return 1 / root(x); }
DG_DEVICE f64 slope_sqrt(f64 x, f64 v, f64 e) { return minimum(v > 0 ? e / v : INFINITE, root(e)); }
DG_DEVICE f64 slope_rsqrt(f64 x, f64 v, f64 e) {  // 1 / root(x - e) - v, as rounding.py has it
    const f64 less = root(1 - minimum(e / x, 1));
    return e < x ? v * (e / x) / (less * (1 + less)) : INFINITE;
}

#if defined(__HIP__) || defined(DG_OWN)
// In HIP these would need a library of the vendor. A few steps of f64 off at most, but for large arguments of powers,
// sines and cosines.
DG_DEVICE f64 whole_part(f64 x) { return __builtin_floor(x); }
DG_DEVICE f64 power_of_two(i64 n) { return real((n + 1023) << 52); }
DG_DEVICE f64 dg_exp(f64 x) {
    if (!(x < 709.79)) return x != x ? x : INFINITE;
    if (x < -745.2) return 0;
    const f64 k = whole_part(x * 1.4426950408889634 + 0.5);
    const f64 r = x - k * 0x1.62e42fee00000p-1 - k * 0x1.a39ef35793c76p-33;
    f64 sum = 1;
    for (int n = 14; n > 0; --n) sum = 1 + sum * r / n;
    const i64 half = (i64)k / 2;
    return sum * power_of_two(half) * power_of_two((i64)k - half);
}
DG_DEVICE f64 dg_expm1(f64 x) {
    if (size(x) > 0.35) return dg_exp(x) - 1;
    f64 sum = 1;
    for (int n = 15; n > 1; --n) sum = 1 + sum * x / n;
    return sum * x;
}
DG_DEVICE f64 log_series(f64 s) {  // of (1 + s) / (1 - s)
    f64 sum = 0;
    for (int n = 27; n > 0; n -= 2) sum = sum * s * s + 1.0 / n;
    return 2 * s * sum;
}
DG_DEVICE f64 dg_log(f64 x) {
    if (!(x > 0)) return x == 0 ? -INFINITE : INFINITE - INFINITE;
    if (x == INFINITE) return x;
    union { f64 value; i64 bits; } both;
    both.value = x < 0x1p-1022 ? x * 0x1p54 : x;
    i64 k = (both.bits >> 52) - 1023 - (x < 0x1p-1022 ? 54 : 0);
    f64 m = real((both.bits & 0xfffffffffffffll) | 0x3ff0000000000000ll);
    if (m > 1.4142135623730951) m *= 0.5, k += 1;
    return k * 0x1.62e42fee00000p-1 + (log_series((m - 1) / (m + 1)) + k * 0x1.a39ef35793c76p-33);
}
DG_DEVICE f64 dg_log1p(f64 x) { return size(x) < 0.3 ? log_series(x / (2 + x)) : dg_log(1 + x); }
DG_DEVICE f64 dg_tanh(f64 x) {
    const f64 e = dg_expm1(2 * (size(x) < 20 ? size(x) : 20)), t = e / (e + 2);
    return x != x ? x : x < 0 ? -t : t;
}
DG_DEVICE f64 dg_erf(f64 x) {
    if (x != x) return x;
    const f64 a = size(x) < 6 ? size(x) : 6;
    f64 term = a, sum = a;
    for (int n = 1; n < 140 && term > sum * 0x1p-60; ++n) term *= 2 * a * a / (2 * n + 1), sum += term;
    const f64 value = 1.1283791670955126 * dg_exp(-a * a) * sum;
    return x < 0 ? -value : value;
}
DG_DEVICE f64 turned_sine(f64 x, int quarters) {
    const f64 k = whole_part(x * 0.6366197723675814 + 0.5);
    const f64 r = x - k * 0x1.921fb54400000p0 - k * 0x1.0b4611a600000p-34 - k * 0x1.3198a2e037073p-69;
    const int quarter = (int)(k - 4 * whole_part(k / 4)) + quarters;
    f64 sum = 1;
    for (int n = quarter & 1 ? 20 : 21; n > 1; n -= 2) sum = 1 - sum * r * r / (n * (n - 1));
    return (quarter & 2 ? -1 : 1) * (quarter & 1 ? sum : sum * r);
}
DG_DEVICE f64 dg_sin(f64 x) { return is_finite(x) ? turned_sine(x, 0) : x - x; }
DG_DEVICE f64 dg_cos(f64 x) { return is_finite(x) ? turned_sine(x, 1) : x - x; }
DG_DEVICE f64 dg_pow(f64 a, f64 b) {
    if (b == 0 || a == 1) return 1;
    const int whole = whole_part(b) == b, odd = whole && whole_part(b / 2) * 2 != b;
    const f64 of_size = dg_exp(b * dg_log(size(a)));
    return a < 0 && !whole && is_finite(a) ? INFINITE - INFINITE : a < 0 && odd ? -of_size : of_size;
}
#define floor whole_part
#define exp dg_exp
#define expm1 dg_expm1
#define log dg_log
#define log1p dg_log1p
#define tanh dg_tanh
#define erf dg_erf
#define sin dg_sin
#define cos dg_cos
#define pow dg_pow
#endif
DG_DEVICE f64 fn_exp(f64 x) { return exp(x); }
DG_DEVICE f64 fn_log(f64 x) { return log(x); }
DG_DEVICE f64 fn_tanh(f64 x) { return tanh(x); }
DG_DEVICE f64 fn_erf(f64 x) { return erf(x); }
DG_DEVICE f64 fn_sigmoid(f64 x) {
    const f64 e = exp(-size(x));
    return (x < 0 ? e : 1) / (1 + e);
}
DG_DEVICE f64 fn_sin(f64 x) { return sin(x); }
DG_DEVICE f64 fn_cos(f64 x) { return cos(x); }
DG_DEVICE f64 fn_pow(f64 a, f64 b) { return pow(a, b); }
DG_DEVICE f64 slope_log(f64 x, f64 v, f64 e) { return -log1p(-minimum(e / size(x), 1)); }
// Those that end at a limit: where errors are not small it is what they are at both ends.
DG_DEVICE f64 apart(f64 a, f64 b) { return a == b ? 0 : a - b; }
#define ENDING(FN, NEAR) \
    return e < 0.0078125 && is_finite(v) ? NEAR : maximum(apart(FN(x + e), v), apart(v, FN(x - e)))
DG_DEVICE f64 slope_exp(f64 x, f64 v, f64 e) { ENDING(fn_exp, v * expm1(e)); }
DG_DEVICE f64 slope_tanh(f64 x, f64 v, f64 e) { ENDING(fn_tanh, (1 - v * v) * e + 0.4 * e * e); }
DG_DEVICE f64 slope_erf(f64 x, f64 v, f64 e) { ENDING(fn_erf, 1.13 * exp(-x * x) * e + e * e); }
DG_DEVICE f64 slope_sigmoid(f64 x, f64 v, f64 e) { ENDING(fn_sigmoid, v * (1 - v) * e + 0.05 * e * e); }
DG_DEVICE f64 slope_sin(f64 x, f64 v, f64 e) { return minimum(size(cos(x)) * e + 0.5 * e * e, 1 + size(v)); }
DG_DEVICE f64 slope_cos(f64 x, f64 v, f64 e) { return minimum(size(sin(x)) * e + 0.5 * e * e, 1 + size(v)); }
DG_DEVICE f64 of_power(f64 a, f64 ea, f64 b, f64 eb, f64 v) {
    return size(v) * expm1(size(b) * ea / size(a) + size(log(size(a))) * eb);
}

#ifdef DG_HOST
// What compare.py does with results: how many of a range are out of tolerance, the first of them, and the largest error
// as a share of the tolerance. `kind`: the place of a format in _FORMATS of host_reference.py; whole numbers last.
#define FETCH(READ) for (i64 i = 0; i < count; ++i) x[i] = READ(got, start + i); break
#define EQUAL(READ) for (i64 i = 0; i < count; ++i) off[i] = READ(got, start + i) != read_i64(want, start + i); break
#define MEASURE(WANT, SCALE) for (i64 i = 0; i < count; ++i) { \
        r[i] = WANT(want, start + i); \
        allowed[i] = absolute * SCALE + relative * size(r[i]) + least; \
        off[i] = size(x[i] - r[i]); \
    }
i64 reference_compare(i64 first, i64 last, const void* got, i64 kind, const void* want, i64 narrow, const void* scale,
                      i64 each, i64 wide, f64 absolute, f64 relative, f64 largest, f64 least, f64* worst, i64* place) {
    i64 wrong = 0;
    f64 most = 0;
    const f64 alone = wide ? read_f64(scale, 0) : read_f32(scale, 0);
    for (i64 start = first; start < last; start += 512) {
        f64 x[512], r[512], allowed[512], off[512];
        const i64 count = last - start < 512 ? last - start : 512;
        switch (kind) {
            case 0: FETCH(read_f64);
            case 1: FETCH(read_f32);
            case 2: FETCH(read_f16);
            case 3: FETCH(read_bf16);
            case 4: FETCH(read_f8e4m3);
            case 5: FETCH(read_f8e5m2);
            case 6: EQUAL(read_i8);
            case 7: EQUAL(read_u8);
            case 8: EQUAL(read_i16);
            case 9: EQUAL(read_i32);
            default: EQUAL(read_i64);
        }
        if (kind >= 6) for (i64 i = 0; i < count; ++i) x[i] = r[i] = allowed[i] = 0;
        else if (narrow && each && !wide) MEASURE(read_f32, read_f32(scale, start + i))
        else if (each && !wide) MEASURE(read_f64, read_f32(scale, start + i))
        else if (each) MEASURE((narrow ? read_f32 : read_f64), read_f64(scale, start + i))
        else MEASURE((narrow ? read_f32 : read_f64), alone)
        // Divisions take most of the time, and only errors larger than all before need one.
        const f64 known = most < 1 ? most : 1;
        i64 larger = 0;
        for (i64 i = 0; i < count; ++i) larger += !(off[i] <= known * allowed[i]);
        for (i64 i = 0; larger && i < count; ++i) {
            f64 share = kind < 6 ? off[i] / allowed[i] : off[i] ? INFINITE : 0;
            if (kind < 6 && is_finite(r[i]) && allowed[i] >= largest) {
                share = 0;  // nothing is known of it
            } else if (kind < 6 && !is_finite(share)) {
                // Only equality is right where nothing is allowed; an infinity also for a sum that overflows.
                const int same = x[i] == r[i] || (x[i] != x[i] && r[i] != r[i]);
                const int over = size(x[i]) == INFINITE && (x[i] > 0 ? r[i] > 0 : r[i] < 0);
                share = same || (over && size(r[i]) + allowed[i] >= largest) ? 0 : INFINITE;
            }
            if (!(share <= 1) && !wrong++) *place = start + i;
            most = share > most ? share : most;
        }
    }
    *worst = most;
    return wrong;
}
#endif
