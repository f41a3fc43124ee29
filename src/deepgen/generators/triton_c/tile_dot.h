// c += a b for row-major tiles whose sizes are powers of two, in register tiles. The rows of a are packed first, so that
// a step along k reads the numbers of a register tile side by side.
#if defined(__AVX512F__) || defined(__aarch64__) || defined(__riscv)
#define DOT_ROWS 8
#else
#define DOT_ROWS 4
#endif
#define DOT_VECTORS 2
#define ALL _Pragma("GCC unroll 16")

// One register tile of `rows` rows and `vectors` vectors, and all tiles of that size that c has.
#define DOT_TILES(name, T, kind, rows, vectors)                                                                        \
    static inline void tile_##kind##_##name(const T *a, const T *b, int64_t n, T *c, int64_t k) {                      \
        enum { LANES = VECTOR_BYTES / sizeof(T) };                                                                     \
        v_##name acc[rows][vectors];                                                                                   \
        ALL for (int i = 0; i < rows; i++)                                                                             \
            ALL for (int j = 0; j < vectors; j++) acc[i][j] = *(const v_##name *)(c + i * n + j * LANES);              \
        for (int64_t s = 0; s < k; s++, a += rows, b += n) {                                                           \
            v_##name y[vectors];                                                                                       \
            ALL for (int j = 0; j < vectors; j++) y[j] = *(const v_##name *)(b + j * LANES);                           \
            ALL for (int i = 0; i < rows; i++)                                                                         \
                ALL for (int j = 0; j < vectors; j++) acc[i][j] += a[i] * y[j];                                        \
        }                                                                                                              \
        ALL for (int i = 0; i < rows; i++)                                                                             \
            ALL for (int j = 0; j < vectors; j++) *(v_##name *)(c + i * n + j * LANES) = acc[i][j];                    \
    }                                                                                                                  \
    static inline void tiles_##kind##_##name(const T *a, const T *b, T *c, int64_t m, int64_t n, int64_t k) {          \
        for (int64_t j = 0; j < n; j += vectors * (VECTOR_BYTES / (int64_t)sizeof(T)))                                 \
            for (int64_t i = 0; i < m; i += rows) tile_##kind##_##name(a + i * k, b + j, n, c + i * n + j, k);         \
    }

#define DOT(name, T)                                                                                                \
    DOT_TILES(name, T, whole, DOT_ROWS, DOT_VECTORS)                                                                \
    DOT_TILES(name, T, narrow, DOT_ROWS, 1)                                                                         \
    DOT_TILES(name, T, flat, 1, DOT_VECTORS)                                                                        \
    DOT_TILES(name, T, least, 1, 1)                                                                                 \
    static inline void packed_##name(const T *a, const T *b, T *c, int64_t m, int64_t n, int64_t k) {               \
        const int64_t lanes = VECTOR_BYTES / (int64_t)sizeof(T), rows = m % DOT_ROWS ? 1 : DOT_ROWS;                \
        if (n % lanes) { /* fewer columns than a vector has */                                                      \
            for (int64_t i = 0; i < m; i++)                                                                         \
                for (int64_t s = 0; s < k; s++)                                                                     \
                    for (int64_t j = 0; j < n; j++)                                                                 \
                        c[i * n + j] += a[i / rows * rows * k + s * rows + i % rows] * b[s * n + j];                \
        } else if (n % (DOT_VECTORS * lanes)) {                                                                     \
            rows > 1 ? tiles_narrow_##name(a, b, c, m, n, k) : tiles_least_##name(a, b, c, m, n, k);                \
        } else {                                                                                                    \
            rows > 1 ? tiles_whole_##name(a, b, c, m, n, k) : tiles_flat_##name(a, b, c, m, n, k);                  \
        }                                                                                                           \
    }
DOT(f32, float)
DOT(f64, double)
DOT(i32, int32_t)

// The names of what is stored, of what it is computed with as, and how one becomes the other.
#define DOT_OF(name, S, wide, T, widen, copies)                                                                    \
    static inline void dot_##name(const S *a, const S *b, T *c, T *packed, T *widened, int64_t m, int64_t n,       \
                                  int64_t k) {                                                                     \
        const int64_t rows = m % DOT_ROWS ? 1 : DOT_ROWS;                                                          \
        for (int64_t i = 0; i < m; i += rows)                                                                      \
            for (int64_t s = 0; s < k; s++)                                                                        \
                for (int64_t r = 0; r < rows; r++) packed[i * k + s * rows + r] = widen(a[(i + r) * k + s]);       \
        if (copies)                                                                                                \
            for (int64_t j = 0; j < n * k; j++) widened[j] = widen(b[j]);                                          \
        packed_##wide(packed, copies ? widened : (const T *)b, c, m, n, k);                                        \
    }
DOT_OF(f32, float, f32, float, (float), 0)
DOT_OF(f64, double, f64, double, (double), 0)
DOT_OF(f16, f16_t, f32, float, widen_f16, 1)
DOT_OF(bf16, bf16_t, f32, float, widen_bf16, 1)
DOT_OF(e4m3, e4m3_t, f32, float, widen_e4m3, 1)
DOT_OF(e5m2, e5m2_t, f32, float, widen_e5m2, 1)
DOT_OF(i8, int8_t, i32, int32_t, (int32_t), 1)
