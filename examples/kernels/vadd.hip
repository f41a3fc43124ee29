// c = a + b. BLOCK threads a block, each adding VEC numbers that lie side by side.
#include <hip/hip_runtime.h>

__global__ void __launch_bounds__(BLOCK) vadd(float *c, const float *a, const float *b, int n) {
    const int first = (blockIdx.x * BLOCK + threadIdx.x) * VEC;
#pragma unroll
    for (int i = first; i < first + VEC; i++)
        if (i < n) c[i] = a[i] + b[i];
}
