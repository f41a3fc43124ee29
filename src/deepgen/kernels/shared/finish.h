// From sums to C: alpha, scales, beta * C, bias, activation and the conversion to C's dtype, a row at a time.
#ifndef C_TYPE  // 0: f32, 1: bf16, 2: i32
#define C_TYPE 0
#endif
#ifndef BIAS  // 1: one number a column, in C's dtype
#define BIAS 0
#endif
#ifndef SCALES  // 0: none, 1: one number, 2: one a row, 3: one a column
#define SCALES 0
#endif
#ifndef ACTIVATION  // 0: none, 1: relu, 2: gelu (tanh form), 3: silu
#define ACTIVATION 0
#endif

#if EPILOGUE
#include "epilogue_text.h"
#endif
#if defined(__clang__)
#define UNROLLED_BY_4 _Pragma("unroll 4")
#else
#define UNROLLED_BY_4 _Pragma("GCC unroll 4")
#endif

#if BF16
typedef float sum;
#else
typedef int32_t sum;
#endif
#if C_TYPE == 0
typedef float number;
typedef float result_number;
#elif C_TYPE == 1
typedef uint16_t number;
typedef float result_number;
#else
typedef int32_t number;
typedef int32_t result_number;
#endif

typedef struct {
    number *c;
    long ldc;
    float alpha, beta;
    const number *bias;   // of the first column
    const float *scales;  // of the first row or column
#if EPILOGUE
    operands more;
    long matrix, row, column;  // of the batch; of the first number of c
#endif
} result;

// What asks for nothing but the sums themselves can be stored without a second look.
#if EPILOGUE
static inline int is_plain(const result *r) { return 0; }
#else
static inline int is_plain(const result *r) { return r->alpha == 1 && r->beta == 0 && !BIAS && !SCALES && !ACTIVATION; }
#endif

#if C_TYPE == 1
static inline float wide(number x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}
static inline number narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
#else
static inline result_number wide(number x) { return x; }
static inline number narrow(result_number x) { return x; }
#endif

#if ACTIVATION > 1
// 2^n times a polynomial of what is left, to f32's precision; written so that compilers vectorise it.
static inline float exponential(float x) {
    int over = x > 88;  // infinite then, so that minus infinity by it is no number
    x = x < -87 ? -87 : x > 88 ? 88 : x;
    float n = x * 1.442695041f + 12582912.f;  // the last bits of which are the nearest whole number
    uint32_t bits;
    memcpy(&bits, &n, 4);
    n -= 12582912.f;
    float y = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1 + y * (1 + y * (0.5f + y * (0.16666667f + y * (0.041666668f + y * (0.0083333f + y * 0.0013888f)))));
    bits = (bits << 23) + (127u << 23);
    float power;
    memcpy(&power, &bits, 4);
    return over ? __builtin_inff() : p * power;
}
#endif

static inline result_number activate(result_number x) {
#if ACTIVATION == 1
    return x < 0 ? 0 : x;
#elif ACTIVATION == 2
    float inner = 1.5957691f * (x + 0.044715f * x * x * x);  // half of 1 + tanh(y) is 1 / (1 + exp(-2y))
    return x / (1 + exponential(-inner));
#elif ACTIVATION == 3
    return x / (1 + exponential(-x));
#else
    return x;
#endif
}

// One row of C from one row of sums; (row, column) is its place in C.
static void finish_row(const sum *from, long columns, long row, long column, const result *r) {
    number *c = r->c + row * r->ldc + column;
#if EPILOGUE
    for (long j = 0; j < columns; j += 64) {
        const long some = columns - j < 64 ? columns - j : 64;
        float x[64];
        for (long i = 0; i < some; i++) x[i] = r->alpha * (float)from[j + i];
        apply_epilogue(&r->more, r->matrix, r->row + row, r->column + column + j, some, x);
        for (long i = 0; i < some; i++) c[j + i] = narrow(x[i]);
    }
#else
    const result_number alpha = (result_number)r->alpha, beta = (result_number)r->beta;
    for (long j = 0; j < columns; j++) {
        result_number x = alpha * (result_number)from[j];
        if (SCALES) x *= (result_number)r->scales[SCALES == 1 ? 0 : SCALES == 2 ? row : column + j];
        if (beta != 0) x += beta * wide(c[j]);  // a C that is not asked for may hold anything, NaN too
        if (BIAS) x += wide(r->bias[column + j]);
        c[j] = narrow(activate(x));
    }
#endif
}

// Sums whose rows lie `step` bytes apart.
static void finish_rows(const char *from, long step, long rows, long columns, long row, long column, const result *r) {
#if defined(__AVX512BF16__) && defined(__AVX512BW__) && BF16 && C_TYPE == 1
    if (is_plain(r)) {
        number *c = r->c + row * r->ldc + column;
        if (columns == 32) {
            UNROLLED_BY_4 for (long i = 0; i < rows; i++, from += step, c += r->ldc) {
                const float *s = (const float *)from;
                _mm512_storeu_si512(c, (__m512i)_mm512_cvtne2ps_pbh(load(s + 16), load(s)));
            }
            return;
        }
        for (long i = 0; i < rows; i++, from += step, c += r->ldc)
            for (long j = 0; j < columns; j += 16) {
                __mmask16 some = columns - j >= 16 ? 0xffff : (1u << (columns - j)) - 1;
                _mm256_mask_storeu_epi16(c + j, some, (__m256i)_mm512_cvtneps_pbh(load((const float *)from + j)));
            }
        return;
    }
#endif
    for (long i = 0; i < rows; i++) finish_row((const sum *)(from + i * step), columns, row + i, column, r);
}
