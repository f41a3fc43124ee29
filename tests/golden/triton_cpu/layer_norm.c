// layer_norm, from Triton's IR of it.
#include "tile.h"

typedef struct {
    float * a0;
    float * a1;
    float * a2;
    float * a3;
    int32_t a4;
    float a5;
    int32_t programs[3];
    char *scratch;
    long all, each;     // programs, and how many are drawn at once
    _Atomic long next;  // to draw
} deepgen_triton_job;

static void deepgen_triton_program(const deepgen_triton_job *given, const int32_t *program, char *scratch) {
    float *const a0 = given->a0;
    float *const a1 = given->a1;
    float *const a2 = given->a2;
    float *const a3 = given->a3;
    const int32_t a4 = given->a4;
    const float a5 = given->a5;
    const int32_t *programs = given->programs;
    const int64_t s1 = (int64_t)program[0];
    const int64_t s2 = (int64_t)a4;
    const int64_t s3 = (int64_t)((uint64_t)s1 * (uint64_t)s2);
    float *const s4 = a1 + s3;
    float b5[256] __attribute__((aligned(64)));
#pragma omp simd
    for (int64_t i6 = 0; i6 < 256; i6++) {
        b5[i6] = 0x0.0p+0f;
    }
    for (int32_t k7 = (int32_t)0; k7 < a4; k7 += (int32_t)256) {
        float *const s8 = s4 + k7;
        const int32_t t10 = (int32_t)((uint32_t)k7 + (uint32_t)(int32_t)0);
        const int64_t t11 = within((int64_t)a4 - t10 + 0, 0, 256);
        float *const t13 = s8 + (int32_t)0;
#pragma omp simd
        for (int64_t i9 = 0; i9 < t11; i9++) {
            const float t12 = b5[i9];
            const float t14 = t13[i9];
            const float t15 = t12 + t14;
            b5[i9] = t15;
        }
        const int32_t t17 = (int32_t)((uint32_t)k7 + (uint32_t)(int32_t)0);
        const int64_t t18 = within((int64_t)a4 - t17 + 0, 0, 256);
#pragma omp simd
        for (int64_t i16 = t18; i16 < 256; i16++) {
            const float t19 = b5[i16];
            const float t20 = t19 + 0x0.0p+0f;
            b5[i16] = t20;
        }
    }
    float v21;
    {
        v21 = reduce_add_f32(b5, 256);
    }
    const float s22 = (float)(int32_t)a4;
    const float s23 = v21 / s22;
    float b24[256] __attribute__((aligned(64)));
#pragma omp simd
    for (int64_t i25 = 0; i25 < 256; i25++) {
        b24[i25] = 0x0.0p+0f;
    }
    for (int32_t k26 = (int32_t)0; k26 < a4; k26 += (int32_t)256) {
        float *const s27 = s4 + k26;
        const int32_t t29 = (int32_t)((uint32_t)k26 + (uint32_t)(int32_t)0);
        const int64_t t30 = within((int64_t)a4 - t29 + 0, 0, 256);
        float *const t32 = s27 + (int32_t)0;
#pragma omp simd
        for (int64_t i28 = 0; i28 < t30; i28++) {
            const float t31 = b24[i28];
            const float t33 = t32[i28];
            const float t34 = t33 - s23;
            const float t35 = 1 ? t34 : 0x0.0p+0f;
            const float t36 = t35 * t35;
            const float t37 = t31 + t36;
            b24[i28] = t37;
        }
        const int32_t t39 = (int32_t)((uint32_t)k26 + (uint32_t)(int32_t)0);
        const int64_t t40 = within((int64_t)a4 - t39 + 0, 0, 256);
        const float t42 = 0x0.0p+0f - s23;
        const float t43 = 0 ? t42 : 0x0.0p+0f;
        const float t44 = t43 * t43;
#pragma omp simd
        for (int64_t i38 = t40; i38 < 256; i38++) {
            const float t41 = b24[i38];
            const float t45 = t41 + t44;
            b24[i38] = t45;
        }
    }
    float v46;
    {
        v46 = reduce_add_f32(b24, 256);
    }
    const float s47 = v46 / s22;
    const float s48 = s47 + a5;
    const float s49 = rsqrt_f32(s48);
    float *const s50 = a0 + s3;
    for (int32_t k51 = (int32_t)0; k51 < a4; k51 += (int32_t)256) {
        float *const s52 = s4 + k51;
        float *const s53 = a2 + k51;
        float *const s54 = a3 + k51;
        float *const s55 = s50 + k51;
        const int32_t t57 = (int32_t)((uint32_t)k51 + (uint32_t)(int32_t)0);
        const int64_t t58 = within((int64_t)a4 - t57 + 0, 0, 256);
        float *const t59 = s52 + (int32_t)0;
        float *const t63 = s53 + (int32_t)0;
        float *const t66 = s54 + (int32_t)0;
        float *const t69 = s55 + (int32_t)0;
#pragma omp simd
        for (int64_t i56 = 0; i56 < t58; i56++) {
            const float t60 = t59[i56];
            const float t61 = t60 - s23;
            const float t62 = t61 * s49;
            const float t64 = t63[i56];
            const float t65 = t62 * t64;
            const float t67 = t66[i56];
            const float t68 = t65 + t67;
            t69[i56] = t68;
        }
    }
}

static void deepgen_triton_draw(void *arg, int thread) {
    deepgen_triton_job *given = arg;
    for (long start; (start = atomic_fetch_add(&given->next, given->each)) < given->all;)
    for (long n = start; n < start + given->each && n < given->all; n++) {
        long x = given->programs[0], y = given->programs[1];
        int32_t program[3] = {(int32_t)(n % x), (int32_t)(n / x % y), (int32_t)(n / x / y)};
        deepgen_triton_program(given, program, given->scratch + thread * 0L);
    }
}

void deepgen_triton(float * a0, float * a1, float * a2, float * a3, int32_t a4, float a5, int32_t x, int32_t y, int32_t z, int32_t threads, void *scratch) {
    deepgen_triton_job given = {.a0 = a0, .a1 = a1, .a2 = a2, .a3 = a3, .a4 = a4, .a5 = a5, .programs = {x, y, z}, .scratch = scratch, .all = (long)x * y * z};
    given.each = chunk(given.all, threads);
    deepgen_pool_run(given.all < threads ? (int)given.all : threads, deepgen_triton_draw, &given);
}
