// softmax, from Triton's IR of it.
#include "tile.h"

typedef struct {
    float * a0;
    float * a1;
    int32_t a2;
    int32_t a3;
    int32_t programs[3];
    char *scratch;
    long all, each;     // programs, and how many are drawn at once
    _Atomic long next;  // to draw
} deepgen_triton_job;

static void deepgen_triton_program(const deepgen_triton_job *given, const int32_t *program, char *scratch) {
    float *const a0 = given->a0;
    float *const a1 = given->a1;
    const int32_t a2 = given->a2;
    const int32_t a3 = given->a3;
    const int32_t *programs = given->programs;
    const int32_t s1 = (int32_t)((uint32_t)program[0] * (uint32_t)(int32_t)4);
    float *restrict b2 = (float *)(scratch + 0);
    for (int64_t i3 = 0; i3 < 4; i3++) {
        const int32_t t5 = (int32_t)((uint32_t)s1 + (uint32_t)(int32_t)i3);
        const _Bool t6 = t5 < a2;
        const int64_t t7 = within((int64_t)a3 - (int32_t)0 + 0, 0, 1024);
        const _Bool t8 = t6;
        const int64_t t9 = t8 ? t7 : 0;
        const int32_t t10 = (int32_t)((uint32_t)t5 * (uint32_t)a3);
        const int32_t t11 = (int32_t)((uint32_t)t10 + (uint32_t)(int32_t)0);
        float *const t12 = a1 + t11;
#pragma omp simd
        for (int64_t i4 = 0; i4 < t9; i4++) {
            b2[(i3 * 1024 + i4)] = t12[i4];
        }
#pragma omp simd
        for (int64_t i4 = t9; i4 < 1024; i4++) b2[(i3 * 1024 + i4)] = (-INFINITY);
    }
    float b14[4] __attribute__((aligned(64)));
    for (int64_t i13 = 0; i13 < 4; i13++) {
        b14[i13] = reduce_maxnum_f32(b2 + i13 * 1024, 1024);
    }
    for (int64_t i15 = 0; i15 < 4; i15++) {
        const float t18 = b14[i15];
#pragma omp simd
        for (int64_t i16 = 0; i16 < 1024; i16++) {
            const float t17 = b2[(i15 * 1024 + i16)];
            const float t19 = t17 - t18;
            const float t20 = exp_f32(t19);
            b2[(i15 * 1024 + i16)] = t20;
        }
    }
    float b22[4] __attribute__((aligned(64)));
    for (int64_t i21 = 0; i21 < 4; i21++) {
        b22[i21] = reduce_add_f32(b2 + i21 * 1024, 1024);
    }
    for (int64_t i23 = 0; i23 < 4; i23++) {
        const int32_t t25 = (int32_t)((uint32_t)s1 + (uint32_t)(int32_t)i23);
        const _Bool t26 = t25 < a2;
        const int64_t t27 = within((int64_t)a3 - (int32_t)0 + 0, 0, 1024);
        const float t29 = b22[i23];
        const int32_t t31 = (int32_t)((uint32_t)t25 * (uint32_t)a3);
        const int32_t t32 = (int32_t)((uint32_t)t31 + (uint32_t)(int32_t)0);
        float *const t33 = a0 + t32;
        if (t26)
#pragma omp simd
        for (int64_t i24 = 0; i24 < t27; i24++) {
            const float t28 = b2[(i23 * 1024 + i24)];
            const float t30 = t28 / t29;
            t33[i24] = t30;
        }
    }
}

static void deepgen_triton_draw(void *arg, int thread) {
    deepgen_triton_job *given = arg;
    for (long start; (start = atomic_fetch_add(&given->next, given->each)) < given->all;)
    for (long n = start; n < start + given->each && n < given->all; n++) {
        long x = given->programs[0], y = given->programs[1];
        int32_t program[3] = {(int32_t)(n % x), (int32_t)(n / x % y), (int32_t)(n / x / y)};
        deepgen_triton_program(given, program, given->scratch + thread * 16384L);
    }
}

void deepgen_triton(float * a0, float * a1, int32_t a2, int32_t a3, int32_t x, int32_t y, int32_t z, int32_t threads, void *scratch) {
    deepgen_triton_job given = {.a0 = a0, .a1 = a1, .a2 = a2, .a3 = a3, .programs = {x, y, z}, .scratch = scratch, .all = (long)x * y * z};
    given.each = chunk(given.all, threads);
    deepgen_pool_run(given.all < threads ? (int)given.all : threads, deepgen_triton_draw, &given);
}
