// CUDA's side of the dialect.
#pragma once

#define DG_DEVICE __device__ __forceinline__
#define DG_KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define DG_UNROLL _Pragma("unroll")
#define DG_NO_UNROLL _Pragma("unroll 1")

template <> struct Raw<1> { typedef u8 type; };
template <> struct Raw<2> { typedef u16 type; };
template <> struct Raw<4> { typedef u32 type; };
template <> struct Raw<8> { typedef uint2 type; };
template <> struct Raw<16> { typedef uint4 type; };

extern __shared__ __align__(16) char dg_shared[];

DG_DEVICE int thread_id() { return threadIdx.x; }
DG_DEVICE int block_id() { return blockIdx.x; }
DG_DEVICE int block_count() { return gridDim.x; }
DG_DEVICE void barrier() { __syncthreads(); }

// The same value, of which the compiler no longer knows where it comes from.
DG_DEVICE u32 opaque(u32 x) {
    asm volatile("" : "+r"(x));
    return x;
}

template <typename T, typename F>
DG_DEVICE T bit_cast(const F& from) {
    static_assert(sizeof(T) == sizeof(F), "a cast of bits keeps the size");
    union { F f; T t; } both = {from};
    return both.t;
}

// Where shared memory begins. Hidden from the compiler: it would add this to the constant part of every address, and
// need an instruction for each that the load could have done.
DG_DEVICE u32 shared_begin() { return opaque(static_cast<u32>(__cvta_generic_to_shared(dg_shared))); }

template <typename V>
DG_DEVICE V load_shared(u32 at) {
    return bit_cast<V>(*static_cast<const typename Raw<sizeof(V)>::type*>(__cvta_shared_to_generic(at)));
}

template <typename V>
DG_DEVICE void store_shared(u32 at, const V& value) {
    *static_cast<typename Raw<sizeof(V)>::type*>(__cvta_shared_to_generic(at)) =
        bit_cast<typename Raw<sizeof(V)>::type>(value);
}

// Input that is read once: not kept in L1. In assembly, so that a load begins where it is written.
#if __CUDA_ARCH__ >= 800
#define DG_LOAD "ld.global.L1::no_allocate.L2::128B."
#else
#define DG_LOAD "ld.global."
#endif
template <typename V>
DG_DEVICE V load_global(const void* from) {
    typename Raw<sizeof(V)>::type raw;
    if constexpr (sizeof(V) == 16)
        asm volatile(DG_LOAD "v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w) : "l"(from) : "memory");
    else if constexpr (sizeof(V) == 8)
        asm volatile(DG_LOAD "v2.u32 {%0, %1}, [%2];" : "=r"(raw.x), "=r"(raw.y) : "l"(from) : "memory");
    else if constexpr (sizeof(V) == 4) asm volatile(DG_LOAD "u32 %0, [%1];" : "=r"(raw) : "l"(from) : "memory");
    else if constexpr (sizeof(V) == 2) asm volatile(DG_LOAD "u16 %0, [%1];" : "=h"(raw) : "l"(from) : "memory");
    else {
        u32 wide;
        asm volatile(DG_LOAD "u8 %0, [%1];" : "=r"(wide) : "l"(from) : "memory");
        raw = (u8)wide;
    }
    return bit_cast<V>(raw);
}

// For memory that this kernel or a block of it writes: past the caches that are not coherent.
template <typename V>
DG_DEVICE V load_fresh(const void* from) {
    return bit_cast<V>(__ldcg(reinterpret_cast<const typename Raw<sizeof(V)>::type*>(from)));
}

template <typename V>
DG_DEVICE void store_global(void* to, const V& value) {
    *reinterpret_cast<typename Raw<sizeof(V)>::type*>(to) = bit_cast<typename Raw<sizeof(V)>::type>(value);
}

// Asynchronous copies from global to shared memory: they land at the wait. Nothing is read where `real` is false, and
// zeros land.
#if __CUDA_ARCH__ >= 800
template <int BYTES>
DG_DEVICE void copy_async(u32 to, const void* from) {
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
}
template <int BYTES>
DG_DEVICE void copy_async_or_zero(u32 to, const void* from, bool real) {
    int bytes = real ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(bytes)
                     : "memory");
}
DG_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
DG_DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }
#endif

// Between blocks: what a block wrote before `arrive` is seen by the block that learns of it through `arrive` or `await`.
// All threads of the block call these; each contains barriers.
DG_DEVICE u32 arrive(u32* counter) {
    __threadfence();
    __syncthreads();
    u32 before = 0, note = shared_begin();
    if (threadIdx.x == 0) {
        before = atomicAdd(counter, 1u);
        __threadfence();
        store_shared<u32>(note, before);
    }
    __syncthreads();
    before = load_shared<u32>(note);
    __syncthreads();
    return before;
}
DG_DEVICE void raise(u32* flag) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) atomicExch(flag, 1u);
}
DG_DEVICE void await(u32* flag) {
    if (threadIdx.x == 0) {
        while (atomicAdd(flag, 0u) == 0u) {}
        *flag = 0u;
        __threadfence();
    }
    __syncthreads();
}
DG_DEVICE void reset(u32* counter) {
    if (threadIdx.x == 0) *counter = 0u;
}

DG_DEVICE f32 float_of_bits(u32 bits) { return __uint_as_float(bits); }
DG_DEVICE u32 bits_of_float(f32 x) { return __float_as_uint(x); }
DG_DEVICE f32 half_to_float(f16 x) {
    f32 y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
DG_DEVICE f16 float_to_half(f32 x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
DG_DEVICE f32 fused(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
DG_DEVICE f64 fused(f64 a, f64 b, f64 c) { return __fma_rn(a, b, c); }

// The sum of `n` neighbouring products in one instruction, where the chip has one.
#define DG_DOT_I8 4
DG_DEVICE i32 dot(Vec<i8, 4> a, Vec<i8, 4> b, i32 c) {
    i32 d;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(bit_cast<i32>(a)), "r"(bit_cast<i32>(b)), "r"(c));
    return d;
}
