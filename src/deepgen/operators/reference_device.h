// What references on a device are written with, in CUDA and in HIP. They share nothing with the kernels that they judge,
// so this is not the dialect of those; where both are emulated on a CPU, the emulation gives it.
#ifndef DG_REFERENCE_DEVICE_H
#define DG_REFERENCE_DEVICE_H

#ifndef DG_EMULATE
typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

#ifdef __HIP__
#define DG_DEVICE __attribute__((device)) static inline
#define DG_KERNEL extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(256, 256))) void
extern __attribute__((shared)) __attribute__((aligned(16))) char dg_shared[];
DG_DEVICE int thread_id() { return __builtin_amdgcn_workitem_id_x(); }
DG_DEVICE int block_id() { return __builtin_amdgcn_workgroup_id_x(); }
DG_DEVICE void barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
DG_DEVICE f64 root(f64 x) { return __builtin_sqrt(x); }
#else
#define DG_DEVICE __device__ static inline
#define DG_KERNEL extern "C" __global__ void __launch_bounds__(256)
extern __shared__ __align__(16) char dg_shared[];
DG_DEVICE int thread_id() { return threadIdx.x; }
DG_DEVICE int block_id() { return blockIdx.x; }
DG_DEVICE void barrier() { __syncthreads(); }
DG_DEVICE f64 root(f64 x) { return sqrt(x); }
#endif

template <typename T> DG_DEVICE T load_shared(u32 at) { return *(const T*)(dg_shared + at); }
template <typename T> DG_DEVICE void store_shared(u32 at, T value) { *(T*)(dg_shared + at) = value; }
template <typename T> DG_DEVICE T load_global(const void* from) { return *(const T*)from; }
template <typename T> DG_DEVICE void store_global(void* to, T value) { *(T*)to = value; }
#else
typedef short i16;
#undef DG_KERNEL
#define DG_KERNEL extern "C" void
inline f64 root(f64 x) { return std::sqrt(x); }
#endif

#endif
