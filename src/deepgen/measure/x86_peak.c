// What a core can do at best: multiply-adds that touch nothing but registers, and reading memory.
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

// `numbers`: what is multiplied, DEEPGEN_PEAK_BYTES of it. Zeros draw less power than real data do.
#define DEEPGEN_PEAK_BYTES 4096
double deepgen_peak_compute(int64_t turns, const char *numbers) {
    vec x, y, z, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11;
    __builtin_memcpy(&x, numbers, BYTES);
    __builtin_memcpy(&y, numbers + BYTES, BYTES);
    __builtin_memcpy(&z, numbers + 2 * BYTES, BYTES);
    c0 = c1 = c2 = c3 = c4 = c5 = c6 = c7 = c8 = c9 = c10 = c11 = x;
    // Chains that the compiler could see to be equal would become one.
    __asm__ volatile("" : "+v"(c0), "+v"(c1), "+v"(c2), "+v"(c3), "+v"(c4), "+v"(c5));
    __asm__ volatile("" : "+v"(c6), "+v"(c7), "+v"(c8), "+v"(c9), "+v"(c10), "+v"(c11));
    double started = now();
    for (int64_t t = 0; t < turns; t++) {
        // Nor may it add a product up once that it could see to be the same in every turn.
        __asm__ volatile("" : "+v"(x), "+v"(y), "+v"(z));
        c0 += x * z, c1 += y * z, c2 += x * z, c3 += y * z, c4 += x * z, c5 += y * z;
        __asm__ volatile("" : "+v"(x), "+v"(y));
        c6 += x * z, c7 += y * z, c8 += x * z, c9 += y * z, c10 += x * z, c11 += y * z;
    }
    // The results must seem to be used, or the compiler drops the loop, and used before the clock is read.
    __asm__ volatile("" ::"v"(c0), "v"(c1), "v"(c2), "v"(c3), "v"(c4), "v"(c5) : "memory");
    __asm__ volatile("" ::"v"(c6), "v"(c7), "v"(c8), "v"(c9), "v"(c10), "v"(c11) : "memory");
    return now() - started;
}

// Reads a buffer in so many streams at once, asking for lines `ahead` bytes before their turn, after all of it was
// thrown out of all caches. One stream does not keep enough lines on their way to use all of the bandwidth.
double deepgen_peak_read(const char *from, int64_t bytes, int64_t streams, int64_t ahead) {
    for (int64_t i = 0; i < bytes; i += 64) _mm_clflush(from + i);
    _mm_mfence();
    __m256i low = _mm256_setzero_si256(), high = low;
    const int64_t part = bytes / streams / 64 * 64;
    double started = now();
    for (int64_t i = 0; i < part; i += 64)
        for (const char *p = from + i, *end = p + streams * part; p < end; p += part) {
            _mm_prefetch(p + ahead, _MM_HINT_T0);
            low = _mm256_xor_si256(low, _mm256_loadu_si256((const __m256i *)p));
            high = _mm256_xor_si256(high, _mm256_loadu_si256((const __m256i *)(p + 32)));
        }
    __asm__ volatile("" ::"v"(low), "v"(high) : "memory");
    return now() - started;
}
