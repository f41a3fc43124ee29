#include "numbers.h"
#include "cpu_pool.h"
#include "parts.h"

FLOAT_VECTOR(f32, i32, 4)
#define LANES 4
#include "vector_math.h"
#undef LANES
WHOLE_VECTOR(i16, i16, u16, 4)
WHOLE_VECTOR(i32, i32, u32, 4)
U16_VECTOR(4)
static inline i32x4 i32_of_u16x4(u16x4 x) {
#if defined(__aarch64__) && !defined(__clang__)
    i32x4 all;
    for (int n = 0; n < 4; n++) all[n] = (i32)x[n];
    return all;
#else
    return __builtin_convertvector(x, i32x4);
#endif
}

static inline u16x4 u16_of_i32x4(i32x4 x) {
#if defined(__aarch64__) && !defined(__clang__)
    u16x4 all;
    for (int n = 0; n < 4; n++) all[n] = (u16)x[n];
    return all;
#else
    return __builtin_convertvector(x, u16x4);
#endif
}

STORED_VECTOR(4)

typedef struct {
    const bf16 *x;
    bf16 *y;
    char *own;
    loop_part *parts;
    i64 threads, together;
} deepgen_softmax_part0_job;

static void deepgen_softmax_part0(void *given, int thread) {
    deepgen_softmax_part0_job *j = given;
    const bf16 *restrict x = j->x;
    bf16 *restrict y = j->y;
    char *own = j->own + thread * (i64)192;
    (void)own;
    for (int nth = 0; nth < j->threads; nth++) {
        loop_part *part = &j->parts[(thread + nth) % j->threads];
        for (i64 from; (from = atomic_fetch_add(&part->next, j->together)) < part->end;) {
            const i64 to = least(part->end, from + j->together);
            for (i64 y_i0 = from; y_i0 < to; y_i0++) {
                {
                    f32 *restrict most = (f32 *)(own + 0);
                    most[0] = ((f32)-INFINITY);
                    most[0] = max_f32(most[0], most_f32x4(widen_bf16x4(at_u16x4(&x[y_i0 * 9]))));
                    most[0] = max_f32(most[0], most_f32x4(widen_bf16x4(at_u16x4(&x[y_i0 * 9 + 4]))));
                    most[0] = max_f32(most[0], widen_bf16(x[y_i0 * 9 + 8]));
                    {
                        f32 *restrict powers = (f32 *)(own + 64);
                        put_f32x4(&powers[0], exp_f32x4((widen_bf16x4(at_u16x4(&x[y_i0 * 9])) - all_f32x4(most[0]))));
                        put_f32x4(&powers[4], exp_f32x4((widen_bf16x4(at_u16x4(&x[y_i0 * 9 + 4])) - all_f32x4(most[0]))));
                        powers[8] = exp_f32((widen_bf16(x[y_i0 * 9 + 8]) - most[0]));
                        {
                            f32 *restrict total = (f32 *)(own + 128);
                            total[0] = 0.0f;
                            for (i64 total_r0 = 0; total_r0 < 9; total_r0++) {
                                total[0] = (total[0] + powers[total_r0]);
                            }
                            put_u16x4(&y[y_i0 * 9], narrow_bf16x4((at_f32x4(&powers[0]) / all_f32x4(total[0]))));
                            put_u16x4(&y[y_i0 * 9 + 4], narrow_bf16x4((at_f32x4(&powers[4]) / all_f32x4(total[0]))));
                            y[y_i0 * 9 + 8] = narrow_bf16((powers[8] / total[0]));
                        }
                    }
                }
            }
        }
    }
}

void deepgen_softmax(const bf16 *restrict x, bf16 *restrict y, void *workspace, i32 threads) {
    (void)workspace, (void)threads;
    {
        const i64 turns = 5;
        loop_part parts[threads];
        loop_parts(parts, threads, turns);
        deepgen_softmax_part0_job job = {.x = x, .y = y, .own = (char *)workspace + 0, .parts = parts, .threads = threads, .together = turns / (threads * 8) + (turns < threads * 8)};
        pool_run(threads, deepgen_softmax_part0, &job);
    }
}
