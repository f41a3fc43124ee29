#include "matrices.h"

DG_MFMA(mfma_f16, f32, f16, 16, 16, mfma_f32_16x16x16f16)

DG_KERNEL(64, 1)
deepgen_C_0(const f16* __restrict__ A_, const f16* __restrict__ B_, f32* __restrict__ C_) {
    const int block_x_ = block_id();
    (void)block_x_;
    const int block_y_ = 0;
    (void)block_y_;
    const int block_z_ = 0;
    (void)block_z_;
    const int thread_x_ = thread_id();
    (void)thread_x_;
    const int thread_y_ = 0;
    (void)thread_y_;
    const int thread_z_ = 0;
    (void)thread_z_;
    const u32 shared = shared_begin();
    (void)shared;
    {
        DG_HELD(f32, C_sums_, 8);
        DG_UNROLL for (int C_sums_start_ = 0; C_sums_start_ < 8; ++C_sums_start_) {
            C_sums_[C_sums_start_] = 0.0f;
        }
        DG_NO_UNROLL for (int C_sums_r0_0_ = 0; C_sums_r0_0_ < 4; ++C_sums_r0_0_) {
            {
                const u32 A_shared_ = shared + 0;
                barrier();
                if (thread_x_ * -8 + 248 >= 0) {
                    {
                        const Vec<f16, 8> part0 = read_input<8, f16, 8>(A_ + ((int)((u32)(block_x_) / 2u) * 1024 + (int)((u32)(thread_x_) % 2u) * 8 + (int)((u32)(thread_x_) / 2u) * 64 + C_sums_r0_0_ * 16), ((int)((u32)(block_x_) / 2u) * -16 + (int)((u32)(thread_x_) / 2u) * -1 + 63 >= 0));
                        Vec<f16, 8> out;
                        DG_UNROLL for (int A_shared_a0_a1_3_ = 0; A_shared_a0_a1_3_ < 8; ++A_shared_a0_a1_3_) out.v[A_shared_a0_a1_3_] = part0.v[A_shared_a0_a1_3_];
                        write_shared<8>(A_shared_ + swizzled<3, 7>((thread_x_ * 8) * 2), out);
                    }
                }
                {
                    const u32 B_shared_ = shared + 512;
                    {
                        const Vec<f16, 8> part0 = read_plain<8, f16, 8>(B_ + ((int)((u32)(block_x_) % 2u) * 2048 + (int)((u32)(thread_x_) % 2u) * 8 + (int)((u32)(thread_x_) / 2u) * 64 + C_sums_r0_0_ * 16), true);
                        Vec<f16, 8> out;
                        DG_UNROLL for (int B_shared_a0_a1_3_ = 0; B_shared_a0_a1_3_ < 8; ++B_shared_a0_a1_3_) out.v[B_shared_a0_a1_3_] = part0.v[B_shared_a0_a1_3_];
                        write_shared<8>(B_shared_ + swizzled<3, 7>((thread_x_ * 8) * 2), out);
                    }
                    barrier();
                    {
                        DG_HELD(u32, C_sums_rows_, 2);
                        {
                            DG_HELD(u32, C_sums_columns_, 4);
                            load_own<2>(C_sums_rows_ + (0), A_shared_ + swizzled<3, 7>(((int)((u32)(thread_x_) % 16u) * 16 + (int)((u32)(thread_x_) / 16u) * 4) * 2));
                            DG_UNROLL for (int C_sums_i1_0_ = 0; C_sums_i1_0_ < 2; ++C_sums_i1_0_) {
                                load_own<2>(C_sums_columns_ + (C_sums_i1_0_ * 2), B_shared_ + swizzled<3, 7>(((int)((u32)(thread_x_) % 16u) * 16 + (int)((u32)(thread_x_) / 16u) * 4 + C_sums_i1_0_ * 256) * 2));
                            }
                            DG_UNROLL for (int C_sums_i1_0_ = 0; C_sums_i1_0_ < 2; ++C_sums_i1_0_) {
                                mfma_f16(C_sums_ + (C_sums_i1_0_ * 4), C_sums_rows_ + (0), C_sums_columns_ + (C_sums_i1_0_ * 2));
                            }
                        }
                    }
                }
            }
        }
        DG_UNROLL for (int C_i1_2_ = 0; C_i1_2_ < 2; ++C_i1_2_) {
            {
                Vec<f32, 4> out;
                DG_UNROLL for (int C_i1_3_1_ = 0; C_i1_3_1_ < 4; ++C_i1_3_1_) out.v[C_i1_3_1_] = C_sums_[C_i1_2_ * 4 + C_i1_3_1_];
                write_global<4>(C_ + ((int)((u32)(block_x_) % 2u) * 32 + (int)((u32)(block_x_) / 2u) * 1024 + (int)((u32)(thread_x_) % 16u) * 64 + (int)((u32)(thread_x_) / 16u) * 4 + C_i1_2_ * 16), out);
            }
        }
    }
    block_ends();
}
