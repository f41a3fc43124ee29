// The threads that share a row: TEAM of them, ROWS teams in a block.
#pragma once
#include "dialect.h"

constexpr int THREADS = TEAM * ROWS;

// What a reduction needs of shared memory, be it of two numbers at once; kept values come after it.
constexpr u32 TEAM_BYTES = 2 * sizeof(TYPE_ACC) * (THREADS + ROWS * PARTS);

// The values of all threads of a team, joined: PARTS threads join TEAM / PARTS values each, then every thread joins what
// they found. Every thread of the block calls it. Nothing is overwritten before all have read it: a barrier of the next
// call lies between.
template <typename T, typename Join>
DG_DEVICE T over_team(T mine, Join join) {
    const int team = thread_id() / TEAM, member = thread_id() % TEAM;
    const u32 values = shared_begin() + team * TEAM * sizeof(T);
    const u32 results = shared_begin() + (THREADS + team * PARTS) * sizeof(T);
    store_shared(values + member * sizeof(T), mine);
    barrier();
    if (member < PARTS) {
        T part = load_shared<T>(values + member * sizeof(T));
        DG_UNROLL for (int i = 1; i < TEAM / PARTS; ++i)
            part = join(part, load_shared<T>(values + (i * PARTS + member) * sizeof(T)));
        store_shared(results + member * sizeof(T), part);
    }
    barrier();
    T all = load_shared<T>(results);
    DG_UNROLL for (int i = 1; i < PARTS; ++i) all = join(all, load_shared<T>(results + i * sizeof(T)));
    return all;
}
