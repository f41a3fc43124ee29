// c += a b for row-major tiles whose sizes are powers of two, in register tiles.
#if defined(__AVX512F__) || defined(__aarch64__) || defined(__riscv)
#define DOT_ROWS 8
#else
#define DOT_ROWS 4
#endif
#define DOT_VECTORS 2
#if defined(__aarch64__)  // multiplies by one lane of a vector, and so reads several numbers of a row at once
#define DOT_BY_LANES 1
#else
#define DOT_BY_LANES 0
#endif
#define ALL _Pragma("GCC unroll 16")

// One register tile of `rows` rows and `vectors` vectors, and all tiles of that size that c has.
#define DOT_TILES(name, T, kind, rows, vectors)                                                                        \
    static inline void tile_##kind##_##name(const T *a, const T *b, int64_t step, T *c, int64_t n, int64_t k) {        \
        enum { LANES = VECTOR_BYTES / sizeof(T) };                                                                     \
        v_##name acc[rows][vectors];                                                                                   \
        ALL for (int i = 0; i < rows; i++)                                                                             \
            ALL for (int j = 0; j < vectors; j++) acc[i][j] = *(const v_##name *)(c + i * n + j * LANES);              \
        int64_t s = 0;                                                                                                 \
        for (; DOT_BY_LANES && s + LANES <= k; s += LANES) {                                                           \
            v_##name x[rows];                                                                                          \
            ALL for (int i = 0; i < rows; i++) x[i] = *(const v_##name *)(a + i * k + s);                              \
            ALL for (int lane = 0; lane < LANES; lane++) {                                                             \
                v_##name y[vectors];                                                                                   \
                ALL for (int j = 0; j < vectors; j++) y[j] = *(const v_##name *)(b + (s + lane) * step + j * LANES);   \
                ALL for (int i = 0; i < rows; i++)                                                                     \
                    ALL for (int j = 0; j < vectors; j++) acc[i][j] += x[i][lane] * y[j];                              \
                __asm__ volatile("" ::: "memory"); /* what is loaded ahead of its turn would not fit */                \
            }                                                                                                          \
        }                                                                                                              \
        for (; s < k; s++) {                                                                                           \
            v_##name y[vectors];                                                                                       \
            ALL for (int j = 0; j < vectors; j++) y[j] = *(const v_##name *)(b + s * step + j * LANES);                \
            ALL for (int i = 0; i < rows; i++)                                                                         \
                ALL for (int j = 0; j < vectors; j++) acc[i][j] += a[i * k + s] * y[j];                                \
        }                                                                                                              \
        ALL for (int i = 0; i < rows; i++)                                                                             \
            ALL for (int j = 0; j < vectors; j++) *(v_##name *)(c + i * n + j * LANES) = acc[i][j];                    \
    }                                                                                                                  \
    static inline void tiles_##kind##_##name(const T *a, const T *b, int64_t panel, int64_t step, T *c, int64_t m,     \
                                             int64_t n, int64_t k) {                                                   \
        enum { COLUMNS = vectors * (VECTOR_BYTES / sizeof(T)) };                                                       \
        for (int64_t j = 0; j < n; j += COLUMNS) /* the columns stay in the first cache while rows pass by */          \
            for (int64_t i = 0; i < m; i += rows)                                                                      \
                tile_##kind##_##name(a + i * k, b + j / COLUMNS * panel, step, c + i * n + j, n, k);                   \
    }

// With enough rows b is copied first, its columns in panels as wide as a register tile: they are read row after row.
#define DOT(name, T)                                                                                                   \
    DOT_TILES(name, T, whole, DOT_ROWS, DOT_VECTORS)                                                                   \
    DOT_TILES(name, T, narrow, DOT_ROWS, 1)                                                                            \
    DOT_TILES(name, T, flat, 1, DOT_VECTORS)                                                                           \
    DOT_TILES(name, T, least, 1, 1)                                                                                    \
    static inline void wide_dot_##name(const T *a, const T *b, T *c, T *room, int64_t m, int64_t n, int64_t k) {       \
        enum { LANES = VECTOR_BYTES / sizeof(T), COLUMNS = DOT_VECTORS * LANES };                                      \
        if (n % LANES) { /* fewer columns than a vector has */                                                         \
            for (int64_t i = 0; i < m; i++)                                                                            \
                for (int64_t s = 0; s < k; s++)                                                                        \
                    for (int64_t j = 0; j < n; j++) c[i * n + j] += a[i * k + s] * b[s * n + j];                       \
        } else if (n % COLUMNS) {                                                                                      \
            if (m % DOT_ROWS)                                                                                          \
                tiles_least_##name(a, b, LANES, n, c, m, n, k);                                                        \
            else                                                                                                       \
                tiles_narrow_##name(a, b, LANES, n, c, m, n, k);                                                       \
        } else if (m % DOT_ROWS) {                                                                                     \
            tiles_flat_##name(a, b, COLUMNS, n, c, m, n, k);                                                           \
        } else if (m <= 2 * DOT_ROWS) {                                                                                \
            tiles_whole_##name(a, b, COLUMNS, n, c, m, n, k);                                                          \
        } else {                                                                                                       \
            for (int64_t s = 0; s < k; s++)                                                                            \
                for (int64_t j = 0; j < n; j += COLUMNS)                                                               \
                    memcpy(room + j * k + s * COLUMNS, b + s * n + j, COLUMNS * sizeof(T));                            \
            tiles_whole_##name(a, room, COLUMNS * k, COLUMNS, c, m, n, k);                                             \
        }                                                                                                              \
    }
DOT(f32, float)
DOT(f64, double)
DOT(i32, int32_t)
#define dot_f32 wide_dot_f32
#define dot_f64 wide_dot_f64
