// A read of what a launch before has written, though this one began before it ended.
#pragma once
#include "instructions.h"

DG_DEVICE float2 load_pair(const void* from) {
    float2 v;
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(from) : "memory");
    return v;
}
