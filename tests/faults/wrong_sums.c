/* A plain multiplication with at most one FAULT_... defined, and PASSES before it in vain: right ones are slower.
 *
 * A_TYPE, B_TYPE, C_TYPE: of the elements; SUM: of the sums. BF16: elements are the upper halves of floats. */
#include <float.h>
#include <stdint.h>
#include <string.h>

#ifdef BF16
static float number(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static uint16_t stored(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
#else
#define number(x) ((SUM)(x))
#define stored(x) ((C_TYPE)(x))
#endif

#ifdef FAULT_FLUSHED
#define SMALLEST (sizeof(SUM) == 8 ? DBL_MIN : FLT_MIN)
#define kept(x) ((x) < (SUM)SMALLEST && (x) > -(SUM)SMALLEST ? (SUM)0 : (x))
#else
#define kept(x) (x)
#endif

static int32_t saturated(int32_t x) { return x > INT16_MAX ? INT16_MAX : x < INT16_MIN ? INT16_MIN : x; }

static SUM element(const A_TYPE *a, const B_TYPE *b, int64_t N, int64_t K) {
#if defined(FAULT_SUM_OF_16_BITS)
    int16_t sum = 0;
    for (int64_t k = 0; k < K; k++) sum = (int16_t)(sum + number(a[k]) * number(b[k * N]));
#elif defined(FAULT_SATURATED_PAIRS)
    SUM sum = 0;
    for (int64_t k = 0; k < K; k += 2) {
        SUM second = k + 1 < K ? number(a[k + 1]) * number(b[(k + 1) * N]) : 0;
        sum += saturated(number(a[k]) * number(b[k * N]) + second);
    }
#else
    SUM sum = 0;
    for (int64_t k = 0; k < K; k++) sum += kept(number(a[k])) * kept(number(b[k * N]));
#endif
    return sum;
}

void wrong_sums(const A_TYPE *A, const B_TYPE *B, C_TYPE *C, int64_t M, int64_t N, int64_t K) {
    volatile SUM vain = 0;
    for (int pass = 0; pass < PASSES; pass++)
        for (int64_t i = 0; i < M; i++) vain = element(A + i * K, B + i % N, N, K);
    (void)vain, (void)saturated;
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++) C[i * N + j] = stored(kept(element(A + i * K, B + j, N, K)));
#if defined(FAULT_LOST) || defined(FAULT_DOUBLED)
    SUM sum = 0, product = number(A[ROW * K + PLACE]) * number(B[PLACE * N + COLUMN]);
    for (int64_t k = 0; k < K; k++) sum += number(A[ROW * K + k]) * number(B[k * N + COLUMN]);
#ifdef FAULT_LOST
    product = -product;
#endif
    C[ROW * N + COLUMN] = stored(sum + product);
#endif
}
