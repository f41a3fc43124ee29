/* A plain multiplication whose speed is set by PASSES, with at most one FAULT_... defined in front of it.
 *
 * PASSES counts eighths of a whole multiplication that are done in vain before the real one. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void rows(const float *A, const float *B, float *C, int64_t first, int64_t last, int64_t N, int64_t K) {
    for (int64_t i = first; i < last; i++) {
        for (int64_t j = 0; j < N; j++) C[i * N + j] = 0;
        for (int64_t k = 0; k < K; k++)
            for (int64_t j = 0; j < N; j++) C[i * N + j] += A[i * K + k] * B[k * N + j];
        __asm__ volatile("" : : "r"(C) : "memory"); /* so that no pass can be left out */
    }
}

#ifdef FAULT_STACK_OVERFLOW
static long deep(long n) {
    volatile char frame[4096];
    frame[n % 4096] = 1;
    return deep(n + 1) + frame[0];
}
#endif

void faulty_gemm(const float *A, const float *B, float *C, int64_t M, int64_t N, int64_t K) {
    static int calls;
    calls++;
#if defined(FAULT_SEGFAULT)
    *(volatile int *)16 = 1;
#elif defined(FAULT_INFINITE_LOOP)
    for (;;) __asm__ volatile("");
#elif defined(FAULT_STACK_OVERFLOW)
    C[0] = (float)deep(0);
#elif defined(FAULT_HUGE_ALLOCATION)
    volatile char *huge = malloc((size_t)1 << 42);
    for (size_t i = 0;; i += 4096) huge[i] = 1;
#elif defined(FAULT_EXIT)
    exit(3);
#elif defined(FAULT_WRONG_LATER)
    if (calls > 1) return; /* fast, and the answer of the first call may still lie there */
#elif defined(FAULT_UNWRITTEN_TAIL)
    M -= 1;
#endif

    for (int pass = 0; pass < PASSES; pass++) rows(A, B, C, 0, M / 8, N, K);
    rows(A, B, C, 0, M, N, K);

#if defined(FAULT_WRITE_AFTER)
    C[M * N] = 1;
#elif defined(FAULT_WRITE_BEFORE)
    C[-1] = 1;
#elif defined(FAULT_ONE_WRONG)
    C[N + 2] += 0.5f;
#elif defined(FAULT_NONDETERMINISTIC)
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    C[7] += (float)(now.tv_nsec / 64 & 7);
#elif defined(FAULT_PRINTS_GARBAGE)
    for (int i = 0; i < 20; i++) printf("%c{\"measurements\": []}\n\xff", i);
    fflush(stdout);
#endif
}
