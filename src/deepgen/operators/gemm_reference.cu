// A GEMM's reference on a device: C = activation(alpha * op(A) op(B) * scale + beta * C + bias), or an epilogue's text, in
// f64, or in i64 where all numbers are whole, and the size of the products that each element was made of. In CUDA, in HIP, and emulated on a
// CPU.
//
// Plain, and as fast as that allows: a block of 16 x 16 threads has 64 x 64 elements of C, a thread 4 x 4 of them.

#include "reference_device.h"

enum { F64, F32, F16, BF16, F8E4M3, F8E5M2, I8, U8, I16, I32, I64 };
enum { NONE, RELU, GELU, SILU };
enum { BY_TENSOR = 1, BY_ROW, BY_COLUMN };

// What the flags say: FORMAT_A, FORMAT_B, FORMAT_C (of C and the bias), TRANSPOSED_A, TRANSPOSED_B, ACTIVATION, SCALES,
// BETA, BIAS, BLOCK_A and BLOCK_B (rows of A and columns of B that share a factor; 0: none); WHOLE (1: products are summed up as integers, 2: and C holds integers too, 0: neither).
#if WHOLE
typedef i64 Sum;
#else
typedef f64 Sum;
#endif
#if WHOLE == 2
typedef i64 Want;
#else
typedef f64 Want;
#endif
#if FORMAT_C == 0  // F64
typedef f64 Size;
#else
typedef f32 Size;
#endif
#if WHOLE && FORMAT_A < 10 && FORMAT_B < 10  // I64
typedef i32 Term;
#else
typedef Sum Term;
#endif

DG_DEVICE f64 power(int exponent) {  // of two, in the range of normal numbers
    union { u64 bits; f64 value; } both = {(u64)(exponent + 1023) << 52};
    return both.value;
}

// A float of sign, exponent and fraction, whose highest exponent is that of numbers in f8e4m3 but for one NaN.
DG_DEVICE f64 decoded(u32 bits, int exponent_bits, int fraction_bits, bool finite) {
    const u32 top = (1u << exponent_bits) - 1, fractions = (1u << fraction_bits) - 1;
    const u32 exponent = bits >> fraction_bits & top, fraction = bits & fractions;
    const int lowest = 1 - (int)(top >> 1) - fraction_bits;
    f64 size = exponent ? (fraction | (fractions + 1)) * power((int)exponent - 1 + lowest) : fraction * power(lowest);
    if (finite ? exponent == top && fraction == fractions : exponent == top && fraction != 0) size = power(1023) * 4 * 0;
    else if (!finite && exponent == top) size = power(1023) * 4;
    return bits >> (exponent_bits + fraction_bits) & 1 ? -size : size;
}

template <int FORMAT>
DG_DEVICE auto number(const void* from, i64 i) {
    if constexpr (FORMAT == F64) return load_global<f64>((const f64*)from + i);
    else if constexpr (FORMAT == F32) return (f64)load_global<f32>((const f32*)from + i);
    else if constexpr (FORMAT == F16) return decoded(load_global<u16>((const u16*)from + i), 5, 10, false);
    else if constexpr (FORMAT == BF16) return decoded(load_global<u16>((const u16*)from + i), 8, 7, false);
    else if constexpr (FORMAT == F8E4M3) return decoded(load_global<u8>((const u8*)from + i), 4, 3, true);
    else if constexpr (FORMAT == F8E5M2) return decoded(load_global<u8>((const u8*)from + i), 5, 2, false);
    else if constexpr (FORMAT == I8) return (i32)(i8)load_global<u8>((const u8*)from + i);
    else if constexpr (FORMAT == U8) return (i32)load_global<u8>((const u8*)from + i);
    else if constexpr (FORMAT == I16) return (i32)(i16)load_global<u16>((const u16*)from + i);
    else if constexpr (FORMAT == I32) return load_global<i32>((const i32*)from + i);
    else return load_global<i64>((const i64*)from + i);
}

DG_DEVICE f64 activated(f64 x) {
#if ACTIVATION == 1
    return x < 0 ? 0 : x;
#elif ACTIVATION == 2
    return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
#elif ACTIVATION == 3
    return x / (1 + exp(-x));
#else
    return x;
#endif
}

const int TILE = 64, DEPTH = 16, EACH = 4, SIDE = 16, THREADS = 256;
const int LINE = TILE + 1;  // one more than needed, so that a column of a tile lies in different banks

// DEPTH x TILE numbers of A or B into shared memory, zeros where there are none. `across` runs along M or N.
// `BLOCK`: so many of them share a factor for each 128 steps of K; 0: they have none.
template <int FORMAT, bool ALONG_K, int BLOCK>
DG_DEVICE void fetch(u32 to, const void* from, i64 start, int first, int count, int k_first, int k, const f32* factor,
                     int matrix) {
    for (int e = thread_id(); e < TILE * DEPTH; e += THREADS) {
        const int across = ALONG_K ? e / DEPTH : e % TILE, deep = ALONG_K ? e % DEPTH : e / TILE;
        const int at = first + across, k_at = k_first + deep;
        Term x = 0;
        if (at < count && k_at < k)
            x = (Term)number<FORMAT>(from, start + (ALONG_K ? (i64)at * k + k_at : (i64)k_at * count + at));
        if constexpr (BLOCK != 0) {
            const int blocks = (k + 127) / 128, lines = (count + BLOCK - 1) / BLOCK;
            if (at < count && k_at < k)
                x *= load_global<f32>(factor + ((i64)matrix * lines + at / BLOCK) * blocks + k_at / 128);
        }
        store_shared<Term>(to + (deep * LINE + across) * sizeof(Term), x);
    }
}

#ifdef EPILOGUE
#include "epilogue_terms.h"  // and MORE, the parameters of its operands
#else
#define MORE
#endif

// A block's tile: which matrices it reads and writes, and where its rows and its sums end.
struct Part {
    int row, column, row_end, k_first, k_end;
    i64 a, b, c;  // matrices
    int factors;  // those that come before this matrix's
};

#ifndef GROUPED  // 1: rows belong to experts, 2: so do the rows that are summed up
#define GROUPED 0
#endif

// Tiles of each expert's rows in turn; none are left for blocks beyond. Offsets are where the rows of experts end.
DG_DEVICE bool find(Part& own, const i32* offsets, int experts, int m, int n, int k) {
    const int tiles_n = (n + TILE - 1) / TILE;
    int at = block_id(), first = 0;
    for (int e = 0; e < experts; ++e) {
        const int end = load_global<i32>(offsets + e);
        const int tiles = ((GROUPED == 2 ? m : end - first) + TILE - 1) / TILE * tiles_n;
        if (at < tiles) {
            const int row = at / tiles_n * TILE, column = at % tiles_n * TILE;
            if (GROUPED == 2) own = {row, column, m, first, end, 0, 0, e, e};
            else own = {first + row, column, end, 0, k, 0, e, 0, e};
            return true;
        }
        at -= tiles;
        first = end;
    }
    return false;
}

DG_KERNEL gemm_reference(const void* a, const void* b, const void* c, const void* bias, const f32* factor, const f32* factor_a,
                         const f32* factor_b, Want* want, Size* size, int m, int n, int k, f64 alpha, f64 beta,
                         const i32* offsets, int experts MORE) {
    const int tiles_m = (m + TILE - 1) / TILE, tiles_n = (n + TILE - 1) / TILE;
    const int batch = block_id() / (tiles_m * tiles_n), tile = block_id() % (tiles_m * tiles_n);
    Part own = {tile / tiles_n * TILE, tile % tiles_n * TILE, m, 0, k, batch, batch, batch, 0};
    if (GROUPED && !find(own, offsets, experts, m, n, k)) return;
    const int row = own.row, column = own.column;
    const int down = thread_id() / SIDE, along = thread_id() % SIDE;
    const u32 tile_a = 0, tile_b = DEPTH * LINE * sizeof(Term);
    Sum sum[EACH][EACH] = {};
    f64 rows[EACH] = {}, columns[EACH] = {};  // sums of squares
    for (int first = own.k_first; first < own.k_end; first += DEPTH) {
        const int end = own.k_end;
        fetch<FORMAT_A, !TRANSPOSED_A, BLOCK_A>(tile_a, a, own.a * m * k, row, own.row_end, first, end, factor_a, batch);
        fetch<FORMAT_B, TRANSPOSED_B, BLOCK_B>(tile_b, b, own.b * k * n, column, n, first, end, factor_b, batch);
        barrier();
        for (int deep = 0; deep < DEPTH; ++deep) {
            Term x[EACH], y[EACH];
            for (int i = 0; i < EACH; ++i) {
                x[i] = load_shared<Term>(tile_a + (deep * LINE + down + i * SIDE) * sizeof(Term));
                y[i] = load_shared<Term>(tile_b + (deep * LINE + along + i * SIDE) * sizeof(Term));
            }
            for (int i = 0; i < EACH; ++i)
                for (int j = 0; j < EACH; ++j) sum[i][j] += (Sum)x[i] * y[j];
            if (WHOLE < 2)
                for (int i = 0; i < EACH; ++i) {
                    rows[i] += (f64)x[i] * x[i];
                    columns[i] += (f64)y[i] * y[i];
                }
        }
        barrier();
    }
    for (int i = 0; i < EACH; ++i)
        for (int j = 0; j < EACH; ++j) {
            const int r = row + down + i * SIDE, s = column + along + j * SIDE;
            if (r >= own.row_end || s >= n) continue;
            const i64 at = (own.c * m + r) * n + s;
#if WHOLE == 2
            store_global<Want>(want + at, sum[i][j]);
#else
            f64 x = alpha * (f64)sum[i][j], scale = (alpha < 0 ? -alpha : alpha) * root(rows[i]) * root(columns[j]) / k;
#if SCALES
            const f64 by =
                load_global<f32>(factor + (SCALES == BY_ROW ? r : SCALES == BY_COLUMN ? own.factors * (i64)n + s : own.factors));
            x *= by;
            scale *= by < 0 ? -by : by;
#endif
#if BETA
            const f64 old = beta * (f64)number<FORMAT_C>(c, at);
            x += old;
            scale += (old < 0 ? -old : old) / k;
#endif
#if BIAS
            const f64 more = (f64)number<FORMAT_C>(bias, s);
            x += more;
            scale += (more < 0 ? -more : more) / k;
#endif
#ifdef EPILOGUE
            epilogue_terms(x, scale, batch, r, s, at);
#endif
            store_global<Want>(want + at, activated(x));
            store_global<Size>(size + at, scale < (sizeof(Size) == 8 ? 1.7e308 : 3e38) ? (Size)scale : 0);  // not a number: no scale
#endif
        }
}
