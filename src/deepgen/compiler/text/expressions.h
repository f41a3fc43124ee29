// What kernels made by rules add to the dialect: arithmetic of expressions, runs of elements, threads that join what
// each of them reduced. WARP is the number of lanes of a warp.
#pragma once
#include "dialect.h"

typedef short i16;

#ifndef INFINITY
#define INFINITY float_of_bits(0x7F800000u)
#endif
#ifndef NAN
#define NAN float_of_bits(0x7FC00000u)
#endif
#ifndef INT64_C
#define INT64_C(number) number##ll
#endif
#ifndef INT64_MIN
#define INT64_MIN (-0x7FFFFFFFFFFFFFFFll - 1)
#endif

DG_DEVICE int least(int a, int b) { return a < b ? a : b; }
DG_DEVICE int quotient(int a, int by) { return a / by - (a % by < 0); }
DG_DEVICE int remainder_of(int a, int by) { return a % by + (a % by < 0 ? by : 0); }

DG_DEVICE f32 widen_f16(f16 x) { f32 y; widen(x, y); return y; }
DG_DEVICE f32 widen_bf16(bf16 x) { f32 y; widen(x, y); return y; }
DG_DEVICE f16 narrow_f16(f32 x) { f16 y; narrow(x, y); return y; }
#if __CUDA_ARCH__ >= 800  // one instruction where bits take seven
#define DG_INSTRUCTIONS
DG_DEVICE bf16 narrow_bf16(f32 x) { bf16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }
#else
DG_DEVICE bf16 narrow_bf16(f32 x) { bf16 y; narrow(x, y); return y; }
#endif

// Functions of the chip, or of the CPU that emulates it: HIP's compiler has some without a vendor's library.
#if defined(__HIP__)
#define DG_CHIP(name) __builtin_##name
#else
#define DG_CHIP(name) name
#endif
#define DG_FLOATS(T, f)                                                   \
    DG_DEVICE T add_##T(T a, T b) { return a + b; }                       \
    DG_DEVICE T mul_##T(T a, T b) { return a * b; }                       \
    DG_DEVICE T abs_##T(T x) { return DG_CHIP(fabs##f)(x); }              \
    DG_DEVICE T sqrt_##T(T x) { return DG_CHIP(sqrt##f)(x); }             \
    DG_DEVICE T floor_##T(T x) { return DG_CHIP(floor##f)(x); }
#define DG_BOUNDS(T)                                                      \
    DG_DEVICE T max_##T(T a, T b) { return a > b || a != a ? a : b; }     \
    DG_DEVICE T min_##T(T a, T b) { return a < b || a != a ? a : b; }
#define DG_FUNCTIONS(T, f)                                                \
    DG_DEVICE T exp_##T(T x) { return DG_CHIP(exp##f)(x); }               \
    DG_DEVICE T log_##T(T x) { return DG_CHIP(log##f)(x); }               \
    DG_DEVICE T sin_##T(T x) { return DG_CHIP(sin##f)(x); }               \
    DG_DEVICE T cos_##T(T x) { return DG_CHIP(cos##f)(x); }
#define DG_RSQRT(T, f) DG_DEVICE T rsqrt_##T(T x) { return 1 / DG_CHIP(sqrt##f)(x); }
#define DG_SIGMOID(T, f) DG_DEVICE T sigmoid_##T(T x) { return 1 / (1 + DG_CHIP(exp##f)(-x)); }
#define DG_LIBRARY(T, f)                                                  \
    DG_DEVICE T tanh_##T(T x) { return tanh##f(x); }                      \
    DG_DEVICE T erf_##T(T x) { return erf##f(x); }                        \
    DG_DEVICE T pow_##T(T a, T b) { return pow##f(a, b); }
DG_FLOATS(f32, f)
DG_FLOATS(f64, )
DG_RSQRT(f64, )
DG_BOUNDS(f64)
DG_FUNCTIONS(f32, f)
#if defined(DG_INSTRUCTIONS)
DG_DEVICE f32 max_f32(f32 a, f32 b) { f32 y; asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
DG_DEVICE f32 min_f32(f32 a, f32 b) { f32 y; asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
// Off by one unit in the last place, where exact ones take ten to fifty instructions and jump over the rare cases: of a
// short kernel, most of the time is that in which its instructions come from memory.
DG_DEVICE f32 inverse_f32(f32 x) { f32 y; asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DG_DEVICE f32 rsqrt_f32(f32 x) { f32 y; asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DG_DEVICE f32 sigmoid_f32(f32 x) { return inverse_f32(1 + expf(-x)); }
#else
DG_DEVICE f32 inverse_f32(f32 x) { return 1 / x; }
DG_RSQRT(f32, f)
DG_BOUNDS(f32)
DG_SIGMOID(f32, f)
#endif
// x / by, rounded as a division is, for ordinary numbers `by` whose inverse is not as small as to lose digits.
DG_DEVICE f32 divided_f32(f32 x, f32 by, f32 inverse) {
    const f32 about = x * inverse, rest = DG_CHIP(fmaf)(-about, by, x);
    return rest - rest == 0 ? DG_CHIP(fmaf)(rest, inverse, about) : about;
}
#if defined(__HIP__)
// By its series near zero, and by an exponential elsewhere: the chip has none.
DG_DEVICE f32 tanh_f32(f32 x) {
    f32 size = __builtin_fabsf(x), s = x * x, e = exp_f32(-2 * size);
    f32 near = x * (1 + s * (-1.f / 3 + s * (2.f / 15 + s * (-17.f / 315 + s * (62.f / 2835)))));
    f32 far = (1 - e) / (1 + e);
    return size < 0.25f ? near : x < 0 ? -far : far;
}
// By its series up to 1; beyond, by a polynomial in 1 / (1 + p x) times exp(-x^2).
DG_DEVICE f32 erf_f32(f32 x) {
    f32 size = __builtin_fabsf(x), s = x * x, sum = 0, term = x;
    DG_UNROLL for (int n = 0; n < 12; ++n) {
        sum += term / (2 * n + 1);
        term *= -s / (n + 1);
    }
    f32 t = 1 / (1 + 0.3275911f * size);
    f32 poly = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    f32 far = 1 - poly * exp_f32(-s);
    return size < 1 ? sum * 1.1283791671f : x < 0 ? -far : far;
}
#else
DG_FUNCTIONS(f64, )
DG_SIGMOID(f64, )
DG_LIBRARY(f32, f)
DG_LIBRARY(f64, )
#endif
// exp(x) - 1 and log(1 + exp(-|x|)), which expressions write with functions that take two to three times as long.
DG_DEVICE f32 expm1_f32(f32 x) {
#if defined(__HIP__)
    const f32 t = tanh_f32(x * 0.5f);
    return 2 * t / (1 - t);
#else
    return expm1f(x);
#endif
}
// By a polynomial: an exponential of at most 1 has no need of a logarithm of all numbers.
DG_DEVICE f32 log1p_exp_f32(f32 x) {
    const f32 e = exp_f32(-abs_f32(x));
    f32 y = -0.0032440252f;
    y = y * e + 0.019851463f;
    y = y * e - 0.056959536f;
    y = y * e + 0.10603656f;
    y = y * e - 0.15305592f;
    y = y * e + 0.19675939f;
    y = y * e - 0.24954134f;
    y = y * e + 0.33329964f;
    y = y * e - 0.49999902f;
    return e * (y * e + 1);
}
// A number and its place as one integer: the least integer is that of the least (or largest) number, and of its first
// place. Bits of floats are in order if those of negative numbers are exchanged; both zeros are one number.
DG_DEVICE u32 in_order(f32 x) {
    const int bits = bit_cast<int>(x + 0.0f);
    return (u32)(bits ^ (bits >> 31 & 0x7FFFFFFF));
}
DG_DEVICE i64 first_least_f32(i64 place, f32 x) { return (i64)((u64)in_order(x) << 32 | (u32)place); }
DG_DEVICE i64 first_most_f32(i64 place, f32 x) { return (i64)((u64)~in_order(x) << 32 | (u32)place); }
DG_DEVICE i64 place_of_i64(i64 x) { return x & 0xFFFFFFFF; }
// Whole numbers wrap around; a quotient is rounded down, and by zero it is zero.
#define DG_WHOLES(T, U)                                                   \
    DG_DEVICE T add_##T(T a, T b) { return (T)((U)a + (U)b); }            \
    DG_DEVICE T sub_##T(T a, T b) { return (T)((U)a - (U)b); }            \
    DG_DEVICE T mul_##T(T a, T b) { return (T)((U)a * (U)b); }            \
    DG_DEVICE T neg_##T(T x) { return (T)(0 - (U)x); }                    \
    DG_DEVICE T abs_##T(T x) { return x < 0 ? (T)(0 - (U)x) : x; }        \
    DG_DEVICE T max_##T(T a, T b) { return a > b ? a : b; }               \
    DG_DEVICE T min_##T(T a, T b) { return a < b ? a : b; }               \
    DG_DEVICE T div_##T(T a, T b) {                                       \
        if (b == 0) return 0;                                             \
        if ((T)-1 < 0 && b == (T)-1) return (T)(0 - (U)a);                \
        return (T)(a / b - (a % b != 0 && (a < 0) != (b < 0)));           \
    }
DG_WHOLES(i8, u32)
DG_WHOLES(u8, u32)
DG_WHOLES(i16, u32)
DG_WHOLES(i32, u32)
DG_WHOLES(i64, u64)

#if !defined(DG_EMULATE) && !defined(__HIP__)
// Numbers of 8 bytes as they are: moved as pairs of words, NVRTC takes what a loop stores for unchanged in its next turn.
#define DG_WIDE_NUMBERS(T)                                                                                           \
    template <> DG_DEVICE T load_shared<T>(u32 at) { return *static_cast<const T*>(__cvta_shared_to_generic(at)); } \
    template <> DG_DEVICE void store_shared<T>(u32 at, const T& value) {                                             \
        *static_cast<T*>(__cvta_shared_to_generic(at)) = value;                                                      \
    }
DG_WIDE_NUMBERS(f64)
DG_WIDE_NUMBERS(i64)
#endif

// What a thread holds in registers. The emulation fills it with what is no number: whoever reads it before it is
// written computes something else.
#if defined(DG_EMULATE)
#define DG_HELD(T, name, count) \
    T name[count];              \
    std::memset(static_cast<void*>(name), 0xFF, sizeof(name))
DG_DEVICE void block_ends() { barrier(); }  // no thread ends before those that its lane meets
#else
#define DG_HELD(T, name, count) T name[count]
DG_DEVICE void block_ends() {}
#endif

// Loads that the compiler may move and merge.
template <typename V>
DG_DEVICE V load_plain(const void* from) {
#if defined(DG_EMULATE) || defined(__HIP__)
    return load_global<V>(from);
#else
    return bit_cast<V>(*reinterpret_cast<const typename Raw<sizeof(V)>::type*>(from));
#endif
}
#if !defined(DG_EMULATE) && !defined(__HIP__)
template <> DG_DEVICE f64 load_plain<f64>(const void* from) { return *static_cast<const f64*>(from); }
template <> DG_DEVICE i64 load_plain<i64>(const void* from) { return *static_cast<const i64*>(from); }
#endif

// Runs of N elements, WIDTH at a time; zeros where they are not real, and nothing is read.
template <int WIDTH, typename T, int N>
DG_DEVICE Vec<T, N> read_plain(const T* from, bool real) {
    Vec<T, N> to{};
    if (real)
        DG_UNROLL for (int i = 0; i < N; i += WIDTH) {
            Vec<T, WIDTH> part = load_plain<Vec<T, WIDTH>>(from + i);
            DG_UNROLL for (int e = 0; e < WIDTH; ++e) to.v[i + e] = part.v[e];
        }
    return to;
}
// Loads that stay where they stand, before threads wait for each other: the compiler would have some wait for memory
// once more after that. The kernel does not write what they read.
template <typename V>
DG_DEVICE V load_early(const void* from) {
#if !defined(DG_EMULATE) && !defined(__HIP__)
    if constexpr (sizeof(V) == 2) {
        u16 bits;
        asm volatile("ld.volatile.global.u16 %0, [%1];" : "=h"(bits) : "l"(from));
        return bit_cast<V>(bits);
    } else if constexpr (sizeof(V) == 4) {
        u32 word;
        asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(word) : "l"(from));
        return bit_cast<V>(word);
    } else if constexpr (sizeof(V) == 8) {
        Vec<u32, 2> words;
        asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(words.v[0]), "=r"(words.v[1]) : "l"(from));
        return bit_cast<V>(words);
    } else
#endif
        return load_plain<V>(from);
}
// The same without a branch: what stands in one is waited for before the next begins. Of what the kernel does not write,
// or of what a launch before wrote, which nothing may load before that has ended.
#if !defined(DG_EMULATE) && !defined(__HIP__)
#define DG_IF "{\n.reg .pred real;\nsetp.ne.u32 real, %"
#define DG_LOADS_IF(name, how, from_memory)                                                                      \
    DG_DEVICE void name(Vec<u32, 1>& to, const void* from, u32 real) {                                           \
        how(DG_IF "2, 0;\n@real " from_memory ".u32 %0, [%1];\n}" : "+r"(to.v[0]) : "l"(from), "r"(real));       \
    }                                                                                                            \
    DG_DEVICE void name(Vec<u32, 2>& to, const void* from, u32 real) {                                           \
        how(DG_IF "3, 0;\n@real " from_memory ".v2.u32 {%0, %1}, [%2];\n}"                                       \
            : "+r"(to.v[0]), "+r"(to.v[1]) : "l"(from), "r"(real));                                              \
    }                                                                                                            \
    DG_DEVICE void name(Vec<u32, 4>& to, const void* from, u32 real) {                                           \
        how(DG_IF "5, 0;\n@real " from_memory ".v4.u32 {%0, %1, %2, %3}, [%4];\n}"                               \
            : "+r"(to.v[0]), "+r"(to.v[1]), "+r"(to.v[2]), "+r"(to.v[3]) : "l"(from), "r"(real));                \
    }
DG_LOADS_IF(load_if, asm, "ld.global.nc")
DG_LOADS_IF(load_awaited_if, asm volatile, "ld.global")
#endif
template <int WIDTH, typename T, int N, bool AWAITED = false>
DG_DEVICE Vec<T, N> read_input(const T* from, bool real) {
#if !defined(DG_EMULATE) && !defined(__HIP__)
    constexpr int BYTES = N * (int)sizeof(T);
    if constexpr (WIDTH == N && (BYTES == 4 || BYTES == 8 || BYTES == 16)) {
        Vec<u32, BYTES / 4> words{};
        if constexpr (AWAITED) load_awaited_if(words, from, real);
        else load_if(words, from, real);
        return bit_cast<Vec<T, N>>(words);
    }
#endif
    return read_plain<WIDTH, T, N>(from, real);
}
template <int WIDTH, typename T, int N>
DG_DEVICE Vec<T, N> read_awaited(const T* from, bool real) { return read_input<WIDTH, T, N, true>(from, real); }
template <int WIDTH, typename T, int N>
DG_DEVICE Vec<T, N> read_shared(u32 from, bool real) {
    Vec<T, N> to{};
    if (real)
        DG_UNROLL for (int i = 0; i < N; i += WIDTH) {
            Vec<T, WIDTH> part = load_shared<Vec<T, WIDTH>>(from + i * (u32)sizeof(T));
            DG_UNROLL for (int e = 0; e < WIDTH; ++e) to.v[i + e] = part.v[e];
        }
    return to;
}
template <int WIDTH, typename T, int N>
DG_DEVICE void write_global(T* to, const Vec<T, N>& from) {
    DG_UNROLL for (int i = 0; i < N; i += WIDTH) {
        Vec<T, WIDTH> part;
        DG_UNROLL for (int e = 0; e < WIDTH; ++e) part.v[e] = from.v[i + e];
        store_global(to + i, part);
    }
}
template <int WIDTH, typename T, int N>
DG_DEVICE void write_shared(u32 to, const Vec<T, N>& from) {
    DG_UNROLL for (int i = 0; i < N; i += WIDTH) {
        Vec<T, WIDTH> part;
        DG_UNROLL for (int e = 0; e < WIDTH; ++e) part.v[e] = from.v[i + e];
        store_shared(to + i * (u32)sizeof(T), part);
    }
}

// A run of f16 as numbers to compute with. In pairs, as they lie in registers: one by one, each would be moved first.
template <int N>
DG_DEVICE void widen_run(const Vec<f16, N>& from, f32* to) {
    DG_UNROLL for (int i = 0; i < N; i += 2) {
#if defined(DG_EMULATE) || defined(__HIP__)
        to[i] = widen_f16(from.v[i]);
        to[i + 1] = widen_f16(from.v[i + 1]);
#else
        const Vec<f16, 2> both = {{from.v[i], from.v[i + 1]}};
        asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;\n}"
            : "=f"(to[i]), "=f"(to[i + 1]) : "r"(bit_cast<u32>(both)));
#endif
    }
}

template <int BYTES>
DG_DEVICE u32 aligned(u32 at) { return (at + (BYTES - 1)) & ~(u32)(BYTES - 1); }

// Where 16 bytes of shared memory go so that those of neighbouring rows lie on different banks: within a line of 128
// bytes, exchanged by the number of their row.
template <int BITS, int ROW>
DG_DEVICE u32 swizzled(u32 at) { return at ^ ((at >> ROW & ((1u << BITS) - 1)) << 4); }

#if defined(__HIP__) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800)
// No copies on their own: they are done at once.
template <int BYTES>
DG_DEVICE void copy_async_or_zero(u32 to, const void* from, bool real) {
    typedef Vec<u32, BYTES / 4> Few;
    store_shared(to, real ? load_plain<Few>(from) : Few{});
}
DG_DEVICE void copy_commit() {}
template <int PENDING>
DG_DEVICE void copy_wait() {}
#endif

#if defined(DG_EMULATE)
// Lanes of a warp that do something together: they meet, each leaves its words, and all read them.
namespace emulate {

struct Exchange {
    u32 words[2][64][8];  // two meetings take turns: a lane may be one ahead of the others
    u64 arrived = 0;
};

inline std::vector<Exchange> exchanges;  // of each warp
inline std::vector<u64> visits;          // of each thread

inline const u32 (*exchange(const u32* mine, int count))[8] {
    const int threads = (int)machine.fibers.size(), me = machine.thread, warp = me / WARP;
    if ((int)visits.size() != threads) {
        visits.assign(threads, 0);
        exchanges.assign((threads + WARP - 1) / WARP, Exchange{});
    }
    const int lanes = threads - warp * WARP < WARP ? threads - warp * WARP : WARP;
    const u64 turn = visits[me]++;
    Exchange& here = exchanges[warp];
    std::memcpy(here.words[turn % 2][me % WARP], mine, count * sizeof(u32));
    ++here.arrived;
    for (int tries = 0; here.arrived < (turn + 1) * lanes; ++tries) {
        if (tries > 1 << 16) fail("some lanes of a warp do not come to what they do together");
        yield();
    }
    return here.words[turn % 2];
}

}  // namespace emulate

DG_DEVICE u32 across(u32 word, int mask) {
    return emulate::exchange(&word, 1)[(thread_id() % WARP) ^ mask][0];
}
#elif defined(__HIP__)
DG_DEVICE u32 across(u32 word, int mask) {
    int lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
    return (u32)__builtin_amdgcn_ds_bpermute((lane ^ mask) << 2, (int)word);
}
#else
DG_DEVICE u32 across(u32 word, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, word, mask); }
#endif

// The value of the lane whose number differs in these bits.
template <typename T>
DG_DEVICE T of_lane_across(T x, int mask) {
    if constexpr (sizeof(T) == 8) {
        Vec<u32, 2> words = bit_cast<Vec<u32, 2>>(x);
        Vec<u32, 2> theirs = {{across(words.v[0], mask), across(words.v[1], mask)}};
        return bit_cast<T>(theirs);
    } else if constexpr (sizeof(T) == 4) {
        return bit_cast<T>(across(bit_cast<u32>(x), mask));
    } else {
        return (T)across((u32)x, mask);
    }
}

// The values of TEAM threads in a row, joined; all of them get the result. Every thread of the block calls it. Where a
// team is more than a warp, its warps meet at `at` in shared memory; if they may have met there before, they WAIT.
template <int TEAM, bool WAIT, typename T, T (*JOIN)(T, T)>
DG_DEVICE T over_threads(T x, u32 at) {
    constexpr int INSIDE = TEAM < WARP ? TEAM : WARP;
    static_assert((INSIDE & (INSIDE - 1)) == 0 && TEAM % INSIDE == 0, "lanes are joined two by two");
    DG_UNROLL for (int mask = INSIDE / 2; mask > 0; mask /= 2) x = JOIN(x, of_lane_across(x, mask));
    if constexpr (TEAM > WARP) {
        constexpr int WARPS = TEAM / WARP;
        if constexpr (WAIT) barrier();
        if (thread_id() % WARP == 0) store_shared<T>(at + thread_id() / WARP * (u32)sizeof(T), x);
        barrier();
        const u32 first = at + thread_id() / TEAM * WARPS * (u32)sizeof(T);
        if constexpr (WARPS <= 4 || WARPS > WARP || (WARPS & (WARPS - 1))) {
            x = load_shared<T>(first);
            DG_UNROLL for (int i = 1; i < WARPS; ++i) x = JOIN(x, load_shared<T>(first + i * (u32)sizeof(T)));
        } else {  // a load and few steps, where the code of many loads would be longer
            x = load_shared<T>(first + thread_id() % WARPS * (u32)sizeof(T));
            DG_UNROLL for (int mask = WARPS / 2; mask > 0; mask /= 2) x = JOIN(x, of_lane_across(x, mask));
        }
    }
    return x;
}

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

// N elements of two bytes, each APART elements after the one before; zeros where they are not real, and nothing is read.
// Without a branch: what stands in one is waited for before the next begins.
template <typename T, int N>
DG_DEVICE Vec<T, N> gathered(const T* from, int apart, bool real) {
    Vec<T, N> to{};
#if defined(DG_EMULATE) || defined(__HIP__)
    if (real)
        for (int i = 0; i < N; ++i) to.v[i] = load_plain<T>(from + i * (i64)apart);
#else
    DG_UNROLL for (int i = 0; i < N; ++i) {
        u16 bits = 0;
        asm volatile("{\n.reg .pred real;\nsetp.ne.u32 real, %2, 0;\n@real ld.global.u16 %0, [%1];\n}"
            : "+h"(bits) : "l"(from + i * (i64)apart), "r"((u32)real));
        to.v[i] = bit_cast<T>(bits);
    }
#endif
    return to;
}

// Launches that overlap: one lets the next begin at once, and that waits before it reads what the first one writes.
#if !defined(DG_EMULATE) && !defined(__HIP__)
DG_DEVICE void next_may_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DG_DEVICE void wait_for_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
DG_DEVICE void next_may_begin() {}
DG_DEVICE void wait_for_launch_before() {}
#endif
