// Many threads make the first calls of a library at once, in shapes of their own.
#include <deepgen_kernels.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static void *work(void *given) {
    int64_t m = 40 + (intptr_t)given, n = 60, k = 33;
    size_t bytes;
    float *a = malloc((size_t)(m * k) * 4), *b = malloc((size_t)(k * n) * 4), *c = malloc((size_t)(m * n) * 4);
    for (int64_t i = 0; i < m * k; i++) a[i] = (float)(i % 5);
    for (int64_t i = 0; i < k * n; i++) b[i] = (float)(i % 3);
    if (deepgen_gemm_f32_nn_workspace(m, n, k, &bytes)) return "no workspace";
    void *workspace = malloc(bytes);
    for (int turn = 0; turn < 20; turn++) {
        if (deepgen_gemm_f32_nn(m, n, k, a, k, b, n, c, n, workspace, bytes)) return "not done";
        for (int64_t i = 0; i < m; i++) {
            float sum = 0;
            for (int64_t l = 0; l < k; l++) sum += a[i * k + l] * b[l * n];
            if (c[i * n] != sum) return "wrong";
        }
    }
    return 0;
}

int main(void) {
    pthread_t threads[8];
    for (intptr_t i = 0; i < 8; i++) pthread_create(&threads[i], 0, work, (void *)i);
    for (int i = 0; i < 8; i++) {
        void *said;
        pthread_join(threads[i], &said);
        if (said) return printf("%s: %s\n", (char *)said, deepgen_last_error()), 1;
    }
    return 0;
}
