#include "numbers.h"
#include "cpu_pool.h"
#include "parts.h"

FLOAT_VECTOR(f32, i32, 4)
#define LANES 4
#include "vector_math.h"
#undef LANES

typedef struct {
    const f32 *A;
    const f32 *B;
    f32 *C;
    f32 *panels;
    char *own;
    loop_part *parts;
    i64 threads, together;
} deepgen_gemm_part0_job;

static void deepgen_gemm_part0(void *given, int thread) {
    deepgen_gemm_part0_job *j = given;
    const f32 *restrict A = j->A;
    const f32 *restrict B = j->B;
    f32 *restrict C = j->C;
    f32 *restrict panels = j->panels;
    char *own = j->own + thread * (i64)64;
    (void)own;
    for (int nth = 0; nth < j->threads; nth++) {
        loop_part *part = &j->parts[(thread + nth) % j->threads];
        for (i64 from; (from = atomic_fetch_add(&part->next, j->together)) < part->end;) {
            const i64 to = least(part->end, from + j->together);
            for (i64 C_i0_0 = from; C_i0_0 < to; C_i0_0++) {
                {
                    f32 *restrict strip = (f32 *)(own + 0);
                    for (i64 strip_a0 = 0; strip_a0 < least(2, 7 - C_i0_0 * 2); strip_a0++) {
                        for (i64 strip_a1 = 0; strip_a1 < 5; strip_a1++) {
                            strip[strip_a0 * 5 + strip_a1] = A[C_i0_0 * 10 + strip_a0 * 5 + strip_a1];
                        }
                    }
                    for (i64 C_i1_0 = 0; C_i1_0 < 3; C_i1_0++) {
                        {
                            f32x4 sums_0, sums_1;
                            sums_0 = all_f32x4(0.0f);
                            sums_1 = all_f32x4(0.0f);
                            for (i64 sums_r0 = 0; sums_r0 < 5; sums_r0++) {
                                sums_0 = (sums_0 + (all_f32x4(strip[sums_r0]) * at_f32x4(&panels[C_i1_0 * 20 + sums_r0 * 4])));
                                sums_1 = (sums_1 + (all_f32x4(strip[sums_r0 + 5]) * at_f32x4(&panels[C_i1_0 * 20 + sums_r0 * 4])));
                            }
                            if (5 - C_i0_0 * 2 >= NOUGHT && 6 - C_i1_0 * 4 >= NOUGHT) {
                                put_f32x4(&C[C_i0_0 * 20 + C_i1_0 * 4], sums_0);
                                put_f32x4(&C[C_i0_0 * 20 + C_i1_0 * 4 + 10], sums_1);
                            } else {
                                C[C_i0_0 * 20 + C_i1_0 * 4] = sums_0[0];
                                C[C_i0_0 * 20 + C_i1_0 * 4 + 1] = sums_0[1];
                                if (7 - C_i1_0 * 4 >= NOUGHT) {
                                    C[C_i0_0 * 20 + C_i1_0 * 4 + 2] = sums_0[2];
                                }
                                if (6 - C_i1_0 * 4 >= NOUGHT) {
                                    C[C_i0_0 * 20 + C_i1_0 * 4 + 3] = sums_0[3];
                                }
                                if (5 - C_i0_0 * 2 >= NOUGHT) {
                                    C[C_i0_0 * 20 + C_i1_0 * 4 + 10] = sums_1[0];
                                    C[C_i0_0 * 20 + C_i1_0 * 4 + 11] = sums_1[1];
                                    if (7 - C_i1_0 * 4 >= NOUGHT) {
                                        C[C_i0_0 * 20 + C_i1_0 * 4 + 12] = sums_1[2];
                                    }
                                    if (6 - C_i1_0 * 4 >= NOUGHT) {
                                        C[C_i0_0 * 20 + C_i1_0 * 4 + 13] = sums_1[3];
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

void deepgen_gemm(const f32 *restrict A, const f32 *restrict B, f32 *restrict C, void *workspace, i32 threads) {
    (void)workspace, (void)threads;
    {
        f32 *restrict panels = (f32 *)((char *)workspace + 0);
        for (i64 panels_a0 = 0; panels_a0 < 5; panels_a0++) {
            for (i64 panels_a1 = 0; panels_a1 < 10; panels_a1++) {
                panels[((panels_a1) % 4) + ((panels_a1) / 4) * 20 + panels_a0 * 4] = B[panels_a0 * 10 + panels_a1];
            }
        }
        {
            const i64 turns = 4;
            loop_part parts[threads];
            loop_parts(parts, threads, turns);
            deepgen_gemm_part0_job job = {.A = A, .B = B, .C = C, .panels = panels, .own = (char *)workspace + 256, .parts = parts, .threads = threads, .together = turns / (threads * 8) + (turns < threads * 8)};
            pool_run(threads, deepgen_gemm_part0, &job);
        }
    }
}
