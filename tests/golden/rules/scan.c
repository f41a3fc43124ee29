#include "numbers.h"
#include "cpu_pool.h"
#include "parts.h"

WHOLE_VECTOR(i32, i32, u32, 4)

typedef struct {
    const i32 *x;
    i32 *y;
    char *own;
    loop_part *parts;
    i64 threads, together;
} deepgen_scan_part0_job;

static void deepgen_scan_part0(void *given, int thread) {
    deepgen_scan_part0_job *j = given;
    const i32 *restrict x = j->x;
    i32 *restrict y = j->y;
    char *own = j->own + thread * (i64)0;
    (void)own;
    for (int nth = 0; nth < j->threads; nth++) {
        loop_part *part = &j->parts[(thread + nth) % j->threads];
        for (i64 from; (from = atomic_fetch_add(&part->next, j->together)) < part->end;) {
            const i64 to = least(part->end, from + j->together);
            for (i64 y_i1_0 = from; y_i1_0 < to; y_i1_0++) {
                for (i64 y_i0 = 0; y_i0 < 6; y_i0++) {
                    if (2 - y_i1_0 * 8 >= NOUGHT) {
                        if (-y_i0 >= NOUGHT) {
                            put_i32x4(&y[y_i0 * 10 + y_i1_0 * 8], at_i32x4(&x[y_i0 * 10 + y_i1_0 * 8]));
                            put_i32x4(&y[y_i0 * 10 + y_i1_0 * 8 + 4], at_i32x4(&x[y_i0 * 10 + y_i1_0 * 8 + 4]));
                        } else {
                            put_i32x4(&y[y_i0 * 10 + y_i1_0 * 8], add_i32x4(at_i32x4(&y[y_i0 * 10 + y_i1_0 * 8 - 10]), at_i32x4(&x[y_i0 * 10 + y_i1_0 * 8])));
                            put_i32x4(&y[y_i0 * 10 + y_i1_0 * 8 + 4], add_i32x4(at_i32x4(&y[y_i0 * 10 + y_i1_0 * 8 - 6]), at_i32x4(&x[y_i0 * 10 + y_i1_0 * 8 + 4])));
                        }
                    } else {
                        for (i64 y_i1_1 = 0; y_i1_1 < least(8, 10 - y_i1_0 * 8); y_i1_1++) {
                            y[y_i0 * 10 + y_i1_0 * 8 + y_i1_1] = ((NOUGHT <= (-y_i0)) ? x[y_i0 * 10 + y_i1_0 * 8 + y_i1_1] : add_i32(y[y_i0 * 10 + y_i1_0 * 8 + y_i1_1 - 10], x[y_i0 * 10 + y_i1_0 * 8 + y_i1_1]));
                        }
                    }
                }
            }
        }
    }
}

void deepgen_scan(const i32 *restrict x, i32 *restrict y, void *workspace, i32 threads) {
    (void)workspace, (void)threads;
    {
        const i64 turns = 2;
        loop_part parts[threads];
        loop_parts(parts, threads, turns);
        deepgen_scan_part0_job job = {.x = x, .y = y, .own = (char *)workspace + 0, .parts = parts, .threads = threads, .together = turns / (threads * 8) + (turns < threads * 8)};
        pool_run(threads, deepgen_scan_part0, &job);
    }
}
