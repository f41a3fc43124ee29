// Scans along lanes.
#pragma once
#include "expressions.h"

// Scans the COUNT numbers of each of TEAM neighbouring lanes as one row, which goes on from `carry`; all lanes then have
// in `carry` what the row came to. Every thread of the block calls it.
template <int TEAM, int COUNT, typename T, T (*JOIN)(T, T)>
DG_DEVICE void scan_lanes(T* x, T* carry) {
    static_assert((TEAM & (TEAM - 1)) == 0 && TEAM <= WARP, "lanes are joined two by two");
    DG_UNROLL for (int i = 1; i < COUNT; ++i) x[i] = JOIN(x[i - 1], x[i]);
    T total = x[COUNT - 1], before = *carry;
    DG_UNROLL for (int mask = 1; mask < TEAM; mask *= 2) {
        const T theirs = of_lane_across(total, mask);
        if (thread_id() & mask) before = JOIN(before, theirs);
        total = JOIN(total, theirs);
    }
    DG_UNROLL for (int i = 0; i < COUNT; ++i) x[i] = JOIN(before, x[i]);
    *carry = JOIN(*carry, total);
}
