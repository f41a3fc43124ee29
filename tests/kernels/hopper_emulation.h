// Hopper's instructions in plain C++, in the place of hopper.h: every thread is a fiber, every block of a grid runs.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#define DG_DEVICE inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
typedef unsigned u32;
typedef unsigned long long u64;
typedef long long i64;
using std::max;
using std::min;
struct float4 {
    float x, y, z, w;
};
struct uint4 {
    u32 x, y, z, w;
};
struct alignas(64) TensorMap {
    char bytes[128];
};
inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
inline int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
inline u32 __float_as_uint(float x) { u32 y; memcpy(&y, &x, 4); return y; }
inline float __expf(float x) { return __builtin_expf(x); }
inline void __threadfence() {}

namespace hopper {
struct Map {  // what the driver encodes, in numbers
    char* at;
    i64 element, rank, sizes[5], strides[5], box[5], swizzle, windows, lower[3], upper[3], steps[5];
};
struct Meeting {
    int count = 0, generation = 0;
    bool arrive(int all) {
        if (++count < all) return false;
        count = 0, ++generation;
        return true;
    }
};
struct Barrier {
    int count, pending, bytes = 0, phase = 0;
    void settle() {
        if (pending == 0 && bytes == 0) phase ^= 1, pending = count;
    }
};
struct Warp {
    Meeting meeting;
    u32 address[32], words[32][4];
};
struct Block {
    int index, rank;
    struct Cluster* cluster;
    char* shared;
    Meeting named[16];
    std::map<u32, Barrier> barriers;
    std::vector<Warp> warps;
};
struct Cluster {
    std::vector<Block*> blocks;
    Meeting meeting;
    int threads;
};
struct Index {
    int x;
};
struct Thread {
    ucontext_t context;
    char* stack;
    Block* block;
    Index index, block_index;
    int generation;
    bool over = false;
    struct Number {
        u32 to;
        const float* from;
    };
    std::vector<std::vector<Number>> copies{1};  // by group, the oldest first; the last is not complete
    std::vector<std::function<void()>> lines;    // copies of parts of lines
};
inline Thread* now;
inline ucontext_t scheduler;
inline Index grid;
inline i64 progress, idle;
constexpr size_t SHARED = 1 << 18, STACK = 1 << 17;

inline void pause() { swapcontext(&now->context, &scheduler); }
template <class Done>
void until(Done done) {
    while (!done()) pause();
    ++progress;
}
inline void meet(Meeting& meeting, int all) {
    int before = meeting.generation;
    if (!meeting.arrive(all)) until([&] { return meeting.generation != before; });
    ++progress;
}
inline Warp& warp() { return now->block->warps[now->index.x / 32]; }
inline char* shared(u32 address) { return now->block->shared + address; }
inline void arrive(Block* block, u32 barrier, int arrivals, int bytes) {
    if (!block->barriers.count(barrier)) fprintf(stderr, "a barrier that was never made\n"), abort();
    Barrier& b = block->barriers[barrier];
    b.pending -= arrivals, b.bytes += bytes;
    b.settle();
    ++progress;
}
inline u32 swizzled(u32 address, i64 bytes) {
    return bytes ? address ^ ((address >> 7 & (bytes / 16 - 1)) << 4) : address;
}
inline const Map& of(const TensorMap* map) { return **reinterpret_cast<Map* const*>(map->bytes); }
// An element of the tensor to or from shared memory; zeros come from outside.
inline void element(const Map& m, const i64* place, char* mine, bool out) {
    i64 offset = place[0] * m.element;
    bool inside = true;
    for (int i = 0; i < m.rank; ++i) {
        inside &= place[i] >= 0 && place[i] < m.sizes[i];
        if (i) offset += place[i] * m.strides[i - 1];
    }
    if (out) {
        if (inside) memcpy(m.at + offset, mine, m.element);
    } else if (inside) {
        memcpy(mine, m.at + offset, m.element);
    } else {
        memset(mine, 0, m.element);
    }
}
inline void tile(const Map& m, Block* block, u32 at, const int* from, bool out) {
    i64 count[3] = {m.box[0], m.box[1], m.box[2]}, place[3];
    if (m.windows || m.rank != 3) fprintf(stderr, "not a map of tiles\n"), abort();
    for (i64 z = 0; z < count[2]; ++z)
        for (i64 y = 0; y < count[1]; ++y)
            for (i64 x = 0; x < count[0]; ++x) {
                place[0] = from[0] + x, place[1] = from[1] + y, place[2] = from[2] + z;
                u32 there = at + ((z * count[1] + y) * count[0] + x) * m.element;
                element(m, place, block->shared + swizzled(there, m.swizzle), out);
            }
}
inline void windows(const Map& m, Block* block, u32 at, int channel, int x, int y, int image, int tap_x, int tap_y) {
    if (!m.windows || m.rank != 4) fprintf(stderr, "not a map of windows\n"), abort();
    for (i64 pixel = 0; pixel < m.box[1]; ++pixel) {
        for (i64 c = 0; c < m.box[0]; ++c) {
            i64 place[4] = {channel + c, x + tap_x, y + tap_y, image};
            u32 there = at + (pixel * m.box[0] + c) * m.element;
            element(m, place, block->shared + swizzled(there, m.swizzle), false);
        }
        x += m.steps[1];
        if (x < m.sizes[1] + m.upper[0]) continue;
        x = m.lower[0], y += m.steps[2];
        if (y < m.sizes[2] + m.upper[1]) continue;
        y = m.lower[1], ++image;
    }
}
inline i64 bytes_of(const Map& m) { return m.box[0] * m.box[1] * (m.windows ? 1 : m.box[2]) * m.element; }
template <class Get>
void into(const TensorMap* map, u32 barrier, u32 mask, Get get) {
    for (Block* block : now->block->cluster->blocks)
        if (mask >> block->rank & 1) {
            get(block);
            arrive(block, barrier, 0, -(int)bytes_of(of(map)));
        }
}
}  // namespace hopper

#define threadIdx (hopper::now->index)
#define blockIdx (hopper::now->block_index)
#define gridDim (hopper::grid)
inline u32 shared_address(const void* p) { return (u32)((const char*)p - hopper::now->block->shared); }
inline void __syncwarp() { hopper::meet(hopper::warp().meeting, 32); }
template <class T>
T __shfl_sync(u32, T x, int from) {
    hopper::Warp& w = hopper::warp();
    memcpy(w.words[threadIdx.x % 32], &x, 4);
    __syncwarp();
    memcpy(&x, w.words[from], 4);
    __syncwarp();
    return x;
}

inline void barrier_init(u32 barrier, u32 count) { hopper::now->block->barriers[barrier] = {(int)count, (int)count}; }
inline void barriers_ready() {}
inline void barrier_expect(u32 barrier, u32 bytes) { hopper::arrive(hopper::now->block, barrier, 1, bytes); }
inline void barrier_arrive(u32 barrier) { hopper::arrive(hopper::now->block, barrier, 1, 0); }
inline void barrier_arrive_at(u32 barrier, u32 rank) {
    hopper::arrive(hopper::now->block->cluster->blocks[rank], barrier, 1, 0);
}
inline void barrier_wait(u32 barrier, u32 parity) {
    auto& all = hopper::now->block->barriers;
    hopper::until([&] { return all.at(barrier).phase != (int)parity; });
}
inline void meet(int id, int threads) { hopper::meet(hopper::now->block->named[id], threads); }
inline void notify(int id, int threads) { hopper::now->block->named[id].arrive(threads), ++hopper::progress; }

inline u32 cluster_rank() { return hopper::now->block->rank; }
inline void cluster_done() {
    auto* cluster = hopper::now->block->cluster;
    hopper::now->generation = cluster->meeting.generation;
    cluster->meeting.arrive(cluster->threads);
}
inline void cluster_all_done() {
    hopper::until([&] { return hopper::now->block->cluster->meeting.generation != hopper::now->generation; });
}
inline void cluster_share() { cluster_done(), cluster_all_done(); }
inline void cluster_meet() { cluster_share(); }
inline float4 load_from_block(u32 address, u32 rank) {
    float4 v;
    memcpy(&v, hopper::now->block->cluster->blocks[rank]->shared + address, 16);
    return v;
}
template <class T>
void store_shared(u32 address, T v) {
    if (address % sizeof v) fprintf(stderr, "shared memory is written across words\n"), abort();
    memcpy(hopper::shared(address), &v, sizeof v);
}
inline void store_shared(u32 address, u32 a, u32 b) { store_shared(address, a), store_shared(address + 4, b); }
template <class T>
T load_shared(u32 address) {
    T v;
    if (address % sizeof v) fprintf(stderr, "shared memory is read across words\n"), abort();
    memcpy(&v, hopper::shared(address), sizeof v);
    return v;
}
#ifdef FACTOR_RING
// Numbers are copied as late as may be: when a thread waits for their group.
inline void copy_number(u32 to, const float* from) { hopper::now->copies.back().push_back({to, from}); }
inline void numbers_commit() { hopper::now->copies.emplace_back(); }
inline void numbers_wait() {
    auto& all = hopper::now->copies;
    for (; all.size() > FACTOR_RING - 1; all.erase(all.begin()))
        for (auto copy : all.front()) store_shared(copy.to, *copy.from);
}
#endif
// Copies of lines come when their barrier is told: as late as may be.
template <int BYTES>
void copy_async(u32 to, const char* from, int count) {
    if ((u64)from % BYTES || count < 0 || count > BYTES) fprintf(stderr, "a copy that is not aligned\n"), abort();
    hopper::now->lines.push_back([=] {
        memset(hopper::shared(to), 0, BYTES);
        if (count) memcpy(hopper::shared(to), from, count);
    });
}
inline void all_copied() {
    for (auto& copy : hopper::now->lines) copy();
    hopper::now->lines.clear();
}
inline void arrive_when_copied(u32 barrier) { all_copied(), barrier_arrive(barrier); }
inline uint4 load_chunk(u32 address) { return load_shared<uint4>(address); }

inline void prefetch_map(const TensorMap*) {}
#define NORMAL 0
#define FIRST 1
#define LAST 2
template <int USE>
u64 policy() { return 0; }
template <int USE>
void fetch_for_many(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z, u32 mask, u64) {
    int from[3] = {x, y, z};
    hopper::into(map, barrier, mask, [&](hopper::Block* b) { hopper::tile(hopper::of(map), b, to, from, false); });
}
template <int USE>
void fetch(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z, u64 use) {
    fetch_for_many<USE>(to, map, barrier, x, y, z, 1u << hopper::now->block->rank, use);
}
template <int SHARES, int USE, class Window>
void get_windows(u32 to, const TensorMap* map, u32 barrier, int channel, const Window& at, short tap_x, short tap_y,
                 u32 mask, u64) {
    hopper::into(map, barrier, SHARES > 1 ? mask : 1u << hopper::now->block->rank, [&](hopper::Block* b) {
        hopper::windows(hopper::of(map), b, to, channel, at.x, at.y, at.image, tap_x, tap_y);
    });
}
template <int USE>
void put(const TensorMap* map, u32 from, int x, int y, int z) {
    int to[3] = {x, y, z};
    hopper::tile(hopper::of(map), hopper::now->block, from, to, true);
}
template <int N>
void puts_read() {}
inline void writes_ready() {}

inline void products_begin() {}
inline void products_commit() {}
template <int N>
void products_wait() {}
template <int LINE>
u64 operand(u32 address, u32 leading, u32 stride) {
    constexpr u64 SWIZZLE = LINE == 128 ? 1 : LINE == 64 ? 2 : 3;
    return (u64)((address & 0x3FFFF) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | SWIZZLE << 62;
}
namespace hopper {
// Where an operand's element is: `line` across K, or along it where lines lie so.
template <class T>
const char* operand_element(u64 descriptor, int across, int k, bool k_major) {
    u32 base = (descriptor & 0x3FFF) << 4, leading = (descriptor >> 16 & 0x3FFF) << 4, stride = (descriptor >> 32 & 0x3FFF) << 4;
    u32 line = 256 >> (descriptor >> 62);
    u32 at = k_major ? base + across / 8 * stride + across % 8 * line + k * sizeof(T)
                     : base + across / (line / 2) * leading + k / 8 * stride + k % 8 * line + across % (line / 2) * 2;
    return now->block->shared + swizzled(at, line);
}
template <class T>
float number(const char* at);
// This thread's share of 64 rows of A by `columns` of B, 32 bytes of K.
template <class T>
void multiply(float* d, u64 a, u64 b, int add, int columns, bool a_k_major, bool b_k_major) {
    int t = now->index.x % 128;
    for (int i = 0; i < columns / 2; ++i) {
        int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
        float sum = add ? d[i] : 0.f;
        for (int k = 0; k < 32 / (int)sizeof(T); ++k)
            sum += number<T>(operand_element<T>(a, row, k, a_k_major)) *
                   number<T>(operand_element<T>(b, column, k, b_k_major));
        d[i] = sum;
    }
}
}  // namespace hopper
inline void store_matrices(u32 address, const u32* words, int count) {
    hopper::Warp& w = hopper::warp();
    int lane = threadIdx.x % 32;
    w.address[lane] = address;
    for (int i = 0; i < count; ++i) w.words[lane][i] = words[i];
    __syncwarp();
    for (int i = 0; i < count; ++i)  // this lane's two numbers of each matrix
        store_shared(w.address[i * 8 + lane / 4] + lane % 4 * 4, words[i]);
    __syncwarp();
}
inline void store_matrices(u32 address, u32 a, u32 b, u32 c, u32 d) {
    u32 words[4] = {a, b, c, d};
    store_matrices(address, words, 4);
}
inline void store_matrices(u32 address, u32 a, u32 b) {
    u32 words[2] = {a, b};
    store_matrices(address, words, 2);
}
template <int N>
void registers_down() {}
template <int N>
void registers_up() {}
inline void next_may_begin() {}
inline void wait_for_launch_before() {}
inline u32 add_and_publish(u32* counter, u32 most) {
    u32 old = *counter;
    *counter = old >= most ? 0 : old + 1;
    return ++hopper::progress, old;
}
inline void publish(u32* flag, u32 value) { *flag = value, ++hopper::progress; }
inline u32 published(const u32* flag) { return hopper::pause(), *flag; }
inline float4 load_l2(const float4* p) { return *p; }

namespace hopper {
template <class... Args, size_t... I>
void call(void (*kernel)(Args...), void** args, std::index_sequence<I...>) {
    kernel(*reinterpret_cast<std::remove_reference_t<Args>*>(args[I])...);
}
inline void (*body)();
inline void enter() {
    body();
    now->over = true, ++progress;
    pause();
}
template <class Kernel>
int launch(Kernel kernel, void** args, int blocks, int threads, int cluster) {
    static void** passed;
    static Kernel what;
    passed = args, what = kernel, grid = {blocks};
    body = [] { [&]<class... A>(void (*k)(A...)) { call(k, passed, std::index_sequence_for<A...>()); }(what); };
    std::vector<std::unique_ptr<Block>> all(blocks);
    std::vector<std::unique_ptr<Cluster>> clusters(blocks / cluster);
    std::vector<Thread> fibers((size_t)blocks * threads);
    for (auto& c : clusters) c.reset(new Cluster), c->threads = threads * cluster;
    for (int b = 0; b < blocks; ++b) {
        all[b].reset(new Block);
        Block& block = *all[b];
        block.index = b, block.rank = b % cluster, block.cluster = clusters[b / cluster].get();
        block.cluster->blocks.push_back(&block);
        block.shared = (char*)aligned_alloc(1024, SHARED);
        memset(block.shared, 0x7E, SHARED);  // numbers that show
        block.warps.resize(threads / 32);
        for (int t = 0; t < threads; ++t) {
            Thread& f = fibers[(size_t)b * threads + t];
            f.block = &block, f.index = {t}, f.block_index = {b};
            f.stack = (char*)malloc(STACK);
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = f.stack, f.context.uc_stack.ss_size = STACK, f.context.uc_link = nullptr;
            makecontext(&f.context, enter, 0);
        }
    }
    size_t left = fibers.size();
    int stuck = 0;
    while (left && stuck < 100) {
        i64 before = progress;
        for (Thread& f : fibers)
            if (!f.over) {
                now = &f;
                swapcontext(&scheduler, &f.context);
                left -= f.over;
            }
        stuck = progress == before ? stuck + 1 : 0;
    }
    for (Thread& f : fibers) free(f.stack);
    for (auto& block : all) free(block->shared);
    return (int)left;  // threads that wait for ever
}
}  // namespace hopper
