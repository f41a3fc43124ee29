// The emulation's side of the dialect: a block's threads are fibers on one CPU thread, barriers are real, and every
// access is checked. Wrong indexing, a missing barrier or a copy that is read before its wait is an error with a name.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

// The emulation's own functions, which whoever compiles many kernels may have compiled once.
#ifndef EMULATE_OWN
#define EMULATE_OWN inline
#endif
#define DG_DEVICE inline
#define DG_KERNEL(threads, blocks) extern "C" void
#define DG_UNROLL
#define DG_NO_UNROLL

namespace emulate {

struct Range {
    char* begin;
    i64 bytes;
    bool writable;
    bool once;  // a byte of it is written at most once in a launch
    std::vector<bool> written;
};

struct Copy {
    u32 to;
    const void* from;
    int bytes;
    bool real;
    int group;
};

struct Fiber {
    ucontext_t context;
    std::vector<Copy> copies;
    int groups = 0;  // committed
    bool done = false, waiting = false;
};

constexpr int NOBODY = -1, MANY = -2, STACK = 256 << 10;

struct Byte {  // who touched a byte of shared memory, and between which barriers
    int writer = NOBODY, write_epoch = -1, reader = NOBODY, read_epoch = -1;
    int in_flight = NOBODY;
};

struct Machine {
    std::vector<Range> ranges;
    std::vector<char> shared;
    std::vector<Byte> shadow;
    std::vector<Fiber> fibers;
    std::unique_ptr<char[]> stacks;  // of all fibers; memory comes as it is touched
    ucontext_t scheduler;
    int thread = 0, block = 0, blocks = 1, epoch = 0;
    std::string error;
    void (*entry)(void*) = nullptr;
    void* arguments = nullptr;
};

inline Machine machine;

// The first error is kept. The fiber that made it stops here, and no other runs on.
EMULATE_OWN void fail(const std::string& what) {
    if (machine.error.empty())
        machine.error = what + " (block " + std::to_string(machine.block) + ", thread " +
                        std::to_string(machine.thread) + ")";
    swapcontext(&machine.fibers[machine.thread].context, &machine.scheduler);
}

EMULATE_OWN void check_shared(u32 at, int bytes) {
    if ((u64)at + bytes > machine.shared.size())
        fail("shared memory at byte " + std::to_string(at) + " of " + std::to_string(machine.shared.size()));
    if (at % bytes != 0) fail("unaligned access of shared memory at byte " + std::to_string(at));
}

EMULATE_OWN void note_read(u32 at, int bytes) {
    check_shared(at, bytes);
    for (u32 i = at; i < at + bytes; ++i) {
        Byte& b = machine.shadow[i];
        if (b.in_flight != NOBODY) fail("shared byte " + std::to_string(i) + " is read before its copy has landed");
        if (b.write_epoch == machine.epoch && b.writer != machine.thread)
            fail("race: shared byte " + std::to_string(i) + " is read while thread " + std::to_string(b.writer) +
                 " writes it");
        b.reader = b.read_epoch == machine.epoch && b.reader != machine.thread ? MANY : machine.thread;
        b.read_epoch = machine.epoch;
    }
}

EMULATE_OWN void note_write(u32 at, int bytes, bool flies) {
    check_shared(at, bytes);
    for (u32 i = at; i < at + bytes; ++i) {
        Byte& b = machine.shadow[i];
        if (b.in_flight != NOBODY) fail("shared byte " + std::to_string(i) + " is written while a copy to it is under way");
        if (b.write_epoch == machine.epoch && b.writer != machine.thread)
            fail("race: shared byte " + std::to_string(i) + " is written by two threads");
        if (b.read_epoch == machine.epoch && b.reader != machine.thread)
            fail("race: shared byte " + std::to_string(i) + " is written while another thread reads it");
        if (flies) b.in_flight = machine.thread;
        b.writer = machine.thread;
        b.write_epoch = machine.epoch;
    }
}

EMULATE_OWN Range& find_range(const void* where, int bytes) {
    const char* p = static_cast<const char*>(where);
    if (reinterpret_cast<u64>(p) % bytes != 0) fail("unaligned access of global memory");
    for (Range& r : machine.ranges)
        if (p >= r.begin && p + bytes <= r.begin + r.bytes) return r;
    std::string near = "; buffers:";
    for (Range& r : machine.ranges) near += " " + std::to_string(p - r.begin) + " of " + std::to_string(r.bytes);
    fail("global memory outside of every buffer" + near);
    std::abort();
}

EMULATE_OWN void yield() {
    int me = machine.thread;
    swapcontext(&machine.fibers[me].context, &machine.scheduler);
    machine.thread = me;
}

EMULATE_OWN void fiber_main() {
    machine.entry(machine.arguments);
    machine.fibers[machine.thread].done = true;
    swapcontext(&machine.fibers[machine.thread].context, &machine.scheduler);
}

EMULATE_OWN void run_block(int threads) {
    Machine& m = machine;
    std::fill(m.shared.begin(), m.shared.end(), (char)0xFF);  // as floats, NaN: what nobody wrote spoils the result
    std::fill(m.shadow.begin(), m.shadow.end(), Byte{});
    m.epoch = 0;
    if ((int)m.fibers.size() < threads) m.stacks.reset(new char[(std::size_t)threads * STACK]);
    m.fibers.resize(threads);
    for (Fiber& f : m.fibers) {
        f.copies.clear();
        f.groups = 0;
        f.done = f.waiting = false;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = m.stacks.get() + (&f - m.fibers.data()) * STACK;
        f.context.uc_stack.ss_size = STACK;
        f.context.uc_link = &m.scheduler;
        makecontext(&f.context, fiber_main, 0);
    }
    for (;;) {
        int done = 0, waiting = 0;
        for (int t = 0; t < threads; ++t) {
            // Odd phases run backwards, so that an order between threads that no barrier makes shows.
            m.thread = m.epoch % 2 ? threads - 1 - t : t;
            Fiber& f = m.fibers[m.thread];
            if (!f.done && !f.waiting) swapcontext(&m.scheduler, &f.context);
            if (!m.error.empty()) return;
            done += f.done;
            waiting += f.waiting;
        }
        if (done == threads) break;
        if (done > 0) {
            m.error = "block " + std::to_string(m.block) + ": some threads ended while others wait at a barrier";
            return;
        }
        if (waiting == threads) {
            ++m.epoch;
            for (Fiber& f : m.fibers) f.waiting = false;
        }
    }
    for (Fiber& f : m.fibers)
        if (!f.copies.empty()) m.error = "block " + std::to_string(m.block) + " ended with copies under way";
}

template <typename... Args, std::size_t... I>
void call(void (*kernel)(Args...), void** args, std::index_sequence<I...>) {
    kernel(*static_cast<Args*>(args[I])...);
}

// Runs a kernel over a grid. `ranges` must be set. Empty: all went well; otherwise the first error.
template <typename... Args>
const char* launch(void (*kernel)(Args...), void** args, int grid, int threads, int shared_bytes) {
    struct Bound {
        void (*kernel)(Args...);
        void** args;
    } bound = {kernel, args};
    Machine& m = machine;
    m.entry = [](void* p) {
        Bound* b = static_cast<Bound*>(p);
        call(b->kernel, b->args, std::index_sequence_for<Args...>{});
    };
    m.arguments = &bound;
    m.shared.assign(shared_bytes, 0);
    m.shadow.assign(shared_bytes, Byte{});
    m.error.clear();
    m.blocks = grid;
    for (Range& r : m.ranges) r.written.assign(r.once ? r.bytes : 0, false);
    for (m.block = 0; m.block < grid && m.error.empty(); ++m.block) run_block(threads);
    return m.error.c_str();
}

}  // namespace emulate

DG_DEVICE int thread_id() { return emulate::machine.thread; }
DG_DEVICE int block_id() { return emulate::machine.block; }
DG_DEVICE int block_count() { return emulate::machine.blocks; }
DG_DEVICE void barrier() {
    emulate::machine.fibers[emulate::machine.thread].waiting = true;
    emulate::yield();
}
DG_DEVICE u32 opaque(u32 x) { return x; }

template <typename T, typename F>
DG_DEVICE T bit_cast(const F& from) {
    T to;
    std::memcpy(&to, &from, sizeof(T));
    return to;
}

DG_DEVICE u32 shared_begin() { return 0; }

template <typename V>
DG_DEVICE V load_shared(u32 at) {
    emulate::note_read(at, sizeof(V));
    V out;
    std::memcpy(&out, emulate::machine.shared.data() + at, sizeof(V));
    return out;
}
template <typename V>
DG_DEVICE void store_shared(u32 at, const V& value) {
    emulate::note_write(at, sizeof(V), false);
    std::memcpy(emulate::machine.shared.data() + at, &value, sizeof(V));
}
template <typename V>
DG_DEVICE V load_global(const void* from) {
    emulate::find_range(from, sizeof(V));
    V out;
    std::memcpy(&out, from, sizeof(V));
    return out;
}
template <typename V>
DG_DEVICE V load_fresh(const void* from) { return load_global<V>(from); }
template <typename V>
DG_DEVICE void store_global(void* to, const V& value) {
    emulate::Range& r = emulate::find_range(to, sizeof(V));
    if (!r.writable) emulate::fail("an input is written");
    i64 at = static_cast<char*>(to) - r.begin;
    for (i64 i = at; r.once && i < at + (i64)sizeof(V); ++i) {
        if (r.written[i]) emulate::fail("a result is written twice, at byte " + std::to_string(i));
        r.written[i] = true;
    }
    std::memcpy(to, &value, sizeof(V));
}

template <int BYTES>
DG_DEVICE void copy_async_or_zero(u32 at, const void* from, bool real) {
    if (real) emulate::find_range(from, BYTES);
    emulate::note_write(at, BYTES, true);
    emulate::Fiber& f = emulate::machine.fibers[emulate::machine.thread];
    f.copies.push_back({at, from, BYTES, real, f.groups});
}
template <int BYTES>
DG_DEVICE void copy_async(u32 at, const void* from) { copy_async_or_zero<BYTES>(at, from, true); }
DG_DEVICE void copy_commit() { ++emulate::machine.fibers[emulate::machine.thread].groups; }
template <int PENDING>
DG_DEVICE void copy_wait() {
    emulate::Machine& m = emulate::machine;
    emulate::Fiber& f = m.fibers[m.thread];
    std::vector<emulate::Copy> left;
    for (const emulate::Copy& c : f.copies) {
        if (c.group >= f.groups - PENDING) {
            left.push_back(c);
            continue;
        }
        if (c.real) std::memcpy(m.shared.data() + c.to, c.from, c.bytes);
        else std::memset(m.shared.data() + c.to, 0, c.bytes);
        for (u32 i = c.to; i < c.to + c.bytes; ++i) {
            m.shadow[i].in_flight = emulate::NOBODY;
            m.shadow[i].writer = m.thread;
            m.shadow[i].write_epoch = m.epoch;
        }
    }
    f.copies.swap(left);
}

// Blocks run one after another, so a block that waits for one that was not started yet would wait forever.
DG_DEVICE u32 arrive(u32* counter) {
    barrier();
    if (thread_id() == 0) {
        u32 before = load_global<u32>(counter);
        store_global<u32>(counter, before + 1);
        store_shared<u32>(0, before);
    }
    barrier();
    u32 before = load_shared<u32>(0);
    barrier();
    return before;
}
DG_DEVICE void raise(u32* flag) {
    barrier();
    if (thread_id() == 0) store_global<u32>(flag, 1);
}
DG_DEVICE void await(u32* flag) {
    if (thread_id() == 0) {
        if (load_global<u32>(flag) == 0) emulate::fail("a block waits for one that has not run yet");
        store_global<u32>(flag, 0);
    }
    barrier();
}
DG_DEVICE void reset(u32* counter) {
    if (thread_id() == 0) store_global<u32>(counter, 0);
}

DG_DEVICE f32 float_of_bits(u32 bits) { return bit_cast<f32>(bits); }
DG_DEVICE u32 bits_of_float(f32 x) { return bit_cast<u32>(x); }
DG_DEVICE f32 half_to_float(f16 x) {
    int exponent = x.bits >> 10 & 31, mantissa = x.bits & 1023;
    f32 size = exponent == 31 ? (mantissa ? NAN : INFINITY)
                              : std::ldexp((f32)(exponent ? mantissa | 1024 : mantissa), (exponent ? exponent : 1) - 25);
    return x.bits >> 15 ? -size : size;
}
DG_DEVICE f16 float_to_half(f32 x) {
    u16 sign = std::signbit(x) ? 0x8000 : 0;
    f32 size = std::fabs(x);
    if (std::isnan(x)) return {(u16)0x7E00};
    if (size >= 65520.0f) return {(u16)(sign | 0x7C00)};
    int exponent = size < 0x1p-14f ? -14 : std::ilogb(size);
    // Rounded to even; a carry out of the mantissa goes where it belongs.
    int mantissa = (int)std::nearbyint(std::ldexp(size, 10 - exponent));
    return {(u16)(sign | (((exponent + 14) << 10) + mantissa))};
}
DG_DEVICE f32 fused(f32 a, f32 b, f32 c) { return std::fma(a, b, c); }
DG_DEVICE f64 fused(f64 a, f64 b, f64 c) { return std::fma(a, b, c); }

#define DG_DOT_I8 4
DG_DEVICE i32 dot(Vec<i8, 4> a, Vec<i8, 4> b, i32 c) {
    for (int i = 0; i < 4; ++i) c += a.v[i] * b.v[i];
    return c;
}
DG_DEVICE f32 dot(Vec<f16, 2> a, Vec<f16, 2> b, f32 c) {
    for (int i = 0; i < 2; ++i) c += half_to_float(a.v[i]) * half_to_float(b.v[i]);
    return c;
}
