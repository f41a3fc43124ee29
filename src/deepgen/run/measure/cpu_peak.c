// What a core can do at best: multiply-adds that touch nothing but registers, and reading memory.
//
// -DREAL=float or double. Each function runs on the calling thread and gives the seconds it took; the caller runs one
// on each core at the same time.
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <stdint.h>
#include <time.h>

#ifndef REAL
#define REAL float
#endif
// Units times latency is how many chains they need: on x86 two of 4, and 12 leave room for longer latencies and still
// fit in 16 registers; on Arm up to four of 4, with 32 registers. MADD is no C: a compiler may multiply once for several
// sums.
#if defined(__x86_64__)
#ifdef __AVX512F__
#define BYTES 64
#else
#define BYTES 32
#endif
#define CHAINS 12
#define MADD(type) __asm__ volatile("vfmadd231p" type " %2, %1, %0" : "+v"(*sum) : "v"(x), "v"(y))
#define MADD_FLOAT MADD("s")
#define MADD_DOUBLE MADD("d")
#define FLUSHED() __builtin_ia32_mfence()
#elif defined(__aarch64__)
#define BYTES 16
#define CHAINS 24
#define MADD(type) __asm__ volatile("fmla %0." type ", %1." type ", %2." type : "+w"(*sum) : "w"(x), "w"(y))
#define MADD_FLOAT MADD("4s")
#define MADD_DOUBLE MADD("2d")
#define FLUSHED() __asm__ volatile("dsb sy" ::: "memory")
#endif
typedef REAL vec __attribute__((vector_size(BYTES)));

static inline __attribute__((always_inline)) void madd(vec *sum, vec x, vec y) {
    if (sizeof(REAL) == 4)
        MADD_FLOAT;
    else
        MADD_DOUBLE;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int64_t deepgen_peak_flops(void) { return 2 * CHAINS * (int64_t)(BYTES / sizeof(REAL)); }  // of one turn

// `numbers`: what is multiplied, DEEPGEN_PEAK_BYTES of it. Zeros draw less power than real data do.
#define DEEPGEN_PEAK_BYTES 4096
double deepgen_peak_compute(int64_t iterations, const char *numbers) {
    vec x, y, z, c[CHAINS];
    __builtin_memcpy(&x, numbers, BYTES);
    __builtin_memcpy(&y, numbers + BYTES, BYTES);
    __builtin_memcpy(&z, numbers + 2 * BYTES, BYTES);
#pragma GCC unroll 32
    for (int i = 0; i < CHAINS; i++) c[i] = x;
    double started = now();
    for (int64_t t = 0; t < iterations; t++)
#pragma GCC unroll 32
        for (int i = 0; i < CHAINS; i++) madd(&c[i], i % 2 ? y : x, z);
    return now() - started;
}

// Throws lines out of all caches.
static void flush(const char *at, const char *end) {
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 23 & 1)) {  // unordered: several times as fast
        for (; at < end; at += 64) __asm__ volatile("clflushopt %0" : "+m"(*(volatile char *)at));
    } else {
        for (; at < end; at += 64) __builtin_ia32_clflush(at);
    }
#else
    for (; at < end; at += 64) __asm__ volatile("dc civac, %0" ::"r"(at) : "memory");
#endif
    FLUSHED();
}

// Reads a buffer in so many streams at once, asking for lines `ahead` bytes before their turn, after all of it was
// thrown out of all caches. One stream does not keep enough lines on their way to use all of the bandwidth.
double deepgen_peak_read(const char *from, int64_t bytes, int64_t streams, int64_t ahead) {
    typedef int64_t half __attribute__((vector_size(32), aligned(1), may_alias));
    flush(from, from + bytes);
    half low = {0}, high = {0};
    const int64_t part = bytes / streams / 64 * 64;
    double started = now();
    for (int64_t i = 0; i < part; i += 64)
        for (const char *p = from + i, *end = p + streams * part; p < end; p += part) {
            __builtin_prefetch(p + ahead);
            low ^= *(const half *)p;
            high ^= *(const half *)(p + 32);
        }
    low ^= high;
    __asm__ volatile("" ::"r"(low[0] ^ low[1] ^ low[2] ^ low[3]) : "memory");
    return now() - started;
}
