// c += a b of narrow numbers. Instructions that multiply groups of neighbours along what is summed over, four bytes
// together, are used where the processor has them; elsewhere both tiles are widened first. `room` holds the copies.

// Of f16 and f8, and of shapes that the instructions do not fit. `room` holds both tiles, and once more b.
#define WIDENED_DOT(name, S, wide, T, widen)                                                                           \
    static inline void widened_dot_##name(const S *a, const S *b, T *c, T *room, int64_t m, int64_t n, int64_t k) {    \
        T *wide_b = room + k * n, *wide_a = wide_b + k * n;                                                            \
        for (int64_t i = 0; i < m * k; i++) wide_a[i] = widen(a[i]);                                                   \
        for (int64_t i = 0; i < k * n; i++) wide_b[i] = widen(b[i]);                                                   \
        wide_dot_##wide(wide_a, wide_b, c, room, m, n, k);                                                             \
    }
WIDENED_DOT(f16, f16_t, f32, float, widen_f16)
WIDENED_DOT(bf16, bf16_t, f32, float, widen_bf16)
WIDENED_DOT(e4m3, e4m3_t, f32, float, widen_e4m3)
WIDENED_DOT(e5m2, e5m2_t, f32, float, widen_e5m2)
WIDENED_DOT(i8, int8_t, i32, int32_t, (int32_t))
#define dot_f16 widened_dot_f16
#define dot_e4m3 widened_dot_e4m3
#define dot_e5m2 widened_dot_e5m2

// The columns of b in panels, and in a panel groups of numbers along k: columns of a group lie side by side.
#define GROUPS(name, S, group)                                                                                         \
    static inline void grouped_##name(const S *b, S *to, int64_t n, int64_t k, int64_t columns) {                      \
        for (int64_t j = 0; j < n; j += columns)                                                                       \
            for (int64_t s = 0; s < k; s += group, to += group * columns)                                              \
                for (int64_t i = 0; i < columns; i++)                                                                  \
                    ALL for (int g = 0; g < group; g++) to[i * group + g] = b[(s + g) * n + j + i];                    \
    }
GROUPS(bf16, bf16_t, 2)
GROUPS(i8, int8_t, 4)

// Vectors: sums + the products of a group, which is the same for all lanes, and the groups of a panel.
#if defined(EMULATE_VECTORS)
#define VECTOR_BF16 1
#define VECTOR_I8 1
#define UNSIGNED_LEFT 1
static inline v_f32 add_group_bf16(v_f32 sums, int32_t left, v_i32 right) {
    for (int j = 0; j < (int)(VECTOR_BYTES / 4); j++)
        for (int g = 0; g < 2; g++)
            sums[j] += bits_i32_f32(left >> 16 * g << 16) * bits_i32_f32(right[j] >> 16 * g << 16);
    return sums;
}
static inline v_i32 add_group_i8(v_i32 sums, int32_t left, v_i32 right) {
    for (int j = 0; j < (int)(VECTOR_BYTES / 4); j++)
        for (int g = 0; g < 4; g++) sums[j] += (uint8_t)(left >> 8 * g) * (int8_t)(right[j] >> 8 * g);
    return sums;
}
#else
#if defined(__AVX512BF16__)
#include <immintrin.h>
#define VECTOR_BF16 1
static inline v_f32 add_group_bf16(v_f32 sums, int32_t left, v_i32 right) {
    return (v_f32)_mm512_dpbf16_ps((__m512)sums, (__m512bh)_mm512_set1_epi32(left), (__m512bh)right);
}
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#define VECTOR_BF16 1
static inline v_f32 add_group_bf16(v_f32 sums, int32_t left, v_i32 right) {
    return (v_f32)vbfdotq_f32((float32x4_t)sums, (bfloat16x8_t)right, (bfloat16x8_t)vdupq_n_s32(left));
}
#endif
#if defined(__AVX512VNNI__)
#include <immintrin.h>
#define VECTOR_I8 1
#define UNSIGNED_LEFT 1
static inline v_i32 add_group_i8(v_i32 sums, int32_t left, v_i32 right) {
    return (v_i32)_mm512_dpbusd_epi32((__m512i)sums, _mm512_set1_epi32(left), (__m512i)right);
}
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#define VECTOR_I8 1
#define UNSIGNED_LEFT 0
static inline v_i32 add_group_i8(v_i32 sums, int32_t left, v_i32 right) {
    return (v_i32)vdotq_s32((int32x4_t)sums, (int8x16_t)right, (int8x16_t)vdupq_n_s32(left));
}
#endif
#endif

// `shifted`: the instruction takes the left numbers as unsigned. 128 is added to them, and what that makes of the sums
// is taken off again.
#define GROUPED_DOT(name, S, wide, T, group, shifted)                                                                  \
    static inline void group_tile_##name(const S *a, const S *b, T *c, int64_t n, int64_t k) {                         \
        enum { LANES = VECTOR_BYTES / 4, COLUMNS = DOT_VECTORS * LANES };                                              \
        v_##wide acc[DOT_ROWS][DOT_VECTORS], more[DOT_VECTORS] = {{0}};                                                \
        ALL for (int i = 0; i < DOT_ROWS; i++)                                                                         \
            ALL for (int j = 0; j < DOT_VECTORS; j++) acc[i][j] = *(const v_##wide *)(c + i * n + j * LANES);          \
        for (int64_t s = 0; s < k; s += group) {                                                                       \
            v_i32 y[DOT_VECTORS];                                                                                      \
            ALL for (int j = 0; j < DOT_VECTORS; j++) {                                                                \
                y[j] = *(const v_i32 *)(b + s * COLUMNS + j * LANES * group);                                          \
                if (shifted) more[j] = add_group_##name(more[j], (int32_t)0x80808080, y[j]);                           \
            }                                                                                                          \
            ALL for (int i = 0; i < DOT_ROWS; i++) {                                                                   \
                int32_t x;                                                                                             \
                memcpy(&x, a + i * k + s, 4);                                                                          \
                ALL for (int j = 0; j < DOT_VECTORS; j++) acc[i][j] = add_group_##name(acc[i][j], x, y[j]);            \
            }                                                                                                          \
        }                                                                                                              \
        ALL for (int i = 0; i < DOT_ROWS; i++)                                                                         \
            ALL for (int j = 0; j < DOT_VECTORS; j++) *(v_##wide *)(c + i * n + j * LANES) = acc[i][j] - more[j];      \
    }                                                                                                                  \
    static inline void vector_dot_##name(const S *a, const S *b, T *c, T *room, int64_t m, int64_t n, int64_t k) {     \
        enum { COLUMNS = DOT_VECTORS * (VECTOR_BYTES / 4) };                                                           \
        S *panels = (S *)room, *left = panels + k * n;                                                                 \
        if (m % DOT_ROWS || n % COLUMNS || k % group) {                                                                \
            widened_dot_##name(a, b, c, room, m, n, k);                                                                \
            return;                                                                                                    \
        }                                                                                                              \
        grouped_##name(b, panels, n, k, COLUMNS);                                                                      \
        if (shifted) {                                                                                                 \
            for (int64_t i = 0; i < m * k * (int64_t)sizeof(S); i++) ((uint8_t *)left)[i] = ((uint8_t *)a)[i] ^ 0x80;  \
            a = left;                                                                                                  \
        }                                                                                                              \
        for (int64_t j = 0; j < n; j += COLUMNS)                                                                       \
            for (int64_t i = 0; i < m; i += DOT_ROWS)                                                                  \
                group_tile_##name(a + i * k, panels + j * k, c + i * n + j, n, k);                                     \
    }
#if defined(VECTOR_BF16)
GROUPED_DOT(bf16, bf16_t, f32, float, 2, 0)
#else
#define vector_dot_bf16 widened_dot_bf16
#endif
#if defined(VECTOR_I8)
GROUPED_DOT(i8, int8_t, i32, int32_t, 4, UNSIGNED_LEFT)
#else
#define vector_dot_i8 widened_dot_i8
#endif

// Tiles of AMX, two by two. A kernel says which numbers it multiplies with them: TILES_OF_BF16 or TILES_OF_I8.
#define TILED_DOT(name, S, T, group)                                                                                   \
    static inline void tiled_dot_##name(const S *a, const S *b, T *c, T *room, int64_t m, int64_t n, int64_t k) {      \
        enum { COLUMNS = 32, MOST = 16 };                                                                              \
        if (m % MOST || n % COLUMNS || k % group) {                                                                    \
            vector_dot_##name(a, b, c, room, m, n, k);                                                                 \
            return;                                                                                                    \
        }                                                                                                              \
        const int64_t rows = m > MOST ? MOST : m / 2, step = k > MOST * group ? MOST * group : k;                      \
        const long wide = n * sizeof(T), long_row = k * sizeof(S);                                                     \
        S *panels = (S *)room;                                                                                         \
        grouped_##name(b, panels, n, k, COLUMNS);                                                                      \
        tile_shapes shapes = {.palette = 1};                                                                           \
        for (int t = 0; t < 8; t++) {                                                                                  \
            shapes.rows[t] = (uint8_t)(t < 6 ? rows : step / group);                                                   \
            shapes.row_bytes[t] = (uint16_t)(t == 4 || t == 5 ? step * sizeof(S) : 64);                                \
        }                                                                                                              \
        tile_configure(&shapes);                                                                                       \
        for (int64_t j = 0; j < n; j += COLUMNS)                                                                       \
            for (int64_t i = 0; i < m; i += 2 * rows) {                                                                \
                T *top = c + i * n + j, *below = top + rows * n;                                                       \
                tile_load(0, top, wide), tile_load(1, top + 16, wide);                                                 \
                tile_load(2, below, wide), tile_load(3, below + 16, wide);                                             \
                for (int64_t s = 0; s < k; s += step) {                                                                \
                    const S *left = a + i * k + s, *right = panels + j * k + s * COLUMNS;                              \
                    tile_load(6, right, 4 * COLUMNS), tile_load(4, left, long_row);                                    \
                    tile_dot(0, 4, 6);                                                                                 \
                    tile_load(7, right + 16 * group, 4 * COLUMNS);                                                     \
                    tile_dot(1, 4, 7);                                                                                 \
                    tile_load(5, left + rows * k, long_row);                                                           \
                    tile_dot(2, 5, 6);                                                                                 \
                    tile_dot(3, 5, 7);                                                                                 \
                }                                                                                                      \
                tile_store(0, top, wide), tile_store(1, top + 16, wide);                                               \
                tile_store(2, below, wide), tile_store(3, below + 16, wide);                                           \
            }                                                                                                          \
        tile_release();                                                                                                \
    }
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#if defined(TILES_OF_BF16) && (defined(__AMX_BF16__) || defined(EMULATE))
#define BF16 1
#include "tiles.h"
TILED_DOT(bf16, bf16_t, float, 2)
#define dot_bf16 tiled_dot_bf16
#else
#define dot_bf16 vector_dot_bf16
#endif
#if defined(TILES_OF_I8) && (defined(__AMX_INT8__) || defined(EMULATE))
#define BF16 0
#define LEFT_SIGNED 1
#define RIGHT_SIGNED 1
#include "tiles.h"
TILED_DOT(i8, int8_t, int32_t, 4)
#define dot_i8 tiled_dot_i8
#else
#define dot_i8 vector_dot_i8
#endif
