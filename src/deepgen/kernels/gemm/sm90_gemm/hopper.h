// Hopper's own instructions as functions: transaction barriers, the bulk copy engine, clusters, warpgroup products.
//
// Shared memory is addressed by 32-bit numbers throughout: that is what these instructions take.
#pragma once

#define DG_DEVICE __device__ __forceinline__

typedef unsigned u32;
typedef unsigned long long u64;
typedef long long i64;

// The copy engine's descriptor of a tensor, made by the driver.
struct alignas(64) TensorMap {
    char bytes[128];
};

DG_DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Barriers in shared memory ------------------------------------------------------------------------------------------

DG_DEVICE void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Makes fresh barriers known to the copy engine and to the other blocks of the cluster.
DG_DEVICE void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DG_DEVICE void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DG_DEVICE void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// At the same barrier of another block of the cluster. Nothing that ordinary stores wrote is handed over with it: a
// wider scope would make every arrival wait for a fence of the whole chip.
DG_DEVICE void barrier_arrive_at(u32 barrier, u32 rank) {
    asm volatile(
        "{\n.reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}"
        ::"r"(barrier), "r"(rank) : "memory");
}
DG_DEVICE void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "AGAIN:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra.uni OVER;\n"
        "bra.uni AGAIN;\n"
        "OVER:\n}"
        ::"r"(barrier), "r"(parity) : "memory");
}

// Named barriers among warps of a block.
DG_DEVICE void meet(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DG_DEVICE void notify(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// Clusters -----------------------------------------------------------------------------------------------------------

DG_DEVICE u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// All blocks are here. What they wrote to shared memory is seen by the others after `cluster_share` only.
DG_DEVICE void cluster_meet() {
    asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
}
DG_DEVICE void cluster_share() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// The two halves of it: this block's reads are done; all blocks' are.
DG_DEVICE void cluster_done() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
DG_DEVICE void cluster_all_done() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
DG_DEVICE float4 load_from_block(u32 address, u32 rank) {
    float4 v;
    asm volatile(
        "{\n.reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %4, %5;\n"
        "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
        : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address), "r"(rank) : "memory");
    return v;
}
DG_DEVICE void store_shared(u32 address, float4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
        ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

// The bulk copy engine -----------------------------------------------------------------------------------------------

DG_DEVICE void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// What the L2 cache is to do with lines that come this way.
#define NORMAL 0
#define FIRST 1  // leave before others
#define LAST 2   // stay longer than others
template <int USE>
DG_DEVICE u64 policy() {
    u64 made = 0;
    if (USE == FIRST) asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(made));
    if (USE == LAST) asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(made));
    return made;
}
#define DG_FETCH "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
template <int USE>
DG_DEVICE void fetch(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z, u64 use) {
    if (USE == NORMAL)
        asm volatile(
            DG_FETCH " [%0], [%1, {%3, %4, %5}], [%2];"
            ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");
    else
        asm volatile(
            DG_FETCH ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;"
            ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "l"(use) : "memory");
}
// To the same place, and with the same barrier, in every block whose rank's bit is set in `mask`.
template <int USE>
DG_DEVICE void fetch_for_many(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z, u32 mask, u64 use) {
    if (USE == NORMAL)
        asm volatile(
            "{\n.reg .b16 blocks;\ncvt.u16.u32 blocks, %6;\n"
            DG_FETCH ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], blocks;\n}"
            ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(mask) : "memory");
    else
        asm volatile(
            "{\n.reg .b16 blocks;\ncvt.u16.u32 blocks, %6;\n"
            DG_FETCH ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], blocks, %7;\n}"
            ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(mask), "l"(use) : "memory");
}
template <int USE>
DG_DEVICE void put(const TensorMap* map, u32 from, int x, int y, int z) {
    if (USE == NORMAL)
        asm volatile(
            "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
            ::"l"(map), "r"(from), "r"(x), "r"(y), "r"(z) : "memory");
    else
        asm volatile(
            "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3, %4}], [%1], %5;"
            ::"l"(map), "r"(from), "r"(x), "r"(y), "r"(z), "l"(policy<USE>()) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until all but the latest N puts have read their shared memory.
template <int N>
DG_DEVICE void puts_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
// Ordinary writes to shared memory become visible to the copy engine.
DG_DEVICE void writes_ready() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Products of a warpgroup --------------------------------------------------------------------------------------------

DG_DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DG_DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
DG_DEVICE void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// The descriptor of an operand: its address, distances in 16 bytes, and how wide its swizzle is: 128, 64 or 32 bytes.
template <int LINE>
DG_DEVICE u64 operand(u32 address, u32 leading, u32 stride) {
    constexpr u64 SWIZZLE = LINE == 128 ? 1 : LINE == 64 ? 2 : 3;
    // Of an address only what lies within the block counts: other bits tell the block of the cluster.
    return (u64)((address & 0x3FFFF) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | SWIZZLE << 62;
}

// Four 8 x 8 matrices of 16-bit numbers, a row's address from each lane.
DG_DEVICE void store_matrices(u32 address, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
        ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
DG_DEVICE void store_matrices(u32 address, u32 a, u32 b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}
DG_DEVICE uint4 load_chunk(u32 address) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v;
}
template <class T>
DG_DEVICE T load_shared(u32 address);
template <>
DG_DEVICE unsigned short load_shared<unsigned short>(u32 address) {
    unsigned short v;
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
    return v;
}
template <>
DG_DEVICE u32 load_shared<u32>(u32 address) {
    u32 v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return v;
}
template <>
DG_DEVICE u64 load_shared<u64>(u32 address) {
    u64 v;
    asm volatile("ld.shared.b64 %0, [%1];" : "=l"(v) : "r"(address) : "memory");
    return v;
}
DG_DEVICE void store_shared(u32 address, unsigned short half) {
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(half) : "memory");
}
DG_DEVICE void store_shared(u32 address, u32 word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
DG_DEVICE void store_shared(u32 address, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
        : "memory");
}
DG_DEVICE void store_shared(u32 address, u32 a, u32 b) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

template <int N>
DG_DEVICE void registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
DG_DEVICE void registers_up() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// Launches that overlap ----------------------------------------------------------------------------------------------

DG_DEVICE void next_may_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DG_DEVICE void wait_for_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Memory that blocks share -------------------------------------------------------------------------------------------

DG_DEVICE u32 add_and_publish(u32* counter, u32 most) {  // counts from 0 to `most` and round again
    u32 old;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(old) : "l"(counter), "r"(most) : "memory");
    return old;
}
DG_DEVICE void publish(u32* flag, u32 value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
DG_DEVICE u32 published(const u32* flag) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}
DG_DEVICE float4 load_l2(const float4* p) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
    return v;
}
