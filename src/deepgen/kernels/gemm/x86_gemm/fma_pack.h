// Operands brought into the order in which tiles read them.

static void pack_a_strip(float *to, const float *a, long lda, long rows, long kc) {
    if (A_T) {  // K x M: numbers of one k lie side by side
        for (long k = 0; k < kc; k++)
            for (long i = 0; i < MR; i += VL) store(to + k * MR + i, load_part(a + k * lda + i, first(rows - i)));
    } else if (PACK_A == 2) {
        pack_transposed(to, MR, a, lda, rows, kc, 0);
    } else {
        for (long i = 0; i < rows; i++) memcpy(to + i * A_ROW, a + i * lda, kc * sizeof(float));
        for (long i = rows; i < MR; i++) memset(to + i * A_ROW, 0, kc * sizeof(float));
    }
}

// Panels of B, `panel` floats from one to the next.
static void pack_b(float *to, long panel, const float *b, long ldb, long nc, long kc) {
    if (B_T) {
        for (long j = 0; j < nc; j += VL)
            pack_transposed(to + j / COLS * panel + j % COLS, COLS, b + j * ldb, ldb, nc - j, kc, PACK_FETCH);
        return;
    }
    // Whole rows: memory is read in order, and the panels are written a few lines at a time. The hardware starts anew
    // with each row.
    const long ahead = 4;
    for (long k = 0; k < kc; k++) {
        const float *row = b + k * ldb;
        float *at = to + k * COLS;
        if (PACK_FETCH)
            for (long j = 0; j < nc; j += 16) __builtin_prefetch(row + ahead * ldb + j, 0, 2);
        for (long j = 0; j < nc; j += COLS, at += panel) {
            if (nc - j >= COLS) {
                UNROLLED for (int v = 0; v < NR; v++) store(at + v * VL, load(row + j + v * VL));
            } else {
                for (long v = 0; v < nc - j; v += VL) store(at + v, load_part(row + j + v, first(nc - j - v)));
            }
        }
    }
}

// One operand of a block: where it is, the distance of its rows, and from which strip or panel to the next.
typedef struct {
    const float *at;
    long ld, next;
    const float *from;  // of B, where its panels are yet to be filled by the first strip of A: where it lies
    long ld_from;
} operand;

static operand operand_a(float *scratch, const float *a, long lda, long mc, long kc) {
    if (!PACK_A) return (operand){a, lda, A_T ? MR : MR * lda, 0, 0};
    for (long i = 0; i < mc; i += MR)
        pack_a_strip(scratch + i / MR * A_STRIP, A_T ? a + i : a + i * lda, lda, least(MR, mc - i), kc);
    return (operand){scratch, 0, A_STRIP, 0, 0};
}

static operand operand_b(float *scratch, const float *b, long ldb, long nc, long kc) {
    if (!PACK_B) return (operand){b, ldb, COLS, 0, 0};
    if (PACK_B == 2) return (operand){b, ldb, B_T ? COLS * ldb : COLS, 0, 0};  // each panel when its turn comes
    if (PACK_B == 4) return (operand){scratch, COLS, B_PANEL, b, ldb};
    pack_b(scratch, B_PANEL, b, ldb, nc, kc);
    return (operand){scratch, COLS, B_PANEL, 0, 0};
}
