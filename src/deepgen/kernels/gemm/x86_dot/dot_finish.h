// A GEMM in progress, and how its sums get from the scratch into C.

typedef struct {
    char *left, *sums, *turned, *right, *partial;  // a thread's scratch
    int32_t *starts;                               // a number a row of the left operand's block
} scratch;

// A GEMM on one thread, in progress: P rows of the left operand, Q columns of the right one.
typedef struct {
    matrix left, right;
    long P, Q, K;
    const result *r;
    scratch *s;
} course;

#if F16_RESULT
// finish.h works on f32: rows of C and of the bias are widened for it, and what it gives is rounded.
static void finish_part(const char *from, long step, long rows, long columns, long row, long column, const result *r) {
#if VL == 16
    if (is_plain(r)) {
        for (long i = 0; i < rows; i++)
            for (long j = 0; j < columns; j += 16)
                _mm256_mask_storeu_epi16((uint16_t *)r->c + (row + i) * r->ldc + column + j, first(columns - j),
                                         _mm512_cvtps_ph(load((const float *)(from + i * step) + j), 0));
        return;
    }
#endif
    float bias[COLS > MR ? COLS : MR], c[COLS > MR ? COLS : MR];
    result part = *r;
    part.ldc = 0, part.c = c - column, part.bias = bias - column;
    for (long i = 0; i < rows; i++) {
        uint16_t *to = (uint16_t *)r->c + (row + i) * r->ldc + column;
        for (long j = 0; j < columns; j++) {
            c[j] = r->beta != 0 ? _cvtsh_ss(to[j]) : 0;
            bias[j] = BIAS ? _cvtsh_ss(((const uint16_t *)r->bias)[column + j]) : 0;
        }
        finish_row((const sum *)(from + i * step), columns, row + i, column, &part);
        for (long j = 0; j < columns; j++) to[j] = _cvtss_sh(c[j], _MM_FROUND_TO_NEAREST_INT);
    }
}
#else
#define finish_part finish_rows
#endif

// Sums of rows x columns at (row, column) of the product into C.
static void finish(scratch *s, long rows, long columns, long row, long column, const result *r) {
    if (!SWAP) {
        finish_part(s->sums, COLS * 4, rows, columns, row, column, r);
        return;
    }
    for (long i = 0; i < rows; i += 16)
        for (long j = 0; j < columns; j += 16) {
            line t[16];
            UNROLLED for (int x = 0; x < 16; x++) memcpy(&t[x], s->sums + (i + x) * COLS * 4 + j * 4, 64);
            turn(t);
            UNROLLED for (int x = 0; x < 16; x++) line_put(s->turned + (j + x) * TURNED_ROW + i * 4, t[x]);
        }
    finish_part(s->turned, TURNED_ROW, columns, rows, column, row, r);
}
