// HIP's side of the dialect, through the compiler's own builtins: no header of a vendor's toolkit is needed.
#pragma once

#define DG_DEVICE __attribute__((device)) __attribute__((always_inline)) inline
#define DG_KERNEL(threads, blocks)                                                                    \
    extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(threads, threads))) \
        __attribute__((amdgpu_waves_per_eu(DG_WAVES(threads, blocks)))) void
// Registers are shared out by waves of a SIMD unit, of which a compute unit has four.
#define DG_WAVES(threads, blocks) ((threads) / WARP * (blocks) + 3) / 4
#define DG_UNROLL _Pragma("unroll")
#define DG_NO_UNROLL _Pragma("clang loop unroll(disable)")

typedef u32 u32x2 __attribute__((ext_vector_type(2)));
typedef u32 u32x4 __attribute__((ext_vector_type(4)));
template <> struct Raw<1> { typedef u8 type; };
template <> struct Raw<2> { typedef u16 type; };
template <> struct Raw<4> { typedef u32 type; };
template <> struct Raw<8> { typedef u32x2 type; };
template <> struct Raw<16> { typedef u32x4 type; };

extern __attribute__((shared)) __attribute__((aligned(16))) char dg_shared[];

DG_DEVICE int thread_id() { return __builtin_amdgcn_workitem_id_x(); }
DG_DEVICE int block_id() { return __builtin_amdgcn_workgroup_id_x(); }
DG_DEVICE int block_count() { return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(); }
DG_DEVICE void barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
DG_DEVICE u32 opaque(u32 x) {
    asm volatile("" : "+v"(x));
    return x;
}

template <typename T, typename F>
DG_DEVICE T bit_cast(const F& from) {
    return __builtin_bit_cast(T, from);
}

DG_DEVICE u32 shared_begin() { return 0; }

template <typename V>
DG_DEVICE V load_shared(u32 at) {
    return bit_cast<V>(*reinterpret_cast<const typename Raw<sizeof(V)>::type*>(dg_shared + at));
}
template <typename V>
DG_DEVICE void store_shared(u32 at, const V& value) {
    *reinterpret_cast<typename Raw<sizeof(V)>::type*>(dg_shared + at) = bit_cast<typename Raw<sizeof(V)>::type>(value);
}
// Pointers of arguments are known to be global; those computed from them are told so.
template <typename V>
DG_DEVICE V load_global(const void* from) {
    typedef const __attribute__((address_space(1))) typename Raw<sizeof(V)>::type* Global;
    return bit_cast<V>(*(Global)(from));
}
// For memory that another block writes: its `raise` or `arrive` and this block's `await` or `arrive` order the two.
template <typename V>
DG_DEVICE V load_fresh(const void* from) { return load_global<V>(from); }
template <typename V>
DG_DEVICE void store_global(void* to, const V& value) {
    typedef __attribute__((address_space(1))) typename Raw<sizeof(V)>::type* Global;
    *(Global)(to) = bit_cast<typename Raw<sizeof(V)>::type>(value);
}

DG_DEVICE u32 arrive(u32* counter) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
    barrier();
    if (thread_id() == 0)
        store_shared<u32>(0, __hip_atomic_fetch_add(counter, 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT));
    barrier();
    u32 before = load_shared<u32>(0);
    barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
    return before;
}
DG_DEVICE void raise(u32* flag) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
    barrier();
    if (thread_id() == 0) __hip_atomic_store(flag, 1u, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
}
DG_DEVICE void await(u32* flag) {
    if (thread_id() == 0) {
        while (__hip_atomic_load(flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) == 0u) __builtin_amdgcn_s_sleep(1);
        __hip_atomic_store(flag, 0u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    }
    barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
}
DG_DEVICE void reset(u32* counter) {
    if (thread_id() == 0) __hip_atomic_store(counter, 0u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

DG_DEVICE f32 float_of_bits(u32 bits) { return bit_cast<f32>(bits); }
DG_DEVICE u32 bits_of_float(f32 x) { return bit_cast<u32>(x); }
DG_DEVICE f32 half_to_float(f16 x) { return (f32)bit_cast<_Float16>(x.bits); }
DG_DEVICE f16 float_to_half(f32 x) { return {bit_cast<u16>((_Float16)x)}; }
DG_DEVICE f32 fused(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
DG_DEVICE f64 fused(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }

#if __has_builtin(__builtin_amdgcn_sdot4)
DG_DEVICE i32 dot(Vec<i8, 4> a, Vec<i8, 4> b, i32 c) {
#if defined(__gfx1100__)
    return __builtin_amdgcn_sudot4(true, bit_cast<i32>(a), true, bit_cast<i32>(b), c, false);
#else
    return __builtin_amdgcn_sdot4(bit_cast<i32>(a), bit_cast<i32>(b), c, false);
#endif
}
DG_DEVICE f32 dot(Vec<f16, 2> a, Vec<f16, 2> b, f32 c) {
    typedef _Float16 half2 __attribute__((ext_vector_type(2)));
    return __builtin_amdgcn_fdot2(bit_cast<half2>(a), bit_cast<half2>(b), c, false);
}
#endif
