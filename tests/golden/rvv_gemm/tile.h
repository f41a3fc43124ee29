// Generated. A tile of ROWS rows and GROUPS groups is tile_ROWS_GROUPS.
static __attribute__((noinline)) void tile_7_1(const IN *a, long lda, const IN *b, long ldb, OUT *c, long ldc, long kc, size_t vl, const finish *f) {
    SUMS s0_0, s1_0, s2_0, s3_0, s4_0, s5_0, s6_0;
    LINE y;
    float x0, x1, x2, x3, x4, x5, x6;
    const IN *a0 = a + 0 * lda;
    const IN *a1 = a + 1 * lda;
    const IN *a2 = a + 2 * lda;
    const IN *a3 = a + 3 * lda;
    const IN *a4 = a + 4 * lda;
    const IN *a5 = a + 5 * lda;
    const IN *a6 = a + 6 * lda;
    long turns = kc / 4, rest = kc % 4;
    long stride = lda * (long)sizeof(IN), group = (long)(vl * sizeof(IN)), step = ldb * (long)sizeof(IN) - 0 * group;
    __asm__ volatile(
        "vsetvli zero, %[vl], e32, m4, ta, ma\n"
        "vmv.v.i %[s0_0], 0\n"
        "vmv.v.i %[s1_0], 0\n"
        "vmv.v.i %[s2_0], 0\n"
        "vmv.v.i %[s3_0], 0\n"
        "vmv.v.i %[s4_0], 0\n"
        "vmv.v.i %[s5_0], 0\n"
        "vmv.v.i %[s6_0], 0\n"
        "beqz %[turns], 2f\n"
        "1:\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 0(%[a0])\n"
        "flw %[x1], 0(%[a1])\n"
        "flw %[x2], 0(%[a2])\n"
        "flw %[x3], 0(%[a3])\n"
        "flw %[x4], 0(%[a4])\n"
        "flw %[x5], 0(%[a5])\n"
        "flw %[x6], 0(%[a6])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vfmacc.vf %[s1_0], %[x1], %[y]\n"
        "vfmacc.vf %[s2_0], %[x2], %[y]\n"
        "vfmacc.vf %[s3_0], %[x3], %[y]\n"
        "vfmacc.vf %[s4_0], %[x4], %[y]\n"
        "vfmacc.vf %[s5_0], %[x5], %[y]\n"
        "vfmacc.vf %[s6_0], %[x6], %[y]\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 4(%[a0])\n"
        "flw %[x1], 4(%[a1])\n"
        "flw %[x2], 4(%[a2])\n"
        "flw %[x3], 4(%[a3])\n"
        "flw %[x4], 4(%[a4])\n"
        "flw %[x5], 4(%[a5])\n"
        "flw %[x6], 4(%[a6])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vfmacc.vf %[s1_0], %[x1], %[y]\n"
        "vfmacc.vf %[s2_0], %[x2], %[y]\n"
        "vfmacc.vf %[s3_0], %[x3], %[y]\n"
        "vfmacc.vf %[s4_0], %[x4], %[y]\n"
        "vfmacc.vf %[s5_0], %[x5], %[y]\n"
        "vfmacc.vf %[s6_0], %[x6], %[y]\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 8(%[a0])\n"
        "flw %[x1], 8(%[a1])\n"
        "flw %[x2], 8(%[a2])\n"
        "flw %[x3], 8(%[a3])\n"
        "flw %[x4], 8(%[a4])\n"
        "flw %[x5], 8(%[a5])\n"
        "flw %[x6], 8(%[a6])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vfmacc.vf %[s1_0], %[x1], %[y]\n"
        "vfmacc.vf %[s2_0], %[x2], %[y]\n"
        "vfmacc.vf %[s3_0], %[x3], %[y]\n"
        "vfmacc.vf %[s4_0], %[x4], %[y]\n"
        "vfmacc.vf %[s5_0], %[x5], %[y]\n"
        "vfmacc.vf %[s6_0], %[x6], %[y]\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 12(%[a0])\n"
        "flw %[x1], 12(%[a1])\n"
        "flw %[x2], 12(%[a2])\n"
        "flw %[x3], 12(%[a3])\n"
        "flw %[x4], 12(%[a4])\n"
        "flw %[x5], 12(%[a5])\n"
        "flw %[x6], 12(%[a6])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vfmacc.vf %[s1_0], %[x1], %[y]\n"
        "vfmacc.vf %[s2_0], %[x2], %[y]\n"
        "vfmacc.vf %[s3_0], %[x3], %[y]\n"
        "vfmacc.vf %[s4_0], %[x4], %[y]\n"
        "vfmacc.vf %[s5_0], %[x5], %[y]\n"
        "vfmacc.vf %[s6_0], %[x6], %[y]\n"
        "addi %[a0], %[a0], 16\n"
        "addi %[a1], %[a1], 16\n"
        "addi %[a2], %[a2], 16\n"
        "addi %[a3], %[a3], 16\n"
        "addi %[a4], %[a4], 16\n"
        "addi %[a5], %[a5], 16\n"
        "addi %[a6], %[a6], 16\n"
        "addi %[turns], %[turns], -1\n"
        "bnez %[turns], 1b\n"
        "2:\n"
        "beqz %[rest], 4f\n"
        "3:\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 0(%[a0])\n"
        "flw %[x1], 0(%[a1])\n"
        "flw %[x2], 0(%[a2])\n"
        "flw %[x3], 0(%[a3])\n"
        "flw %[x4], 0(%[a4])\n"
        "flw %[x5], 0(%[a5])\n"
        "flw %[x6], 0(%[a6])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vfmacc.vf %[s1_0], %[x1], %[y]\n"
        "vfmacc.vf %[s2_0], %[x2], %[y]\n"
        "vfmacc.vf %[s3_0], %[x3], %[y]\n"
        "vfmacc.vf %[s4_0], %[x4], %[y]\n"
        "vfmacc.vf %[s5_0], %[x5], %[y]\n"
        "vfmacc.vf %[s6_0], %[x6], %[y]\n"
        "addi %[a0], %[a0], 4\n"
        "addi %[a1], %[a1], 4\n"
        "addi %[a2], %[a2], 4\n"
        "addi %[a3], %[a3], 4\n"
        "addi %[a4], %[a4], 4\n"
        "addi %[a5], %[a5], 4\n"
        "addi %[a6], %[a6], 4\n"
        "addi %[rest], %[rest], -1\n"
        "bnez %[rest], 3b\n"
        "4:\n"
        : [s0_0] "=&vr"(s0_0), [s1_0] "=&vr"(s1_0), [s2_0] "=&vr"(s2_0), [s3_0] "=&vr"(s3_0), [s4_0] "=&vr"(s4_0), [s5_0] "=&vr"(s5_0), [s6_0] "=&vr"(s6_0), [y] "=&vr"(y), [x0] "=&f"(x0), [x1] "=&f"(x1), [x2] "=&f"(x2), [x3] "=&f"(x3), [x4] "=&f"(x4), [x5] "=&f"(x5), [x6] "=&f"(x6), [b] "+&r"(b), [a0] "+&r"(a0), [a1] "+&r"(a1), [a2] "+&r"(a2), [a3] "+&r"(a3), [a4] "+&r"(a4), [a5] "+&r"(a5), [a6] "+&r"(a6), [turns] "+&r"(turns), [rest] "+&r"(rest)
        : [vl] "r"(vl), [step] "r"(step), [stride] "r"(stride)
        : "memory", "vl", "vtype");
    put(c + 0 * ldc + 0 * (long)vl, s0_0, f, 0 * (long)vl, vl);
    put(c + 1 * ldc + 0 * (long)vl, s1_0, f, 0 * (long)vl, vl);
    put(c + 2 * ldc + 0 * (long)vl, s2_0, f, 0 * (long)vl, vl);
    put(c + 3 * ldc + 0 * (long)vl, s3_0, f, 0 * (long)vl, vl);
    put(c + 4 * ldc + 0 * (long)vl, s4_0, f, 0 * (long)vl, vl);
    put(c + 5 * ldc + 0 * (long)vl, s5_0, f, 0 * (long)vl, vl);
    put(c + 6 * ldc + 0 * (long)vl, s6_0, f, 0 * (long)vl, vl);
}
static __attribute__((noinline)) void tile_4_1(const IN *a, long lda, const IN *b, long ldb, OUT *c, long ldc, long kc, size_t vl, const finish *f) {
    SUMS s0_0, s1_0, s2_0, s3_0;
    LINE y;
    float x0, x1, x2, x3;
    const IN *a0 = a + 0 * lda;
    const IN *a1 = a + 1 * lda;
    const IN *a2 = a + 2 * lda;
    const IN *a3 = a + 3 * lda;
    long turns = kc / 4, rest = kc % 4;
    long stride = lda * (long)sizeof(IN), group = (long)(vl * sizeof(IN)), step = ldb * (long)sizeof(IN) - 0 * group;
    __asm__ volatile(
        "vsetvli zero, %[vl], e32, m4, ta, ma\n"
        "vmv.v.i %[s0_0], 0\n"
        "vmv.v.i %[s1_0], 0\n"
        "vmv.v.i %[s2_0], 0\n"
        "vmv.v.i %[s3_0], 0\n"
        "beqz %[turns], 2f\n"
        "1:\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 0(%[a0])\n"
        "flw %[x1], 0(%[a1])\n"
        "flw %[x2], 0(%[a2])\n"
        "flw %[x3], 0(%[a3])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vfmacc.vf %[s1_0], %[x1], %[y]\n"
        "vfmacc.vf %[s2_0], %[x2], %[y]\n"
        "vfmacc.vf %[s3_0], %[x3], %[y]\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 4(%[a0])\n"
        "flw %[x1], 4(%[a1])\n"
        "flw %[x2], 4(%[a2])\n"
        "flw %[x3], 4(%[a3])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vfmacc.vf %[s1_0], %[x1], %[y]\n"
        "vfmacc.vf %[s2_0], %[x2], %[y]\n"
        "vfmacc.vf %[s3_0], %[x3], %[y]\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 8(%[a0])\n"
        "flw %[x1], 8(%[a1])\n"
        "flw %[x2], 8(%[a2])\n"
        "flw %[x3], 8(%[a3])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vfmacc.vf %[s1_0], %[x1], %[y]\n"
        "vfmacc.vf %[s2_0], %[x2], %[y]\n"
        "vfmacc.vf %[s3_0], %[x3], %[y]\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 12(%[a0])\n"
        "flw %[x1], 12(%[a1])\n"
        "flw %[x2], 12(%[a2])\n"
        "flw %[x3], 12(%[a3])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vfmacc.vf %[s1_0], %[x1], %[y]\n"
        "vfmacc.vf %[s2_0], %[x2], %[y]\n"
        "vfmacc.vf %[s3_0], %[x3], %[y]\n"
        "addi %[a0], %[a0], 16\n"
        "addi %[a1], %[a1], 16\n"
        "addi %[a2], %[a2], 16\n"
        "addi %[a3], %[a3], 16\n"
        "addi %[turns], %[turns], -1\n"
        "bnez %[turns], 1b\n"
        "2:\n"
        "beqz %[rest], 4f\n"
        "3:\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 0(%[a0])\n"
        "flw %[x1], 0(%[a1])\n"
        "flw %[x2], 0(%[a2])\n"
        "flw %[x3], 0(%[a3])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vfmacc.vf %[s1_0], %[x1], %[y]\n"
        "vfmacc.vf %[s2_0], %[x2], %[y]\n"
        "vfmacc.vf %[s3_0], %[x3], %[y]\n"
        "addi %[a0], %[a0], 4\n"
        "addi %[a1], %[a1], 4\n"
        "addi %[a2], %[a2], 4\n"
        "addi %[a3], %[a3], 4\n"
        "addi %[rest], %[rest], -1\n"
        "bnez %[rest], 3b\n"
        "4:\n"
        : [s0_0] "=&vr"(s0_0), [s1_0] "=&vr"(s1_0), [s2_0] "=&vr"(s2_0), [s3_0] "=&vr"(s3_0), [y] "=&vr"(y), [x0] "=&f"(x0), [x1] "=&f"(x1), [x2] "=&f"(x2), [x3] "=&f"(x3), [b] "+&r"(b), [a0] "+&r"(a0), [a1] "+&r"(a1), [a2] "+&r"(a2), [a3] "+&r"(a3), [turns] "+&r"(turns), [rest] "+&r"(rest)
        : [vl] "r"(vl), [step] "r"(step), [stride] "r"(stride)
        : "memory", "vl", "vtype");
    put(c + 0 * ldc + 0 * (long)vl, s0_0, f, 0 * (long)vl, vl);
    put(c + 1 * ldc + 0 * (long)vl, s1_0, f, 0 * (long)vl, vl);
    put(c + 2 * ldc + 0 * (long)vl, s2_0, f, 0 * (long)vl, vl);
    put(c + 3 * ldc + 0 * (long)vl, s3_0, f, 0 * (long)vl, vl);
}
static __attribute__((noinline)) void tile_2_1(const IN *a, long lda, const IN *b, long ldb, OUT *c, long ldc, long kc, size_t vl, const finish *f) {
    SUMS s0_0, s1_0;
    LINE y;
    float x0, x1;
    const IN *a0 = a + 0 * lda;
    const IN *a1 = a + 1 * lda;
    long turns = kc / 4, rest = kc % 4;
    long stride = lda * (long)sizeof(IN), group = (long)(vl * sizeof(IN)), step = ldb * (long)sizeof(IN) - 0 * group;
    __asm__ volatile(
        "vsetvli zero, %[vl], e32, m4, ta, ma\n"
        "vmv.v.i %[s0_0], 0\n"
        "vmv.v.i %[s1_0], 0\n"
        "beqz %[turns], 2f\n"
        "1:\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 0(%[a0])\n"
        "flw %[x1], 0(%[a1])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vfmacc.vf %[s1_0], %[x1], %[y]\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 4(%[a0])\n"
        "flw %[x1], 4(%[a1])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vfmacc.vf %[s1_0], %[x1], %[y]\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 8(%[a0])\n"
        "flw %[x1], 8(%[a1])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vfmacc.vf %[s1_0], %[x1], %[y]\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 12(%[a0])\n"
        "flw %[x1], 12(%[a1])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vfmacc.vf %[s1_0], %[x1], %[y]\n"
        "addi %[a0], %[a0], 16\n"
        "addi %[a1], %[a1], 16\n"
        "addi %[turns], %[turns], -1\n"
        "bnez %[turns], 1b\n"
        "2:\n"
        "beqz %[rest], 4f\n"
        "3:\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 0(%[a0])\n"
        "flw %[x1], 0(%[a1])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vfmacc.vf %[s1_0], %[x1], %[y]\n"
        "addi %[a0], %[a0], 4\n"
        "addi %[a1], %[a1], 4\n"
        "addi %[rest], %[rest], -1\n"
        "bnez %[rest], 3b\n"
        "4:\n"
        : [s0_0] "=&vr"(s0_0), [s1_0] "=&vr"(s1_0), [y] "=&vr"(y), [x0] "=&f"(x0), [x1] "=&f"(x1), [b] "+&r"(b), [a0] "+&r"(a0), [a1] "+&r"(a1), [turns] "+&r"(turns), [rest] "+&r"(rest)
        : [vl] "r"(vl), [step] "r"(step), [stride] "r"(stride)
        : "memory", "vl", "vtype");
    put(c + 0 * ldc + 0 * (long)vl, s0_0, f, 0 * (long)vl, vl);
    put(c + 1 * ldc + 0 * (long)vl, s1_0, f, 0 * (long)vl, vl);
}
static __attribute__((noinline)) void tile_1_1(const IN *a, long lda, const IN *b, long ldb, OUT *c, long ldc, long kc, size_t vl, const finish *f) {
    SUMS s0_0;
    LINE y;
    float x0;
    const IN *a0 = a + 0 * lda;
    long turns = kc / 4, rest = kc % 4;
    long stride = lda * (long)sizeof(IN), group = (long)(vl * sizeof(IN)), step = ldb * (long)sizeof(IN) - 0 * group;
    __asm__ volatile(
        "vsetvli zero, %[vl], e32, m4, ta, ma\n"
        "vmv.v.i %[s0_0], 0\n"
        "beqz %[turns], 2f\n"
        "1:\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 0(%[a0])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 4(%[a0])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 8(%[a0])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 12(%[a0])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "addi %[a0], %[a0], 16\n"
        "addi %[turns], %[turns], -1\n"
        "bnez %[turns], 1b\n"
        "2:\n"
        "beqz %[rest], 4f\n"
        "3:\n"
        "vle32.v %[y], (%[b])\n"
        "add %[b], %[b], %[step]\n"
        "flw %[x0], 0(%[a0])\n"
        "vfmacc.vf %[s0_0], %[x0], %[y]\n"
        "addi %[a0], %[a0], 4\n"
        "addi %[rest], %[rest], -1\n"
        "bnez %[rest], 3b\n"
        "4:\n"
        : [s0_0] "=&vr"(s0_0), [y] "=&vr"(y), [x0] "=&f"(x0), [b] "+&r"(b), [a0] "+&r"(a0), [turns] "+&r"(turns), [rest] "+&r"(rest)
        : [vl] "r"(vl), [step] "r"(step), [stride] "r"(stride)
        : "memory", "vl", "vtype");
    put(c + 0 * ldc + 0 * (long)vl, s0_0, f, 0 * (long)vl, vl);
}
static inline long rows_of_tile(long left) { return left >= 7 ? 7 : left >= 4 ? 4 : left >= 2 ? 2 : left >= 1 ? 1 : 1; }
static inline void tile(long rows, long groups, const IN *a, long lda, const IN *b, long ldb, OUT *c, long ldc, long kc, size_t vl, const finish *f) {
    if (rows == 7 && groups == 1) { tile_7_1(a, lda, b, ldb, c, ldc, kc, vl, f); return; }
    if (rows == 4 && groups == 1) { tile_4_1(a, lda, b, ldb, c, ldc, kc, vl, f); return; }
    if (rows == 2 && groups == 1) { tile_2_1(a, lda, b, ldb, c, ldc, kc, vl, f); return; }
    if (rows == 1 && groups == 1) { tile_1_1(a, lda, b, ldb, c, ldc, kc, vl, f); return; }
}
