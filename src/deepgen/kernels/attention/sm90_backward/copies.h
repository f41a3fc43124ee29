// A copy that the engine makes of bytes in a row, beside those of tiles: addresses and sizes are multiples of 16 bytes.
#pragma once
#include "instructions.h"

DG_DEVICE void fetch_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
