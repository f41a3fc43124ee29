// Products of matrices, as chips have them. NVIDIA's: by a warp, which loads matrices from shared memory together, or by
// four warps. AMD's: by the 64 lanes of a wavefront, or of a few numbers by one lane; each loads its own operands.
//
// Of four warps each has sixteen rows of the first operand in registers, and all read the second one from shared memory,
// where lines of 128 bytes lie as `swizzled<3, 7>` puts them. They run on their own until they are waited for. LEADING is
// the distance in bytes between blocks of 64 columns where columns are neighbours in memory, and 0 where what is summed
// over is. Where the first operand lies in such lines too, APART is the distance between groups of eight of its rows.
//
// Of a wavefront, lane `row + m * part` has its part of that row of the first operand and of that column of the second
// one. Of the sums it has four columns in a row, `4 * part` being the first. (The instruction's own first operand is our
// second one: so a lane's sums are neighbours in a row, not in a column.)
#pragma once
#include "expressions.h"

// What a lane has of a row: elements side by side, or each at a place of its own.
template <int WORDS>
DG_DEVICE void load_own(u32* to, u32 from) {
    const Vec<u32, WORDS> words = load_shared<Vec<u32, WORDS>>(from);
    DG_UNROLL for (int i = 0; i < WORDS; ++i) to[i] = words.v[i];
}
template <typename T, typename... PLACES>
DG_DEVICE void load_each(u32* to, PLACES... from) {
    constexpr int WORDS = (int)(sizeof...(from) * sizeof(T)) / 4;
    const Vec<T, sizeof...(from)> elements = {{load_shared<T>(from)...}};
    const Vec<u32, WORDS> words = bit_cast<Vec<u32, WORDS>>(elements);
    DG_UNROLL for (int i = 0; i < WORDS; ++i) to[i] = words.v[i];
}

#define DG_DOT(name, SUM, T, k)                                                 \
    DG_DEVICE void name(SUM* d, const u32* a, const u32* b) {                   \
        *d = dot(bit_cast<Vec<T, k>>(*a), bit_cast<Vec<T, k>>(*b), *d);         \
    }

#if defined(DG_EMULATE)
namespace emulate {

inline i64 conflicts = 0;  // rows of matrices that had to wait for another row's banks

inline const u32 (*rows_of(u32 mine))[8] {
    const u32(*rows)[8] = exchange(&mine, 1);
    for (int matrix = 0; matrix < 4 && machine.thread % 32 == 0; ++matrix) {
        bool taken[8] = {};
        for (int row = 0; row < 8; ++row) {
            const u32 at = rows[matrix * 8 + row][0];
            if (at % 16 != 0) fail("a row of a matrix is not aligned");
            conflicts += taken[at / 16 % 8];
            taken[at / 16 % 8] = true;
        }
    }
    return rows;
}

inline f64 number(u32 word, int n, f16) { return half_to_float({(u16)(word >> 16 * n)}); }
inline f64 number(u32 word, int n, bf16) { return float_of_bits((word >> 16 * n & 0xFFFF) << 16); }
inline f64 number(u32 word, int n, i8) { return (i8)(word >> 8 * n); }
inline f64 number(u32 word, int, f32) { return float_of_bits(word); }

// Lane 4 * g + t holds row g and row g + 8 of the first operand, column g of the second, words t and t + 4 of each.
template <typename T, typename SUM>
inline void multiply(SUM* d, const u32* a, const u32* b) {
    const u32 mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const u32(*all)[8] = exchange(mine, 6);
    const int lane = machine.thread % 32;
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4, column = lane % 4 * 2 + i % 2;
        f64 sum = 0;
        for (int word = 0; word < 8; ++word)
            for (int n = 0; n < 4 / (int)sizeof(T); ++n)
                sum += number(all[row * 4 + word % 4][i / 2 + word / 4 * 2], n, T()) *
                       number(all[column * 4 + word % 4][4 + word / 4], n, T());
        d[i] = (SUM)(d[i] + sum);
    }
}

template <typename T, int COLUMNS, int LEADING, typename SUM>
inline void multiply_rows(SUM* d, const u32 (*rows)[4], u32 b) {
    if (b % 1024 >= 128) fail("the second operand does not begin with a line of its first rows");
    const int lane = machine.thread % 32;
    for (int column = lane % 4 * 2; column < COLUMNS; column += column % 2 ? 7 : 1) {
        f64 sums[2] = {};
        for (int at = 0; at < 32; at += (int)sizeof(T)) {  // bytes along what is summed over
            const int k = at / (int)sizeof(T);
            const u32 place = LEADING ? column / 64 * LEADING + k * 128 + column % 64 * 2 : column * 128 + at;
            const u32 bits = sizeof(T) == 1 ? (u32)load_shared<u8>(swizzled<3, 7>(b + place))
                                            : (u32)load_shared<u16>(swizzled<3, 7>(b + place));
            for (int half = 0; half < 2; ++half)
                sums[half] += number(rows[lane / 4 * 4 + at / 4 % 4][half + at / 16 * 2], k % (4 / (int)sizeof(T)), T()) *
                              number(bits, 0, T());
        }
        for (int half = 0; half < 2; ++half) {
            SUM& sum = d[column / 8 * 4 + half * 2 + column % 2];
            sum = (SUM)(sum + sums[half]);
        }
    }
}

template <typename T, int COLUMNS, int LEADING, typename SUM>
inline void multiply_wide(SUM* d, const u32* a, u32 b) {
    const u32(*all)[8] = exchange(a, 4);
    u32 rows[32][4];
    for (int lane = 0; lane < 32; ++lane)
        for (int word = 0; word < 4; ++word) rows[lane][word] = all[lane][word];
    multiply_rows<T, COLUMNS, LEADING>(d, rows, b);
}

template <typename T, int COLUMNS, int LEADING, int APART, typename SUM>
inline void multiply_lines(SUM* d, u32 a, u32 b) {
    if (a % 1024 >= 128) fail("the first operand does not begin with a line of its first rows");
    u32 rows[32][4];
    for (int lane = 0; lane < 32; ++lane)
        for (int word = 0; word < 4; ++word) {
            const int row = machine.thread / 32 % 4 * 16 + lane / 4 + word % 2 * 8;
            rows[lane][word] = load_shared<u32>(
                swizzled<3, 7>(a + row / 8 * APART + row % 8 * 128 + lane % 4 * 4 + word / 2 * 16));
        }
    multiply_rows<T, COLUMNS, LEADING>(d, rows, b);
}

template <typename T, int SIZE, int K, typename SUM>
inline void multiply_own(SUM* d, const u32* a, const u32* b) {
    constexpr int PARTS = 64 / SIZE, OWN = K / PARTS, EACH = 4 / (int)sizeof(T), WORDS = OWN / EACH;
    u32 mine[2 * WORDS];
    for (int i = 0; i < WORDS; ++i) mine[i] = a[i], mine[WORDS + i] = b[i];
    const u32(*all)[8] = exchange(mine, 2 * WORDS);
    const int lane = machine.thread % 64, row = lane % SIZE;
    for (int i = 0; i < SIZE * SIZE / 64; ++i) {
        const int column = i / 4 * 4 * PARTS + lane / SIZE * 4 + i % 4;
        f64 sum = 0;
        for (int k = 0; k < K; ++k) {
            const int from = k / OWN * SIZE, word = k % OWN / EACH, n = k % EACH;
            sum += number(all[from + row][word], n, T()) * number(all[from + column][WORDS + word], n, T());
        }
        d[i] = (SUM)(d[i] + sum);
    }
}

}  // namespace emulate

DG_DEVICE void load_matrices(u32* to, u32 from) {
    const u32(*rows)[8] = emulate::rows_of(from);
    const int lane = thread_id() % 32;
    for (int i = 0; i < 4; ++i) to[i] = load_shared<u32>(rows[8 * i + lane / 4][0] + lane % 4 * 4);
}
DG_DEVICE void load_matrices_turned(u32* to, u32 from) {
    const u32(*rows)[8] = emulate::rows_of(from);
    const int lane = thread_id() % 32;
    for (int i = 0; i < 4; ++i) {
        const u32 low = load_shared<u16>(rows[8 * i + lane % 4 * 2][0] + lane / 4 * 2);
        const u32 high = load_shared<u16>(rows[8 * i + lane % 4 * 2 + 1][0] + lane / 4 * 2);
        to[i] = low | high << 16;
    }
}
#define DG_PRODUCT(name, SUM, T, k, instruction) \
    DG_DEVICE void name(SUM* d, const u32* a, const u32* b) { emulate::multiply<T>(d, a, b); }
#define DG_MFMA(name, SUM, T, size, k, instruction) \
    DG_DEVICE void name(SUM* d, const u32* a, const u32* b) { emulate::multiply_own<T, size, k>(d, a, b); }
DG_DEVICE void writes_ready() {}
DG_DEVICE void products_begin() {}
DG_DEVICE void products_commit() {}
template <int PENDING>
DG_DEVICE void products_wait() {}
#elif defined(__HIP__)
// An operand as the compiler takes it.
template <typename T, int WORDS> struct Operand;
template <> struct Operand<f16, 2> { typedef _Float16 type __attribute__((ext_vector_type(4))); };
template <> struct Operand<bf16, 2> { typedef short type __attribute__((ext_vector_type(4))); };
template <> struct Operand<bf16, 1> { typedef short type __attribute__((ext_vector_type(2))); };
template <> struct Operand<i8, 1> { typedef int type; };
template <> struct Operand<i8, 2> { typedef long type; };
template <> struct Operand<f32, 1> { typedef float type; };
template <typename T, int WORDS>
DG_DEVICE typename Operand<T, WORDS>::type operand(const u32* from) {
    Vec<u32, WORDS> words;
    DG_UNROLL for (int i = 0; i < WORDS; ++i) words.v[i] = from[i];
    return bit_cast<typename Operand<T, WORDS>::type>(words);
}
#define DG_MFMA(name, SUM, T, size, k, instruction)                                                                 \
    DG_DEVICE void name(SUM* d, const u32* a, const u32* b) {                                                       \
        constexpr int WORDS = size * k * (int)sizeof(T) / 256, COUNT = size * size / 64;                            \
        typedef SUM Sums __attribute__((ext_vector_type(COUNT)));                                                   \
        Sums sums;                                                                                                  \
        DG_UNROLL for (int i = 0; i < COUNT; ++i) sums[i] = d[i];                                                   \
        sums = __builtin_amdgcn_##instruction(operand<T, WORDS>(b), operand<T, WORDS>(a), sums, 0, 0, 0);           \
        DG_UNROLL for (int i = 0; i < COUNT; ++i) d[i] = sums[i];                                                   \
    }
#else
// Four matrices of eight rows of 16 bytes: lane 8 * i + r gives where row r of matrix i begins, and gets word `lane % 4`
// of row `lane / 4` of each; turned, the same of the columns of two-byte elements.
DG_DEVICE void load_matrices(u32* to, u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}
DG_DEVICE void load_matrices_turned(u32* to, u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}
#define DG_REGISTER_f32 "+f"
#define DG_REGISTER_i32 "+r"
#define DG_PRODUCT(name, SUM, T, k, instruction)                                                                        \
    DG_DEVICE void name(SUM* d, const u32* a, const u32* b) {                                                           \
        asm("mma.sync.aligned." instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"          \
                     : DG_REGISTER_##SUM(d[0]), DG_REGISTER_##SUM(d[1]), DG_REGISTER_##SUM(d[2]),                       \
                       DG_REGISTER_##SUM(d[3])                                                                          \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                               \
    }
// Ordinary writes to shared memory become visible to the matrix units.
DG_DEVICE void writes_ready() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DG_DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DG_DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
DG_DEVICE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }
// Where an operand is, the distances between its parts in 16 bytes, and that lines have 128 bytes.
DG_DEVICE u64 in_lines(u32 place, u32 leading, u32 apart) {
    return (u64)((place & 0x3FFFF) >> 4) | (u64)(leading >> 4) << 16 | (u64)(apart >> 4) << 32 | 1ull << 62;
}
#endif
