// Hopper's instructions on the CPU, for kernels that are written with hopper.h, numbers.h and instructions.h: a block's
// threads are fibers that run until they wait. Copies and products are done when they are asked for.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#define DG_DEVICE inline
#define __global__
#define __shared__
#define __grid_constant__
#define __launch_bounds__(...)

typedef unsigned u32;
typedef unsigned short u16;
typedef unsigned long long u64;
typedef long long i64;
using std::max;
using std::min;

struct Index {
    int x;
};
inline Index threadIdx, blockIdx, gridDim;
extern "C" {
alignas(1024) char memory[256 << 10];
}

struct alignas(64) TensorMap {
    const char* base;
    i64 sizes[4], strides[3];  // bytes
    int rows, width;           // of a box; bytes of an element
    char rest[128 - 8 - 7 * 8 - 8];
};
struct uint4 {
    u32 x, y, z, w;
};
struct float2 {
    float x, y;
};

namespace emulate {
constexpr int STACK = 128 << 10;
struct Fiber {
    ucontext_t context;
    bool done;
};
struct Barrier {
    int count = 0, left = 0, bytes = 0;
    u32 phase = 0;
    void settle() {
        if (left == 0 && bytes == 0) left = count, phase ^= 1;
    }
};
struct Meeting {  // of some threads; values are those of the last meeting
    int here = 0;
    u32 round = 0;
    u64 values[2][32];
};
inline std::vector<Fiber> fibers;
inline std::vector<char> stacks;
inline ucontext_t scheduler;
inline std::map<u32, Barrier> barriers;
inline Meeting warps[32], named[17];
inline std::string error;
inline u64 moves;  // that someone made, so that nobody waits forever
inline std::function<void()> body;

inline void yield() {
    int me = threadIdx.x;
    swapcontext(&fibers[me].context, &scheduler);
}
inline void fail(const std::string& what) {
    if (error.empty()) error = what + " (block " + std::to_string(blockIdx.x) + ", thread " + std::to_string(threadIdx.x) + ")";
    yield();
}
inline void until(const std::function<bool()>& holds) {
    while (!holds()) yield();
    ++moves;
}
inline void begin() {
    body();
    fibers[threadIdx.x].done = true;
    ++moves;
    yield();
}
inline std::string run(int grid, int threads, int shared) {
    gridDim.x = grid;
    error.clear();
    fibers.resize(threads);
    stacks.resize((size_t)threads * STACK);
    for (blockIdx.x = 0; blockIdx.x < grid && error.empty(); ++blockIdx.x) {
        std::memset(memory, 0xFF, sizeof memory);
        barriers.clear();
        for (Meeting& m : warps) m = {};
        for (Meeting& m : named) m = {};
        for (int t = 0; t < threads; ++t) {
            Fiber& f = fibers[t];
            f.done = false;
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = stacks.data() + (size_t)t * STACK;
            f.context.uc_stack.ss_size = STACK;
            f.context.uc_link = &scheduler;
            makecontext(&f.context, begin, 0);
        }
        for (bool any = true; any && error.empty();) {
            u64 before = moves;
            any = false;
            for (int t = 0; t < threads && error.empty(); ++t) {
                if (fibers[t].done) continue;
                any = true;
                threadIdx.x = t;
                swapcontext(&scheduler, &fibers[t].context);
            }
            if (any && moves == before && error.empty()) error = "all threads wait in block " + std::to_string(blockIdx.x);
        }
        for (int i = shared; i < (int)sizeof memory && error.empty(); ++i)
            if (memory[i] != (char)0xFF) error = "shared memory is written beyond its end";
    }
    return error;
}
// All of `count` threads; gives what each of a warp brought.
inline const u64* meet(Meeting& m, int count, u64 value) {
    u32 round = m.round;
    m.values[round % 2][threadIdx.x % 32] = value;
    if (++m.here == count) m.here = 0, ++m.round, ++moves;
    until([&] { return m.round != round; });
    return m.values[round % 2];
}
inline const u64* in_warp(u64 value) { return meet(warps[threadIdx.x / 32], 32, value); }
inline u32 bits(float x) {
    u32 y;
    std::memcpy(&y, &x, 4);
    return y;
}
inline float number(u32 x) {
    float y;
    std::memcpy(&y, &x, 4);
    return y;
}
// Where a byte of a line lies: chunks of 16 in another order in each of eight lines of 128.
inline u32 swizzled(u32 address, u32 line = 128) { return address ^ (address >> 7 & (line / 16 - 1)) << 4; }
}  // namespace emulate

DG_DEVICE float __int_as_float(int x) { return emulate::number((u32)x); }
DG_DEVICE int __float_as_int(float x) { return (int)emulate::bits(x); }
DG_DEVICE float __shfl_xor_sync(u32, float x, int by) {
    return emulate::number((u32)emulate::in_warp(emulate::bits(x))[threadIdx.x % 32 ^ by]);
}
DG_DEVICE u32 __shfl_xor_sync(u32, u32 x, int by) { return (u32)emulate::in_warp(x)[threadIdx.x % 32 ^ by]; }
DG_DEVICE int __shfl_sync(u32, int x, int from) { return (int)emulate::in_warp((u32)x)[from]; }
DG_DEVICE bool __any_sync(u32, bool x) {
    const u64* all = emulate::in_warp(x);
    return std::any_of(all, all + 32, [](u64 one) { return one != 0; });
}
DG_DEVICE void __syncthreads() { emulate::meet(emulate::named[16], (int)emulate::fibers.size(), 0); }
DG_DEVICE void meet(int id, int threads) { emulate::meet(emulate::named[id], threads, 0); }
DG_DEVICE void notify(int id, int threads) {
    emulate::Meeting& m = emulate::named[id];
    if (++m.here == threads) m.here = 0, ++m.round;
    ++emulate::moves;
}

DG_DEVICE u32 shared_address(const void* p) { return (u32)((const char*)p - memory); }
DG_DEVICE void barrier_init(u32 at, u32 count) { emulate::barriers[at] = {(int)count, (int)count}; }
DG_DEVICE void barriers_ready() {}
DG_DEVICE void barrier_arrive(u32 at) {
    emulate::Barrier& b = emulate::barriers.at(at);
    if (--b.left < 0) emulate::fail("too many arrive at a barrier");
    b.settle();
    ++emulate::moves;
}
DG_DEVICE void barrier_expect(u32 at, u32 bytes) {
    emulate::barriers.at(at).bytes += bytes;
    barrier_arrive(at);
}
DG_DEVICE void barrier_wait(u32 at, u32 parity) {
    emulate::until([&] { return emulate::barriers.at(at).phase != parity; });
}
DG_DEVICE void prefetch_map(const TensorMap*) {}
DG_DEVICE void writes_ready() {}
DG_DEVICE void products_begin() {}
DG_DEVICE void store_shared(u32 at, uint4 v) { std::memcpy(memory + at, &v, 16); }
DG_DEVICE void products_commit() {}
template <int N>
DG_DEVICE void products_wait() {}
template <int N>
DG_DEVICE void registers_down() {}
template <int N>
DG_DEVICE void registers_up() {}
template <int LINE>
DG_DEVICE u64 operand(u32 address, u32 leading, u32 stride) {
    constexpr u64 SWIZZLE = LINE == 128 ? 1 : LINE == 64 ? 2 : 3;
    return (u64)(address >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | SWIZZLE << 62;
}
DG_DEVICE u32 add_and_publish(u32* counter, u32 most) {
    u32 old = *counter;
    *counter = old >= most ? 0 : old + 1;
    return old;
}

struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};
struct f8e4m3 {
    unsigned char bits;
};
DG_DEVICE float widen(f8e4m3 x) {
    int exponent = x.bits >> 3 & 15, fraction = x.bits & 7;
    float size = (x.bits & 127) == 127 ? NAN : std::ldexp((float)(exponent ? fraction | 8 : fraction), (exponent ? exponent : 1) - 10);
    return x.bits >> 7 ? -size : size;
}
DG_DEVICE u32 narrow(f8e4m3, float x) {
    u32 sign = std::signbit(x) ? 128 : 0;
    float size = std::fabs(x);
    if (std::isnan(x)) return 127;
    if (size >= 448) return sign | 126;
    int exponent = size < 0x1p-6f ? -6 : std::ilogb(size);
    return sign | (((exponent + 6) << 3) + (int)std::nearbyint(std::ldexp(size, 3 - exponent)));
}
DG_DEVICE u32 four_numbers(float a, float b, float c, float d) {
    f8e4m3 of;
    return narrow(of, a) | narrow(of, b) << 8 | narrow(of, c) << 16 | narrow(of, d) << 24;
}
DG_DEVICE u32 __byte_perm(u32 a, u32 b, u32 selected) {
    u64 both = (u64)b << 32 | a;
    u32 y = 0;
    for (int i = 0; i < 4; ++i) y |= (u32)(both >> (selected >> 4 * i & 7) * 8 & 255) << 8 * i;
    return y;
}
DG_DEVICE float widen(bf16 x) { return emulate::number((u32)x.bits << 16); }
DG_DEVICE float widen(f16 x) {
    int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
    float size = exponent == 31 ? (fraction ? NAN : INFINITY)
                                : std::ldexp((float)(exponent ? fraction | 1024 : fraction), (exponent ? exponent : 1) - 25);
    return x.bits >> 15 ? -size : size;
}
DG_DEVICE u16 narrow(bf16, float x) {
    u32 y = emulate::bits(x);
    return std::isnan(x) ? 0x7FFF : (u16)((y + 0x7FFF + (y >> 16 & 1)) >> 16);
}
DG_DEVICE u16 narrow(f16, float x) {
    u16 sign = std::signbit(x) ? 0x8000 : 0;
    float size = std::fabs(x);
    if (std::isnan(x)) return 0x7FFF;
    if (size >= 65520.0f) return sign | 0x7C00;
    int exponent = size < 0x1p-14f ? -14 : std::ilogb(size);
    return (u16)(sign | (((exponent + 14) << 10) + (int)std::nearbyint(std::ldexp(size, 10 - exponent))));
}
template <class T>
struct Pair {
    u32 bits;
    Pair(float a, float b) : bits(narrow(T{}, a) | (u32)narrow(T{}, b) << 16) {}
};
template <class T>
DG_DEVICE void pin(T&) {}

DG_DEVICE float infinity() { return INFINITY; }
DG_DEVICE float exponential(float x) { return std::exp2(x); }
DG_DEVICE float reciprocal(float x) { return 1 / x; }
DG_DEVICE float logarithm(float x) { return std::log2(x); }
DG_DEVICE void fetch_rows(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z, int w) {
    if (to % 1024) emulate::fail("a tile does not begin at a multiple of 1024 bytes");
    int lanes = 128 / map->width;
    for (int row = 0; row < map->rows; ++row)
        for (int i = 0; i < lanes; ++i) {
            i64 at[4] = {x + i, y + row, z, w}, offset = at[0] * map->width;
            bool inside = true;
            for (int d = 0; d < 4; ++d) inside &= at[d] >= 0 && at[d] < map->sizes[d];
            for (int d = 1; d < 4; ++d) offset += at[d] * map->strides[d - 1];
            char* here = memory + emulate::swizzled(to + row * 128 + i * map->width);
            if (inside)
                std::memcpy(here, map->base + offset, map->width);
            else
                std::memset(here, 0, map->width);
        }
    emulate::Barrier& b = emulate::barriers.at(barrier);
    b.bytes -= map->rows * 128;
    b.settle();
    ++emulate::moves;
}
DG_DEVICE void fetch_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
    if (to % 16 || (u64)from % 16 || bytes % 16) emulate::fail("bytes in a row are copied in sixteens");
    std::memcpy(memory + to, from, bytes);
    emulate::Barrier& b = emulate::barriers.at(barrier);
    b.bytes -= bytes;
    b.settle();
    ++emulate::moves;
}
DG_DEVICE float2 load_pair(const void* from) { return *(const float2*)from; }
DG_DEVICE void wait_for_launch_before() {}
DG_DEVICE void next_may_begin() {}
DG_DEVICE uint4 load_chunk(u32 address) {
    uint4 v;
    std::memcpy(&v, memory + address, sizeof v);
    return v;
}
template <class T>
DG_DEVICE T load_shared(u32 address) {
    T v;
    std::memcpy(&v, memory + address, sizeof v);
    return v;
}
DG_DEVICE void load_matrices(u32 address, u32* words) {
    const u64* from = emulate::in_warp(address);
    for (int i = 0; i < 4; ++i) std::memcpy(&words[i], memory + from[i * 8 + threadIdx.x % 32 / 4] + threadIdx.x % 4 * 4, 4);
}

namespace emulate {
template <class T>
float stored(u32 address, u32 line = 128) {
    T x;
    std::memcpy(&x, memory + swizzled(address, line), sizeof x);
    return widen(x);
}
// 64 rows by COLUMNS, so many steps: `first(row, k)` and `second(k, column)` are the operands' elements.
template <int COLUMNS, int STEPS = 16, class First, class Second>
void multiply(float* d, int add, First first, Second second) {
    int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    for (int i = 0; i < COLUMNS / 2; ++i) {
        int r = row + i / 2 % 2 * 8, c = i / 4 * 8 + column + i % 2;
        float sum = add ? d[i] : 0;
        for (int k = 0; k < STEPS; ++k) sum += first(r, k) * second(k, c);
        d[i] = sum;
    }
}
template <class T>
struct Registers {  // a warp's 16 rows of 32 bytes in registers of its lanes
    static constexpr int EACH = 4 / sizeof(T);
    float a[16][8 * EACH];
    explicit Registers(const u32* own) {
        for (int i = 0; i < 4; ++i) {
            const u64* all = in_warp(own[i]);
            for (int lane = 0; lane < 32; ++lane)
                for (int e = 0; e < EACH; ++e) {
                    u32 word = (u32)all[lane] >> 32 / EACH * e;
                    T number;
                    std::memcpy(&number, &word, sizeof number);
                    a[lane / 4 + i % 2 * 8][(i / 2 * 4 + lane % 4) * EACH + e] = widen(number);
                }
        }
    }
    float operator()(int row, int k) const { return a[row][k]; }
};
inline u32 place(u64 operand) { return (u32)(operand & 0x3FFF) << 4; }
template <class T>
struct Lines {  // rows or columns of which each is a line along k
    u32 at, line = 128;
    float of(int i, int k) const { return stored<T>(at + i * line + k * sizeof(T), line); }
};
template <class T, int COLUMNS>
void keys(float* d, u64 a, u64 b, int add) {
    Lines<T> q{place(a) + threadIdx.x / 32 % 4 * 16 * 128}, k{place(b)};
    multiply<COLUMNS, 32 / sizeof(T)>(
        d, add, [&](int row, int i) { return q.of(row, i); }, [&](int i, int c) { return k.of(c, i); });
}
template <class T, int COLUMNS>
void keys(float* d, const u32* a, u64 b, int add) {
    Registers<T> q(a);
    Lines<T> k{place(b), 256u >> (b >> 62)};
    multiply<COLUMNS, 32 / sizeof(T)>(d, add, q, [&](int i, int c) { return k.of(c, i); });
}
// A warp's 16 rows by 8 others, whose words are of 16 bytes and the 16 after them.
template <class T>
void again(float* d, const u32* a, u32 b, u32 c) {
    Registers<T> first(a);
    u64 words[2][32];
    std::memcpy(words[0], in_warp(b), sizeof words[0]);
    std::memcpy(words[1], in_warp(c), sizeof words[1]);
    multiply<8, 32 / sizeof(T)>(d, 1, first, [&](int k, int column) {
        int byte = k * sizeof(T);
        u32 word = (u32)words[byte / 16][column * 4 + byte % 16 / 4] >> byte % 4 * 8;
        T number;
        std::memcpy(&number, &word, sizeof number);
        return widen(number);
    });
}
template <class T, int COLUMNS>
void values(float* d, const u32* a, u64 b) {
    if (sizeof(T) == 1) return keys<T, COLUMNS>(d, a, b, 1);
    Registers<T> weights(a);
    u32 at = place(b), leading = (u32)(b >> 16 & 0x3FFF) << 4;
    multiply<COLUMNS>(
        d, 1, weights, [&](int i, int c) { return stored<T>(at + c / 64 * leading + i * 128 + c % 64 * 2); });
}
}  // namespace emulate
