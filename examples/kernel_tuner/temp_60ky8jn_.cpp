#define grid_size_x 64
#define grid_size_y 64
#define grid_size_z 1
#define threads 1
#define block_size_y 1
#define block_size_z 1
#define tile_k 32
#define unroll 4
#define kernel_tuner 1
#line 1

#include <time.h>
#if unroll * tile_k > 64
#error "too large a body"
#endif

extern "C" float matmul(float* c, const float* a, const float* b, int n) {
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < n * n; i++) c[i] = 0.0f;
    for (int from = 0; from < n; from += tile_k)
        for (int i = 0; i < n; i++)
            for (int k = from; k < from + tile_k; k += unroll)
                for (int u = 0; u < unroll; u++)
                    for (int j = 0; j < n; j++) c[i * n + j] += a[i * n + k + u] * b[(k + u) * n + j];
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - start.tv_sec) * 1e3f + (end.tv_nsec - start.tv_nsec) * 1e-6f;
}
