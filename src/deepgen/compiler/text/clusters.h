// The blocks of a cluster reduce a row together, each in its own shared memory: a warp leaves what it joined in all of
// them. The emulation runs the threads of a cluster as those of one block.
#pragma once
#include "expressions.h"

#if defined(DG_EMULATE)
template <int BLOCKS>
DG_DEVICE int cluster_id() { return block_id(); }
template <int BLOCKS, int THREADS>
DG_DEVICE int thread_of_cluster() { return thread_id(); }
DG_DEVICE void cluster_arrive() {}
DG_DEVICE void cluster_wait() {}
#else
template <int BLOCKS>
DG_DEVICE int cluster_id() { return (int)((u32)block_id() / BLOCKS); }
template <int BLOCKS, int THREADS>
DG_DEVICE int thread_of_cluster() { return (int)((u32)block_id() % BLOCKS) * THREADS + thread_id(); }
DG_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DG_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Stores to the shared memory of another block of the cluster.
DG_DEVICE void store_there(u32 at, u32 block, u32 word) {
    asm volatile("{\n.reg .u32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nst.shared::cluster.u32 [there], %2;\n}"
                 ::"r"(at), "r"(block), "r"(word) : "memory");
}
DG_DEVICE void store_there(u32 at, u32 block, u64 word) {
    asm volatile("{\n.reg .u32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nst.shared::cluster.u64 [there], %2;\n}"
                 ::"r"(at), "r"(block), "l"(word) : "memory");
}
#endif

template <typename T>
DG_DEVICE auto word_of(T x) {
    if constexpr (sizeof(T) == 8) return bit_cast<u64>(x);
    else if constexpr (sizeof(T) == 4) return bit_cast<u32>(x);
    else return (u32)x;
}

// The values of the THREADS threads of each of BLOCKS blocks, joined; all of them get the result. Every thread of the
// cluster calls it. Warps leave their values at `at`, where nothing else lies: the one barrier is for these.
template <int BLOCKS, int THREADS, bool FIRST, typename T, T (*JOIN)(T, T)>
DG_DEVICE T over_cluster(T x, u32 at) {
    constexpr int WARPS = BLOCKS * THREADS / WARP, BYTES = sizeof(T) < 4 ? 4 : sizeof(T);
    static_assert(THREADS % WARP == 0 && WARPS % WARP == 0 && BLOCKS <= WARP, "lanes share the values evenly");
    DG_UNROLL for (int mask = WARP / 2; mask > 0; mask /= 2) x = JOIN(x, of_lane_across(x, mask));
    const int warp = thread_of_cluster<BLOCKS, THREADS>() / WARP, lane = thread_id() % WARP;
#if defined(DG_EMULATE)
    if (lane == 0) store_shared(at + warp * (u32)BYTES, word_of(x));
    barrier();
#else
    if constexpr (FIRST) cluster_wait();  // all blocks have begun
    if (lane < BLOCKS) store_there(at + warp * (u32)BYTES, (u32)lane, word_of(x));
    cluster_arrive();
    cluster_wait();
#endif
    DG_UNROLL for (int i = 0; i < WARPS / WARP; ++i) {
        const u32 place = at + (i * WARP + lane) * (u32)BYTES;
        T theirs;
        if constexpr (sizeof(T) < 4) theirs = (T)load_shared<u32>(place);
        else theirs = load_shared<T>(place);
        x = i ? JOIN(x, theirs) : theirs;
    }
    DG_UNROLL for (int mask = WARP / 2; mask > 0; mask /= 2) x = JOIN(x, of_lane_across(x, mask));
    return x;
}
