// A copy that the engine makes of bytes in a row, beside those of tiles: addresses and sizes are multiples of 16 bytes.
// And a read of what a launch before has written, though this one began before it ended.
#pragma once
#include "instructions.h"

DG_DEVICE void fetch_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

DG_DEVICE float2 load_pair(const void* from) {
    float2 v;
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(from) : "memory");
    return v;
}
