// Products whose operands each lane loads for itself, as AMD's chips have them: of matrices by the 64 lanes of a
// wavefront, and of a few numbers by one lane.
#pragma once
#if defined(DG_EMULATE)
#include "matrices.h"
#else
#include "expressions.h"
#endif

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

// Lane `row + m * part` has its part of that row of the first operand and of that column of the second one. Of the sums
// it has four columns in a row, `4 * part` being the first. (The instruction's own first operand is our second one: so
// a lane's sums are neighbours in a row, not in a column.)
#if defined(DG_EMULATE)
namespace emulate {

inline f64 number(u32 word, int, f32) { return float_of_bits(word); }

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
#define DG_MFMA(name, SUM, T, size, k, instruction) \
    DG_DEVICE void name(SUM* d, const u32* a, const u32* b) { emulate::multiply_own<T, size, k>(d, a, b); }
#else
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
#endif
