// matmul, from Triton's IR of it.
#include "tile.h"

typedef struct {
    float * a0;
    float * a1;
    float * a2;
    int32_t a3;
    int32_t a4;
    int32_t a5;
    int32_t a6;
    int32_t a7;
    int32_t programs[3];
    char *scratch;
    long all, each;     // programs, and how many are drawn at once
    _Atomic long next;  // to draw
} deepgen_triton_job;

static void deepgen_triton_program(const deepgen_triton_job *given, const int32_t *program, char *scratch) {
    float *const a0 = given->a0;
    float *const a1 = given->a1;
    float *const a2 = given->a2;
    const int32_t a3 = given->a3;
    const int32_t a4 = given->a4;
    const int32_t a5 = given->a5;
    const int32_t a6 = given->a6;
    const int32_t a7 = given->a7;
    const int32_t *programs = given->programs;
    const int32_t s1 = (int32_t)((uint32_t)a3 + (uint32_t)(int32_t)63);
    const int32_t s2 = div_i32(s1, (int32_t)64);
    const int32_t s3 = (int32_t)((uint32_t)a4 + (uint32_t)(int32_t)31);
    const int32_t s4 = div_i32(s3, (int32_t)32);
    const int32_t s5 = (int32_t)((uint32_t)s4 * (uint32_t)(int32_t)8);
    const int32_t s6 = div_i32(program[0], s5);
    const int32_t s7 = (int32_t)((uint32_t)s6 * (uint32_t)(int32_t)8);
    const int32_t s8 = (int32_t)((uint32_t)s2 - (uint32_t)s7);
    const int32_t s9 = min_i32(s8, (int32_t)8);
    const int32_t s10 = rem_i32(program[0], s5);
    const int32_t s11 = rem_i32(s10, s9);
    const int32_t s12 = (int32_t)((uint32_t)s7 + (uint32_t)s11);
    const int32_t s13 = div_i32(s10, s9);
    const int32_t s14 = (int32_t)((uint32_t)s12 * (uint32_t)(int32_t)64);
    const int32_t s15 = (int32_t)((uint32_t)s13 * (uint32_t)(int32_t)32);
    int32_t b16[64] __attribute__((aligned(64)));
#pragma omp simd
    for (int64_t i17 = 0; i17 < 64; i17++) {
        const int32_t t18 = (int32_t)((uint32_t)s14 + (uint32_t)(int32_t)i17);
        const int32_t t19 = rem_i32(t18, a3);
        b16[i17] = t19;
    }
    int32_t b20[32] __attribute__((aligned(64)));
#pragma omp simd
    for (int64_t i21 = 0; i21 < 32; i21++) {
        const int32_t t22 = (int32_t)((uint32_t)s15 + (uint32_t)(int32_t)i21);
        const int32_t t23 = rem_i32(t22, a4);
        b20[i21] = t23;
    }
    const int32_t s24 = (int32_t)((uint32_t)a7 * (uint32_t)(int32_t)16);
    int64_t v25 = (int64_t)INT64_C(0);
    int64_t v26 = (int64_t)INT64_C(0);
    float *restrict b27 = (float *)(scratch + 0);
    for (int64_t i28 = 0; i28 < 64; i28++) {
#pragma omp simd
        for (int64_t i29 = 0; i29 < 32; i29++) {
            b27[(i28 * 32 + i29)] = 0x0.0p+0f;
        }
    }
    for (int32_t k30 = (int32_t)0; k30 < a5; k30 += (int32_t)16) {
        const int32_t s31 = (int32_t)((uint32_t)a5 - (uint32_t)k30);
        float b32[1024] __attribute__((aligned(64)));
        for (int64_t i33 = 0; i33 < 64; i33++) {
            const int64_t t35 = within((int64_t)s31 - (int32_t)0 + 0, 0, 16);
            const int32_t t36 = b16[i33];
            const int32_t t37 = (int32_t)((uint32_t)t36 * (uint32_t)a6);
            float *const t38 = a0 + t37;
            float *const t39 = t38 + (int32_t)0;
            float *const t40 = t39 + v25;
#pragma omp simd
            for (int64_t i34 = 0; i34 < t35; i34++) {
                b32[(i33 * 16 + i34)] = t40[i34];
            }
#pragma omp simd
            for (int64_t i34 = t35; i34 < 16; i34++) b32[(i33 * 16 + i34)] = 0x0.0p+0f;
        }
        float b41[512] __attribute__((aligned(64)));
        {
            const int32_t t42 = (int32_t)((uint32_t)s15 + (uint32_t)(int32_t)0);
            if (does_not_wrap(t42, a4, 32)) {
                const int32_t t50 = b20[0];
                for (int64_t i43 = 0; i43 < 16; i43++) {
                    const _Bool t45 = (int32_t)i43 < s31;
                    const _Bool t46 = t45;
                    const int64_t t47 = t46 ? 32 : 0;
                    const int32_t t48 = (int32_t)((uint32_t)(int32_t)i43 * (uint32_t)a7);
                    float *const t49 = a1 + t48;
                    float *const t51 = t49 + t50;
                    float *const t52 = t51 + v26;
#pragma omp simd
                    for (int64_t i44 = 0; i44 < t47; i44++) {
                        b41[(i43 * 32 + i44)] = t52[i44];
                    }
#pragma omp simd
                    for (int64_t i44 = t47; i44 < 32; i44++) b41[(i43 * 32 + i44)] = 0x0.0p+0f;
                }
            } else {
                for (int64_t i53 = 0; i53 < 16; i53++) {
                    const _Bool t55 = (int32_t)i53 < s31;
                    const _Bool t56 = t55;
                    const int64_t t57 = t56 ? 32 : 0;
                    const int32_t t58 = (int32_t)((uint32_t)(int32_t)i53 * (uint32_t)a7);
                    float *const t59 = a1 + t58;
#pragma omp simd
                    for (int64_t i54 = 0; i54 < t57; i54++) {
                        const int32_t t60 = b20[i54];
                        float *const t61 = t59 + t60;
                        float *const t62 = t61 + v26;
                        b41[(i53 * 32 + i54)] = *t62;
                    }
#pragma omp simd
                    for (int64_t i54 = t57; i54 < 32; i54++) b41[(i53 * 32 + i54)] = 0x0.0p+0f;
                }
            }
        }
        float b63[512] __attribute__((aligned(64)));
        dot_f32(b32, b41, b27, b63, 64, 32, 16);
        const int64_t s64 = (int64_t)((uint64_t)v25 + (uint64_t)(int64_t)INT64_C(16));
        const int64_t s65 = (int64_t)s24;
        const int64_t s66 = (int64_t)((uint64_t)v26 + (uint64_t)s65);
        const int64_t n67 = s64;
        const int64_t n68 = s66;
        v25 = n67;
        v26 = n68;
    }
    const int32_t t73 = (int32_t)((uint32_t)s15 + (uint32_t)(int32_t)0);
    for (int64_t i69 = 0; i69 < 64; i69++) {
        const int32_t t71 = (int32_t)((uint32_t)s14 + (uint32_t)(int32_t)i69);
        const _Bool t72 = t71 < a3;
        const int64_t t74 = within((int64_t)a4 - t73 + 0, 0, 32);
        const int32_t t76 = (int32_t)((uint32_t)t71 * (uint32_t)a4);
        float *const t77 = a2 + t76;
        float *const t78 = t77 + t73;
        if (t72)
#pragma omp simd
        for (int64_t i70 = 0; i70 < t74; i70++) {
            const float t75 = b27[(i69 * 32 + i70)];
            t78[i70] = t75;
        }
    }
}

static void deepgen_triton_draw(void *arg, int thread) {
    deepgen_triton_job *given = arg;
    for (long start; (start = atomic_fetch_add(&given->next, given->each)) < given->all;)
    for (long n = start; n < start + given->each && n < given->all; n++) {
        long x = given->programs[0], y = given->programs[1];
        int32_t program[3] = {(int32_t)(n % x), (int32_t)(n / x % y), (int32_t)(n / x / y)};
        deepgen_triton_program(given, program, given->scratch + thread * 8192L);
    }
}

void deepgen_triton(float * a0, float * a1, float * a2, int32_t a3, int32_t a4, int32_t a5, int32_t a6, int32_t a7, int32_t x, int32_t y, int32_t z, int32_t threads, void *scratch) {
    deepgen_triton_job given = {.a0 = a0, .a1 = a1, .a2 = a2, .a3 = a3, .a4 = a4, .a5 = a5, .a6 = a6, .a7 = a7, .programs = {x, y, z}, .scratch = scratch, .all = (long)x * y * z};
    given.each = chunk(given.all, threads);
    deepgen_pool_run(given.all < threads ? (int)given.all : threads, deepgen_triton_draw, &given);
}
