// What tensor cores add to the dialect: warp-wide loads and products, copies that may end early, 8-bit floats.
// All inline assembly of the family is here; `emulate_mma.h` is the CPU's side of it.
#pragma once
#include "dialect.h"

struct tf32 { u32 bits; };
struct f8e4m3 { u8 bits; };
struct f8e5m2 { u8 bits; };

#if defined(DG_EMULATE)
#include "emulate_mma.h"
#else
// Four 8x8 matrices of two-byte elements (eight rows of 16 bytes each): lane 8 * i + r gives the address of row r of
// matrix i. Each lane gets word `lane % 4` of row `lane / 4` of all four.
DG_DEVICE void load_matrices(u32 (&to)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}
// The same, transposed.
DG_DEVICE void load_matrices_turned(u32 (&to)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}

// 16 rows by 8 columns by 32 bytes of K. MMA names shape and formats, as PTX spells them.
#define DG_TEXT_(words) #words
#define DG_TEXT(words) DG_TEXT_(words)
DG_DEVICE void product(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned." DG_TEXT(MMA) " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DG_DEVICE void product(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned." DG_TEXT(MMA) " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// An asynchronous copy of which only the first `real` bytes are read; zeros land in place of the others.
template <int BYTES>
DG_DEVICE void copy_async_part(u32 to, const void* from, int real) {
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(real)
                     : "memory");
}

// 16 bytes that are read once: kept in no cache, or as briefly as can be (HINT).
struct Streaming {
#if HINT
    u64 policy;
    DG_DEVICE Streaming() { asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy)); }
    DG_DEVICE Vec<u32, 4> load(const void* from) const {
        Vec<u32, 4> to;
        asm volatile("ld.global.L1::no_allocate.L2::cache_hint.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                     : "=r"(to.v[0]), "=r"(to.v[1]), "=r"(to.v[2]), "=r"(to.v[3]) : "l"(from), "l"(policy) : "memory");
        return to;
    }
#else
    DG_DEVICE Vec<u32, 4> load(const void* from) const { return load_global<Vec<u32, 4>>(from); }
#endif
};

// Bytes of two words in any order: nibble i of `order` says which of the eight comes to byte i.
DG_DEVICE u32 pick_bytes(u32 a, u32 b, u32 order) { return __byte_perm(a, b, order); }
DG_DEVICE f32 from_lane_across(f32 x, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, x, mask); }
DG_DEVICE f32 exponential(f32 x) { return __expf(x); }
DG_DEVICE void narrow_two(f32 a, f32 b, Vec<bf16, 2>& out) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
    out = bit_cast<Vec<bf16, 2>>(both);
}
DG_DEVICE void narrow_two(f32 a, f32 b, Vec<f16, 2>& out) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
    out = bit_cast<Vec<f16, 2>>(both);
}
// Nothing on a GPU. The emulation lets no thread end before its warp is done.
DG_DEVICE void block_ends() {}
#endif

DG_DEVICE void narrow_two(f32 a, f32 b, Vec<f32, 2>& out) { out = {{a, b}}; }
DG_DEVICE void narrow_two(i32 a, i32 b, Vec<i32, 2>& out) { out = {{a, b}}; }
DG_DEVICE void to_work(f32 x, f32& y) { y = x; }
DG_DEVICE void to_work(i32 x, i32& y) { y = x; }
DG_DEVICE void to_work(i32 x, f32& y) { y = (f32)x; }
