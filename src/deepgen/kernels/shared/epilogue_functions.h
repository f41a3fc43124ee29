// The functions of epilogues, in C, in CUDA and emulated: e^x and a quotient, and what is made of them. All but a few
// units in the last place exact where their argument is; what is wrong besides is less than the rounding of x itself.
#pragma once
#if defined(__CUDACC__)
#define EPI __device__ __forceinline__
#else
#define EPI static inline
#endif

#if defined(__CUDA_ARCH__)
// Each is one instruction and a product: what these functions make of tiny numbers is lost beside x.
EPI float epi_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
EPI float epi_exp_of(float x, float factor) { return epi_exp2(x * (factor * 1.4426950409f)); }
EPI float epi_exp(float x) { return __expf(x); }
EPI float epi_quotient(float a, float b) {  // 0 if b is beyond 2^126
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(b));
    return a * y;
}
#else
// 2^n times a polynomial of what is left; written so that compilers vectorise it.
EPI float epi_exp(float x) {
    const int over = x > 88.5f, odd = x != x;
    const float held = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    const float shifted = held * 1.442695041f + 12582912.0f;  // the last bits of which are the nearest whole number
    const float n = shifted - 12582912.0f;
    const float y = held - n * 0.693359375f + n * 2.12194440e-4f;
    const float p =
        1 + y * (1 + y * (0.5f + y * (0.16666667f + y * (0.041666668f + y * (0.0083333f + y * 0.0013888f)))));
    union { float value; unsigned bits; } from, to;
    from.value = shifted;
    to.bits = (from.bits << 23) + (127u << 23);
    return odd ? x : over ? __builtin_inff() : x < -87.0f ? 0 : p * to.value;
}
EPI float epi_exp_of(float x, float factor) { return epi_exp(x * factor); }
EPI float epi_exp2(float x) { return epi_exp(x * 0.6931471806f); }
EPI float epi_quotient(float a, float b) { return a / b; }
#endif

#if defined(__CUDACC__)
EPI float epi_abs(float x) { return fabsf(x); }
#else
EPI float epi_abs(float x) { return __builtin_fabsf(x); }
#endif
// What is not a number stays so.
EPI float epi_max(float a, float b) { return a > b || a != a ? a : b; }
EPI float epi_min(float a, float b) { return a < b || a != a ? a : b; }
EPI float epi_clamp(float x, float low, float high) { return epi_min(epi_max(x, low), high); }
EPI float epi_relu(float x) { return x < 0.0f ? 0.0f : x; }
EPI float epi_sigmoid(float x) { return epi_quotient(1.0f, 1.0f + epi_exp_of(x, -1.0f)); }
EPI float epi_silu(float x) { return epi_quotient(x, 1.0f + epi_exp_of(x, -1.0f)); }
EPI float epi_tanh(float x) {
    const float e = epi_exp_of(epi_abs(x), -2.0f), t = epi_quotient(1.0f - e, 1.0f + e);
    return x < 0.0f ? -t : t;
}
// x (1 + tanh u) / 2 is x / (1 + e^-2u).
EPI float epi_gelu_tanh(float x) {
    return epi_quotient(x, 1.0f + epi_exp_of(x * (1.0f + 0.044715f * x * x), -1.5957691216f));
}
// x (1 + erf(x / sqrt 2)) / 2. What erf lacks of 1 is e^-z^2 times a polynomial of 1 / (1 + 0.3275911 z), to 1.5e-7
// (Abramowitz and Stegun, 7.1.26).
EPI float epi_gelu(float x) {
    const float z = epi_abs(x) * 0.7071067812f, t = epi_quotient(1.0f, 1.0f + 0.3275911f * z);
    const float sum = t * (0.127414796f + t * (-0.142248368f + t * (0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f))));
    const float less = sum * epi_exp_of(x * x, -0.5f);
    return x < 0.0f ? x * less : x * (1.0f - less);
}
// For results that are rounded to 16 bits: of t = |x|, 2^p(t) is (1 - erf(t / sqrt 2)) / 2. One exponential and no
// quotient. Relative errors up to |x| = 6 are below 2^-10 (5 terms) and 2^-16 (7).
EPI float epi_gelu_bf16(float x) {
    const float t = epi_abs(x);
    const float less = epi_exp2(
        -1.00048974f + t * (-1.14483609f + t * (-0.472084680f + t * (-0.0432156052f + t * (0.00455098659f + t * -0.000207917502f)))));
    return x * (x < 0.0f ? less : 1.0f - less);
}
EPI float epi_gelu_f16(float x) {
    const float t = epi_abs(x);
    const float less = epi_exp2(
        -0.999995320f + t * (-1.15125048f + t * (-0.458466473f + t * (-0.0539572659f + t * (0.00850614508f +
        t * (-0.000929981641f + t * (6.15164652e-05f + t * -1.83007072e-06f)))))));
    return x * (x < 0.0f ? less : 1.0f - less);
}

// f8e4m3: to the nearest, ties to even; beyond 448 it is 448.
EPI unsigned char epi_f8e4m3(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    unsigned short both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(x));
    return (unsigned char)both;
#else
    union { float value; unsigned bits; } from, tiny;
    from.value = x;
    const unsigned sign = from.bits >> 24 & 0x80;
    from.bits &= 0x7fffffff;
    tiny.value = from.value * 512.0f + 8388608.0f;
    const unsigned usual = ((from.bits + 0x7ffff + (from.bits >> 20 & 1)) >> 20) - (120 << 3);
    const unsigned code = from.value < 0.015625f ? tiny.bits & 0xff : from.value >= 448.0f ? 0x7e : usual;
    return (unsigned char)(sign | (x != x ? 0x7f : code));
#endif
}
