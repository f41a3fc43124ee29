// What a core can do at best: multiply-adds that touch nothing but registers, and reading memory in order.
//
// -DREAL=float or double. Each function runs on the calling thread and gives the seconds it took; the caller runs one
// on each core at the same time.
#include <immintrin.h>
#include <stdint.h>
#include <time.h>

#ifndef REAL
#define REAL float
#endif
#ifdef __AVX512F__
#define BYTES 64
#else
#define BYTES 32
#endif
typedef REAL vec __attribute__((vector_size(BYTES)));

// Two units of latency 4 need 8 chains; 12 leave room for longer latencies and still fit in 16 registers.
#define CHAINS 12

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int64_t deepgen_peak_flops(void) { return 2 * CHAINS * (int64_t)(BYTES / sizeof(REAL)); }  // of one turn

double deepgen_peak_compute(int64_t turns) {
    vec x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11;
    x = (vec){0} + (REAL)0.5;
    c0 = c1 = c2 = c3 = c4 = c5 = c6 = c7 = c8 = c9 = c10 = c11 = x;
    // Chains that the compiler could see to be equal would become one.
    __asm__ volatile("" : "+v"(c0), "+v"(c1), "+v"(c2), "+v"(c3), "+v"(c4), "+v"(c5));
    __asm__ volatile("" : "+v"(c6), "+v"(c7), "+v"(c8), "+v"(c9), "+v"(c10), "+v"(c11));
    double started = now();
    for (int64_t t = 0; t < turns; t++) {
        c0 = c0 * x + x, c1 = c1 * x + x, c2 = c2 * x + x, c3 = c3 * x + x;
        c4 = c4 * x + x, c5 = c5 * x + x, c6 = c6 * x + x, c7 = c7 * x + x;
        c8 = c8 * x + x, c9 = c9 * x + x, c10 = c10 * x + x, c11 = c11 * x + x;
    }
    // The results must seem to be used, or the compiler drops the loop, and used before the clock is read.
    __asm__ volatile("" ::"v"(c0), "v"(c1), "v"(c2), "v"(c3), "v"(c4), "v"(c5) : "memory");
    __asm__ volatile("" ::"v"(c6), "v"(c7), "v"(c8), "v"(c9), "v"(c10), "v"(c11) : "memory");
    return now() - started;
}

// Reads a buffer in order after its lines were thrown out of all caches.
double deepgen_peak_read(const char *from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) _mm_clflush(from + i);
    _mm_mfence();
    vec s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    double started = now();
    for (int64_t i = 0; i + 4 * BYTES <= bytes; i += 4 * BYTES) {
        const vec *p = (const vec *)(from + i);
        s0 += p[0], s1 += p[1], s2 += p[2], s3 += p[3];
    }
    __asm__ volatile("" ::"v"(s0), "v"(s1), "v"(s2), "v"(s3) : "memory");
    return now() - started;
}
