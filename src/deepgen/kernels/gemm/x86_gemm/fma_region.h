// Where parts of A and B lie, in whichever layout.

// A part of a matrix as it lies: rows of so many numbers, `ld` from one to the next.
typedef struct {
    const float *at;
    long ld, rows, width;
} region;

static inline region region_of_a(const float *A, long lda, long i, long p, long rows, long depth) {
    if (A_T) return (region){A + p * lda + i, lda, depth, rows};
    return (region){A + i * lda + p, lda, rows, depth};
}

// Of a B that was packed ahead of time the rows are panels, and ldb is their distance.
static inline region region_of_b(const float *B, long ldb, long p, long j, long depth, long cols) {
    if (PACK_B == 3) return (region){B + j / COLS * ldb + p * COLS, ldb, ceil_div(cols, COLS), depth * COLS};
    if (B_T) return (region){B + j * ldb + p, ldb, cols, depth};
    return (region){B + p * ldb + j, ldb, depth, cols};
}
