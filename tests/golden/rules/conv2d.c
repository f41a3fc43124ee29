#include "numbers.h"

FLOAT_VECTOR(f32, i32, 4)
#define LANES 4
#include "vector_math.h"
#undef LANES

void deepgen_conv2d(const f32 *restrict x, const f32 *restrict w, f32 *restrict y, void *workspace, i32 threads) {
    (void)workspace, (void)threads;
    for (i64 y_i0 = 0; y_i0 < 6; y_i0++) {
        for (i64 y_i1_0 = 0; y_i1_0 < 3; y_i1_0++) {
            {
                f32x4 sums_0, sums_1, sums_2, sums_3;
                sums_0 = all_f32x4(0.0f);
                sums_1 = all_f32x4(0.0f);
                sums_2 = all_f32x4(0.0f);
                sums_3 = all_f32x4(0.0f);
                for (i64 sums_r0 = 0; sums_r0 < 3; sums_r0++) {
                    if (sums_r0 + y_i0 - 1 >= NOUGHT) {
                        if (6 - sums_r0 - y_i0 >= NOUGHT) {
                            for (i64 sums_r1 = 0; sums_r1 < 3; sums_r1++) {
                                if (sums_r1 + y_i1_0 * 2 - 1 >= NOUGHT && 5 - sums_r1 - y_i1_0 * 2 >= NOUGHT) {
                                    for (i64 sums_r2 = 0; sums_r2 < 3; sums_r2++) {
                                        sums_0 = (sums_0 + (all_f32x4(x[sums_r0 * 18 + sums_r1 * 3 + sums_r2 + y_i0 * 18 + y_i1_0 * 6 - 21]) * at_f32x4(&w[sums_r0 * 72 + sums_r1 * 24 + sums_r2 * 8])));
                                        sums_1 = (sums_1 + (all_f32x4(x[sums_r0 * 18 + sums_r1 * 3 + sums_r2 + y_i0 * 18 + y_i1_0 * 6 - 21]) * at_f32x4(&w[sums_r0 * 72 + sums_r1 * 24 + sums_r2 * 8 + 4])));
                                        sums_2 = (sums_2 + (all_f32x4(x[sums_r0 * 18 + sums_r1 * 3 + sums_r2 + y_i0 * 18 + y_i1_0 * 6 - 18]) * at_f32x4(&w[sums_r0 * 72 + sums_r1 * 24 + sums_r2 * 8])));
                                        sums_3 = (sums_3 + (all_f32x4(x[sums_r0 * 18 + sums_r1 * 3 + sums_r2 + y_i0 * 18 + y_i1_0 * 6 - 18]) * at_f32x4(&w[sums_r0 * 72 + sums_r1 * 24 + sums_r2 * 8 + 4])));
                                    }
                                } else {
                                    for (i64 sums_r2 = 0; sums_r2 < 3; sums_r2++) {
                                        sums_0 = (sums_0 + (all_f32x4(((NOUGHT <= (sums_r1 + y_i1_0 * 2 - 1)) ? x[sums_r0 * 18 + sums_r1 * 3 + sums_r2 + y_i0 * 18 + y_i1_0 * 6 - 21] : 0.0f)) * at_f32x4(&w[sums_r0 * 72 + sums_r1 * 24 + sums_r2 * 8])));
                                        sums_1 = (sums_1 + (all_f32x4(((NOUGHT <= (sums_r1 + y_i1_0 * 2 - 1)) ? x[sums_r0 * 18 + sums_r1 * 3 + sums_r2 + y_i0 * 18 + y_i1_0 * 6 - 21] : 0.0f)) * at_f32x4(&w[sums_r0 * 72 + sums_r1 * 24 + sums_r2 * 8 + 4])));
                                        sums_2 = (sums_2 + (all_f32x4(((NOUGHT <= (5 - sums_r1 - y_i1_0 * 2)) ? x[sums_r0 * 18 + sums_r1 * 3 + sums_r2 + y_i0 * 18 + y_i1_0 * 6 - 18] : 0.0f)) * at_f32x4(&w[sums_r0 * 72 + sums_r1 * 24 + sums_r2 * 8])));
                                        sums_3 = (sums_3 + (all_f32x4(((NOUGHT <= (5 - sums_r1 - y_i1_0 * 2)) ? x[sums_r0 * 18 + sums_r1 * 3 + sums_r2 + y_i0 * 18 + y_i1_0 * 6 - 18] : 0.0f)) * at_f32x4(&w[sums_r0 * 72 + sums_r1 * 24 + sums_r2 * 8 + 4])));
                                    }
                                }
                            }
                        } else {
                            for (i64 sums_r1 = 0; sums_r1 < 3; sums_r1++) {
                                for (i64 sums_r2 = 0; sums_r2 < 3; sums_r2++) {
                                    sums_0 = (sums_0 + (all_f32x4(0.0f) * at_f32x4(&w[sums_r0 * 72 + sums_r1 * 24 + sums_r2 * 8])));
                                    sums_1 = (sums_1 + (all_f32x4(0.0f) * at_f32x4(&w[sums_r0 * 72 + sums_r1 * 24 + sums_r2 * 8 + 4])));
                                    sums_2 = (sums_2 + (all_f32x4(0.0f) * at_f32x4(&w[sums_r0 * 72 + sums_r1 * 24 + sums_r2 * 8])));
                                    sums_3 = (sums_3 + (all_f32x4(0.0f) * at_f32x4(&w[sums_r0 * 72 + sums_r1 * 24 + sums_r2 * 8 + 4])));
                                }
                            }
                        }
                    } else {
                        for (i64 sums_r1 = 0; sums_r1 < 3; sums_r1++) {
                            for (i64 sums_r2 = 0; sums_r2 < 3; sums_r2++) {
                                sums_0 = (sums_0 + (all_f32x4(0.0f) * at_f32x4(&w[sums_r0 * 72 + sums_r1 * 24 + sums_r2 * 8])));
                                sums_1 = (sums_1 + (all_f32x4(0.0f) * at_f32x4(&w[sums_r0 * 72 + sums_r1 * 24 + sums_r2 * 8 + 4])));
                                sums_2 = (sums_2 + (all_f32x4(0.0f) * at_f32x4(&w[sums_r0 * 72 + sums_r1 * 24 + sums_r2 * 8])));
                                sums_3 = (sums_3 + (all_f32x4(0.0f) * at_f32x4(&w[sums_r0 * 72 + sums_r1 * 24 + sums_r2 * 8 + 4])));
                            }
                        }
                    }
                }
                put_f32x4(&y[y_i0 * 48 + y_i1_0 * 16], sums_0);
                put_f32x4(&y[y_i0 * 48 + y_i1_0 * 16 + 4], sums_1);
                put_f32x4(&y[y_i0 * 48 + y_i1_0 * 16 + 8], sums_2);
                put_f32x4(&y[y_i0 * 48 + y_i1_0 * 16 + 12], sums_3);
            }
        }
    }
}
