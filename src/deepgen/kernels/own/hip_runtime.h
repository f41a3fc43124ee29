// What kernels in HIP expect of <hip/hip_runtime.h>, through the compiler's own builtins: no vendor's toolkit is needed.
// Functions that only a vendor's device library has (erf, tanh, pow, ...) are missing.
#pragma once

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define DEEPGEN_FIRST(first, ...) first
#define __launch_bounds__(...) \
    __attribute__((amdgpu_flat_work_group_size(1, DEEPGEN_FIRST(__VA_ARGS__, 0))))
#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ type name[];

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef _Float16 half;
typedef _Float16 __half;

#define DEEPGEN_VECTORS(type, name)                      \
    struct alignas(2 * sizeof(type)) name##2 { type x, y; }; \
    struct name##3 { type x, y, z; };                    \
    struct alignas(4 * sizeof(type)) name##4 { type x, y, z, w; };
DEEPGEN_VECTORS(float, float)
DEEPGEN_VECTORS(int, int)
DEEPGEN_VECTORS(unsigned, uint)
#undef DEEPGEN_VECTORS
struct alignas(16) double2 { double x, y; };
__device__ __forceinline__ float2 make_float2(float x, float y) { return {x, y}; }
__device__ __forceinline__ float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
__device__ __forceinline__ int2 make_int2(int x, int y) { return {x, y}; }
__device__ __forceinline__ int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

// Indices are read where they are used, as members of objects that hold nothing.
#define DEEPGEN_MEMBER(name, expression)                              \
    struct name##_member {                                            \
        __device__ __forceinline__ operator unsigned() const { return expression; } \
    };
#define DEEPGEN_INDEX(name, ex, ey, ez)  \
    namespace deepgen_##name {           \
    DEEPGEN_MEMBER(x, ex)                \
    DEEPGEN_MEMBER(y, ey)                \
    DEEPGEN_MEMBER(z, ez)                \
    struct all {                         \
        [[no_unique_address]] x_member x; \
        [[no_unique_address]] y_member y; \
        [[no_unique_address]] z_member z; \
    };                                   \
    }                                    \
    static __device__ const deepgen_##name::all name;
DEEPGEN_INDEX(threadIdx, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z())
DEEPGEN_INDEX(blockIdx, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z())
DEEPGEN_INDEX(blockDim, __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(), __builtin_amdgcn_workgroup_size_z())
DEEPGEN_INDEX(gridDim, __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(),
              __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y(),
              __builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z())
#undef DEEPGEN_INDEX
#undef DEEPGEN_MEMBER

__device__ __forceinline__ void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
__device__ __forceinline__ void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }

template <typename T>
__device__ __forceinline__ T min(T a, T b) { return b < a ? b : a; }
template <typename T>
__device__ __forceinline__ T max(T a, T b) { return a < b ? b : a; }
__device__ __forceinline__ float fminf(float a, float b) { return __builtin_fminf(a, b); }
__device__ __forceinline__ float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
__device__ __forceinline__ float fabsf(float a) { return __builtin_fabsf(a); }
__device__ __forceinline__ float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
__device__ __forceinline__ float sqrtf(float a) { return __builtin_sqrtf(a); }
__device__ __forceinline__ float expf(float a) { return __builtin_expf(a); }
__device__ __forceinline__ float logf(float a) { return __builtin_logf(a); }
__device__ __forceinline__ float sinf(float a) { return __builtin_sinf(a); }
__device__ __forceinline__ float cosf(float a) { return __builtin_cosf(a); }
__device__ __forceinline__ float __expf(float a) { return __builtin_expf(a); }
__device__ __forceinline__ float rsqrtf(float a) { return 1.0f / __builtin_sqrtf(a); }
__device__ __forceinline__ float floorf(float a) { return __builtin_floorf(a); }

template <typename T>
__device__ __forceinline__ T atomicAdd(T *at, T value) {
    return __hip_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <typename T>
__device__ __forceinline__ T atomicMax(T *at, T value) {
    return __hip_atomic_fetch_max(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <typename T>
__device__ __forceinline__ T __shfl_xor(T value, int mask, int width = __AMDGCN_WAVEFRONT_SIZE__) {
    static_assert(sizeof(T) == 4, "words of four bytes only");
    const int lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
    return __builtin_bit_cast(T, __builtin_amdgcn_ds_bpermute((lane ^ mask) << 2, __builtin_bit_cast(int, value)));
}
