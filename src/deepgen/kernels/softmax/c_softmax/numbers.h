// Vectors of the format that rows are added up in, what rows are stored in, and the exponential. Portable: GCC's vector
// extensions, of gcc and clang alike; 16-bit floats are read and written by their bits.
#include <stdint.h>
#include <string.h>

#if FORMAT == 64
typedef double num;
typedef int64_t whole;
#define FRACTION_BITS 52
#define EXPONENT_BIAS 1023
#define LOWEST -0x1.fffffffffffffp1023
#define LEAST_EXPONENT -708.3964185322641  // of what is still a normal number
#define LN2_HIGH 0x1.62e42fefa2p-1  // few enough digits that products with powers are exact
#define LN2_LOW 0x1.9ef35793c7673p-41
#define TERMS 13
#else
typedef float num;
typedef int32_t whole;
#define FRACTION_BITS 23
#define EXPONENT_BIAS 127
#define LOWEST -0x1.fffffep127f
#define LEAST_EXPONENT -87.33654f
#define LN2_HIGH 0x1.62e4p-1f
#define LN2_LOW 0x1.7f7d1cp-20f
#define TERMS 7
#endif

#if FORMAT == 64 || FORMAT == 32
typedef num stored;
#else
typedef uint16_t stored;  // FORMAT 16: f16; 17: bf16
#endif

#define LANES (VECTOR_BYTES / (int)sizeof(num))
typedef num vec __attribute__((vector_size(VECTOR_BYTES)));
typedef whole bits __attribute__((vector_size(VECTOR_BYTES)));
typedef stored stored_vec __attribute__((vector_size(VECTOR_BYTES / sizeof(num) * sizeof(stored))));

// A difference from zero is x itself for compilers, also of -0: lanes are filled as x is loaded.
static inline vec fill(num x) { return x - (vec){0}; }

static inline vec pick(bits where, vec yes, vec no) { return (vec)((where & (bits)yes) | (~where & (bits)no)); }

// A NaN in x is passed over: its exponential spoils the sum.
static inline vec larger(vec x, vec most) { return pick(x > most, x, most); }

#if FORMAT == 16
static inline vec widen(stored_vec x) {
    bits all = __builtin_convertvector(x, bits), size = (all & 0x7fff) << 13;
    bits odd = size >= 0x7c00 << 13;  // infinite, or no number
    // Scaling makes normal numbers of subnormal ones, too.
    return (vec)((bits)((vec)size * 0x1p112f) | (odd & 0x7f800000) | (all & 0x8000) << 16);
}

// Of numbers from 0 to 1, and NaN.
static inline stored_vec narrow(vec x) {
    bits all = (bits)x, normal = ((all + 0xfff + (all >> 13 & 1)) >> 13) - (112 << 10);
    bits small = (bits)(x + 0.5f) - (bits)fill(0.5f);  // the last bit of 0.5 is that of subnormal numbers
    bits odd = x != x, tiny = x < 0x1p-14f;
    return __builtin_convertvector((odd & 0x7e00) | (~odd & ((tiny & small) | (~tiny & normal))), stored_vec);
}
#elif FORMAT == 17
static inline vec widen(stored_vec x) { return (vec)(__builtin_convertvector(x, bits) << 16); }

static inline stored_vec narrow(vec x) {
    bits all = (bits)x, odd = x != x, rounded = (all + 0x7fff + (all >> 16 & 1)) >> 16;
    return __builtin_convertvector((odd & 0x7fc0) | (~odd & rounded), stored_vec);
}
#else
static inline vec widen(stored_vec x) { return x; }
static inline stored_vec narrow(vec x) { return x; }
#endif

static inline vec load(const stored *from) {
    stored_vec x;
    memcpy(&x, from, sizeof x);
    return widen(x);
}

// A vector of which `count` elements are there; the others are -inf, which adds nothing to a row.
static inline vec load_part(const stored *from, long count) {
    if (count >= LANES) return load(from);
    stored_vec x = {0};
    memcpy(&x, from, count * sizeof *from);
    vec wide = widen(x);
    for (long i = count; i < LANES; i++) wide[i] = -__builtin_inff();
    return wide;
}

static inline void store_part(stored *to, vec x, long count) {
    stored_vec out = narrow(x);
    if (count >= LANES)
        memcpy(to, &out, sizeof out);
    else
        memcpy(to, &out, count * sizeof *to);
}

// Of numbers up to 0, -inf and NaN: 2^n exp(r), where r is at most half of ln(2), by the series of exp(r). Off by at most
// two units in the last place; zero where the result would be no normal number.
static inline vec exponential(vec x) {
    const num rounder = (num)1.5 * ((whole)1 << FRACTION_BITS);  // added, it leaves n in the lowest bits
    vec shifted = x * (num)0x1.71547652b82fep0 + rounder, n = shifted - rounder;
    vec r = x - n * LN2_HIGH - n * LN2_LOW;
    static const num series[] = {1,        1,         1. / 2,     1. / 6,      1. / 24,      1. / 120,      1. / 720,
                                 1. / 5040, 1. / 40320, 1. / 362880, 1. / 3628800, 1. / 39916800, 1. / 479001600,
                                 1. / 6227020800};
    vec sum = fill(series[TERMS]);
    for (int i = TERMS - 1; i >= 0; i--) sum = sum * r + series[i];
    vec power = (vec)(((bits)shifted << FRACTION_BITS) + ((whole)EXPONENT_BIAS << FRACTION_BITS));
    return (vec)((bits)(sum * power) & ~(x < LEAST_EXPONENT));
}

static inline num largest_of(vec x) {
    num most = x[0];
    for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
    return most;
}

static inline num sum_of(vec x) {
    num sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}
