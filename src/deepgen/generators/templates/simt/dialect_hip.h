// HIP's side of the dialect, through the compiler's own builtins: it needs no header of a vendor's toolkit.
#pragma once

#define DG_DEVICE __attribute__((device)) __attribute__((always_inline)) inline
#define DG_KERNEL(threads, blocks)                                                                  \
    extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(threads, threads))) \
        __attribute__((amdgpu_num_vgpr(0))) void
#define DG_UNROLL _Pragma("unroll")
