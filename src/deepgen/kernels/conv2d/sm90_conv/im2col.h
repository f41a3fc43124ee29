// The copy engine's way to gather a convolution's windows.
#pragma once

#define DG_WINDOWS "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
#define DG_WINDOWS_FROM " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}"
// Windows one after the other, from one on: of each the channels of one tap, zeros outside of the image.
template <int SHARES, int USE>
DG_DEVICE void get_windows(
    u32 to, const TensorMap* map, u32 barrier, int channel, const Window& at, short tap_x, short tap_y, u32 mask, u64 use
) {
    if (SHARES > 1 && USE == NORMAL)
        asm volatile(
            "{\n.reg .b16 blocks;\ncvt.u16.u32 blocks, %9;\n" DG_WINDOWS ".multicast::cluster" DG_WINDOWS_FROM ", blocks;\n}"
            ::"r"(to), "l"(map), "r"(barrier), "r"(channel), "r"(at.x), "r"(at.y), "r"(at.image), "h"(tap_x), "h"(tap_y),
              "r"(mask) : "memory");
    else if (SHARES > 1)
        asm volatile(
            "{\n.reg .b16 blocks;\ncvt.u16.u32 blocks, %9;\n"
            DG_WINDOWS ".multicast::cluster.L2::cache_hint" DG_WINDOWS_FROM ", blocks, %10;\n}"
            ::"r"(to), "l"(map), "r"(barrier), "r"(channel), "r"(at.x), "r"(at.y), "r"(at.image), "h"(tap_x), "h"(tap_y),
              "r"(mask), "l"(use) : "memory");
    else if (USE == NORMAL)
        asm volatile(
            DG_WINDOWS DG_WINDOWS_FROM ";"
            ::"r"(to), "l"(map), "r"(barrier), "r"(channel), "r"(at.x), "r"(at.y), "r"(at.image), "h"(tap_x), "h"(tap_y)
            : "memory");
    else
        asm volatile(
            DG_WINDOWS ".L2::cache_hint" DG_WINDOWS_FROM ", %9;"
            ::"r"(to), "l"(map), "r"(barrier), "r"(channel), "r"(at.x), "r"(at.y), "r"(at.image), "h"(tap_x), "h"(tap_y),
              "l"(use) : "memory");
}
