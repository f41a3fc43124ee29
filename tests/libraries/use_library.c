// What a C program does with an exported library: asks for a workspace, calls, and understands what is refused.
// It is plain C and plain C++.
#include <deepgen_kernels.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                         \
    if (!(condition)) {                                                          \
        printf("line %d: %s: %s\n", __LINE__, #condition, deepgen_last_error()); \
        return 1;                                                                \
    }

static float *filled(int64_t count, int seed) {
    float *out = (float *)malloc((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++) out[i] = (float)((i * 7 + seed) % 13) - 6;
    return out;
}

static int gemm(int64_t m, int64_t n, int64_t k) {
    size_t bytes;
    CHECK(deepgen_gemm_f32_nn_workspace(m, n, k, &bytes) == DEEPGEN_OK);
    float *a = filled(m * k, 1), *b = filled(k * n, 2), *c = filled(m * n, 3);
    void *workspace = malloc(bytes);
    CHECK(deepgen_gemm_f32_nn(m, n, k, a, k, b, n, c, n, workspace, bytes) == DEEPGEN_OK);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = 0;
            for (int64_t l = 0; l < k; l++) sum += a[i * k + l] * b[l * n + j];
            CHECK(c[i * n + j] == sum);  // small whole numbers: sums are exact
        }
    free(a), free(b), free(c), free(workspace);
    return 0;
}

int main(void) {
    CHECK(deepgen_abi_version() == DEEPGEN_ABI_VERSION);
    if (gemm(48, 64, 32) || gemm(96, 64, 80) || gemm(50, 61, 37) || gemm(20, 30, 16)) return 1;

    float *x = filled(24 * 40, 4), *y = filled(24 * 40, 5), sum = 0;
    size_t bytes;
    CHECK(deepgen_softmax_f32_workspace(24, 40, &bytes) == DEEPGEN_OK);
    void *workspace = malloc(bytes + 1);
    CHECK(deepgen_softmax_f32(24, 40, x, 40, y, 40, workspace, bytes) == DEEPGEN_OK);
    for (int i = 0; i < 40; i++) sum += y[i];
    CHECK(fabsf(sum - 1) < 1e-5f);

    CHECK(deepgen_gemm_f32_nn(0, 4, 4, 0, 4, x, 4, y, 4, 0, 0) == DEEPGEN_OK);  // nothing to do
    CHECK(deepgen_gemm_f32_nn(4, -1, 4, x, 4, x, 4, y, 4, 0, 0) == DEEPGEN_BAD_ARGUMENT);
    printf("%s; ", deepgen_last_error());
    CHECK(deepgen_gemm_f32_nn(48, 64, 32, 0, 32, x, 64, y, 64, 0, 0) == DEEPGEN_BAD_ARGUMENT);
    printf("%s; ", deepgen_last_error());
    CHECK(deepgen_gemm_f32_nn(48, 64, 32, x, 32, x, 64, y, 64, 0, 0) == DEEPGEN_NO_WORKSPACE);
    printf("%s; ", deepgen_last_error());
    CHECK(deepgen_gemm_f32_nn(48, 64, 32, x, 33, x, 64, y, 64, 0, 0) == DEEPGEN_NOT_SERVED);
    printf("%s; ", deepgen_last_error());
    CHECK(deepgen_gemm_f32_nn(9999, 9999, 9999, x, 9999, x, 9999, y, 9999, 0, 0) == DEEPGEN_NOT_SERVED);
    printf("%s; %s\n", deepgen_last_error(), deepgen_status_text(DEEPGEN_NOT_SERVED));
    free(x), free(y), free(workspace);
    return 0;
}
