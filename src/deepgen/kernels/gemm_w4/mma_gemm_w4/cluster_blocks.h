// Blocks of a cluster add up what they have in each other's shared memory: CLUSTER of them, neighbours in the grid.
#pragma once
#include "dialect_mma.h"

#if CLUSTER > 1
DG_DEVICE int cluster_rank() { return (int)((u32)block_id() % CLUSTER); }

#if defined(DG_EMULATE)
// Blocks run one after another: each leaves a copy of its shared memory, and the last one does all blocks' work.
namespace emulate {
inline std::vector<char> left[CLUSTER];
}
DG_DEVICE void cluster_meet() {
    barrier();
    if (thread_id() == 0) emulate::left[cluster_rank()] = emulate::machine.shared;
    barrier();
}
DG_DEVICE void cluster_ends() {}
template <typename V>
DG_DEVICE V load_from_block(u32 at, int rank) {
    V out;
    std::memcpy(&out, emulate::left[rank].data() + at, sizeof(V));
    return out;
}
DG_DEVICE int first_share() { return cluster_rank() == CLUSTER - 1 ? 0 : CLUSTER; }
DG_DEVICE int end_of_shares() { return CLUSTER; }
#else
// What blocks wrote to their shared memory before is seen by the others after it.
DG_DEVICE void cluster_meet() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// No block may end while others read from it.
DG_DEVICE void cluster_ends() {
    asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
}
template <typename V>
DG_DEVICE V load_from_block(u32 at, int rank) {
    static_assert(sizeof(V) == 16, "four words");
    typename Raw<16>::type raw;
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
                 "ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [there];\n}"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w) : "r"(at), "r"(rank) : "memory");
    return bit_cast<V>(raw);
}
// The shares of the work that follows which are this block's.
DG_DEVICE int first_share() { return cluster_rank(); }
DG_DEVICE int end_of_shares() { return cluster_rank() + 1; }
#endif
#endif
