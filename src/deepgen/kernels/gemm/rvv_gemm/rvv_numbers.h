// What the number format decides: types, and the few operations on a group of vector registers. LMUL is the group that
// holds sums; SECOND and FOURTH are groups half and a quarter as large, for numbers of half and a quarter of the width.
#pragma once

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define OF(name, group) PASTE(name, group)
#define TYPE(name, group) PASTE(OF(name, group), _t)
#define LENGTH(n) OF(__riscv_vsetvl_e32, LMUL)((size_t)(n))
#define LENGTH_MAX() OF(__riscv_vsetvlmax_e32, LMUL)()

#if FORMAT == 32  // f32
typedef float IN, OUT, FACTOR;
typedef TYPE(vfloat32, LMUL) SUMS, LINE;
#define load(p, vl) OF(__riscv_vle32_v_f32, LMUL)(p, vl)
#define load_strided(p, step, vl) OF(__riscv_vlse32_v_f32, LMUL)(p, (step) * 4, vl)
#define store_raw(p, x, vl) __riscv_vse32(p, x, vl)
#define store_strided(p, step, x, vl) __riscv_vsse32(p, (step) * 4, x, vl)
#define widened(p, vl) load(p, vl)
static inline void store(OUT *to, SUMS x, size_t vl) { __riscv_vse32(to, x, vl); }

#elif FORMAT == 16  // f16, sums in f32
typedef _Float16 IN, OUT;
typedef float FACTOR;
typedef TYPE(vfloat32, LMUL) SUMS;
typedef TYPE(vfloat16, SECOND) LINE;
#define load(p, vl) OF(__riscv_vle16_v_f16, SECOND)(p, vl)
#define load_strided(p, step, vl) OF(__riscv_vlse16_v_f16, SECOND)(p, (step) * 2, vl)
#define store_raw(p, x, vl) __riscv_vse16(p, x, vl)
#define store_strided(p, step, x, vl) __riscv_vsse16(p, (step) * 2, x, vl)
#define widened(p, vl) __riscv_vfwcvt_f(load(p, vl), vl)
static inline void store(OUT *to, SUMS x, size_t vl) { __riscv_vse16(to, __riscv_vfncvt_f(x, vl), vl); }

#else  // i8, sums in i32
typedef int8_t IN;
typedef int32_t OUT, FACTOR;
typedef TYPE(vint32, LMUL) SUMS;
typedef TYPE(vint16, SECOND) LINE;
typedef TYPE(vint8, FOURTH) STORED_LINE;  // B's numbers as they are stored
#define load(p, vl) OF(__riscv_vle8_v_i8, FOURTH)(p, vl)
#define load_strided(p, step, vl) OF(__riscv_vlse8_v_i8, FOURTH)(p, step, vl)
#define store_raw(p, x, vl) __riscv_vse8(p, x, vl)
#define store_strided(p, step, x, vl) __riscv_vsse8(p, step, x, vl)
static inline void store(OUT *to, SUMS x, size_t vl) { __riscv_vse32(to, x, vl); }
#endif

#if FORMAT == 8
static inline SUMS scaled(SUMS x, FACTOR by, size_t vl) { return by == 1 ? x : __riscv_vmul(x, by, vl); }
static inline SUMS plus_scaled(SUMS x, const OUT *c, FACTOR by, size_t vl) {
    return __riscv_vmacc(x, by, OF(__riscv_vle32_v_i32, LMUL)(c, vl), vl);
}
static inline SUMS plus(SUMS x, const OUT *c, size_t vl) {
    return __riscv_vadd(x, OF(__riscv_vle32_v_i32, LMUL)(c, vl), vl);
}
static inline SUMS positive(SUMS x, size_t vl) { return __riscv_vmax(x, 0, vl); }
#else
static inline SUMS scaled(SUMS x, FACTOR by, size_t vl) { return by == 1 ? x : __riscv_vfmul(x, by, vl); }
static inline SUMS plus_scaled(SUMS x, const OUT *c, FACTOR by, size_t vl) {
    return __riscv_vfmacc(x, by, widened(c, vl), vl);
}
static inline SUMS plus(SUMS x, const OUT *c, size_t vl) { return __riscv_vfadd(x, widened(c, vl), vl); }
// NaN stays NaN, which the maximum would lose.
static inline SUMS positive(SUMS x, size_t vl) { return __riscv_vfmerge(x, 0, __riscv_vmflt(x, 0, vl), vl); }
#endif
