// Cache blocks: MC x NC of C over KC of K, the operands of many tiles, packed or as they lie, held in L1 and L2.

// A tile of a block, at row i and column j of it; `from` is where the block of B lies while its panels are not filled.
static inline void one_tile(const float *strip, long lda, const float *panel, long ldb, const float *from, long ld_from,
                            const float *edge, long mc, long nc, long kc, const result *r, long i, long j,
                            coming *next) {
    long rows = least(MR, mc - i), cols = nc - j;
    lines nothing, *later = to_ask_for(next, panel, &nothing);
    if (!PACK_A && rows < MR) {
        strip = edge;
        lda = A_T ? MR : A_ROW;
    }
#if PACK_B == 4
    if (from && cols >= COLS) {
        packing_tile(rows, kc, strip, lda, from + j, ld_from, (float *)panel, later, r, i, j);
        return;
    }
    if (from) pack_b((float *)panel, B_PANEL, from + j, ld_from, cols, kc);
#else
    (void)from, (void)ld_from;
#endif
    if (cols >= COLS)
        whole_tile(first(VL), rows, COLS, kc, strip, lda, panel, ldb, later, r, i, j);
    else
        part_tiles[(cols - 1) / VL](first((cols - 1) % VL + 1), rows, cols, kc, strip, lda, panel, ldb, later, r, i, j);
}

static void block(operand a, operand b, float *edge, float *panel_of_b, long mc, long nc, long kc,
                  const result *r, const float *after, coming *next) {
    (void)panel_of_b, (void)after;
    long whole = mc / MR;
    if (!PACK_A && mc % MR)  // in place the last tiles would read rows that A does not have
        pack_a_strip(edge, a.at + whole * a.next, a.ld, mc % MR, kc);
#if INNER_A
    for (long j = 0; j < nc; j += COLS, b.at += b.next) {
        const float *strip = a.at, *panel = b.at;
        long ldb = b.ld;
        if (PACK_B == 2) {
            pack_b(panel_of_b, B_PANEL, b.at, b.ld, least(COLS, nc - j), kc);
            panel = panel_of_b;
            ldb = COLS;
        }
        for (long i = 0; i < mc; i += MR, strip += a.next)
            one_tile(strip, a.ld, panel, ldb, i ? 0 : b.from, b.ld_from, edge, mc, nc, kc, r, i, j, next);
    }
#else
    for (long i = 0; i < mc; i += MR, a.at += a.next) {
        const float *panel = b.at;
        if (NEXT_STRIP) {
            const float *following = i + MR < mc ? a.at + a.next : after;
            next->of[0] = (lines){0};
            if (following) expect(next, 0, following, a.ld, MR, kc);
        }
        for (long j = 0; j < nc; j += COLS, panel += b.next)
            one_tile(a.at, a.ld, panel, b.ld, i ? 0 : b.from, b.ld_from, edge, mc, nc, kc, r, i, j, next);
    }
#endif
}

// While this block of B is at work, the one at row p and column j of B is asked for, if it has any columns.
static inline void expect_block(coming *next, const float *B, long ldb, long p, long j, long depth, long cols) {
    next->of[1] = (lines){0};
    if (!cols) return;
    if (B_T)
        expect(next, 1, B + j * ldb + p, ldb, cols, depth);
    else
        expect(next, 1, B + p * ldb + j, ldb, depth, cols);
}

// A whole GEMM on one thread. Blocks of a dimension are of nearly equal size, none above the knob. Where B was packed
// ahead of time, ldb is the distance of its panels.
static void serial_gemm(float *scratch, const float *A, long lda, const float *B, long ldb, long m, long n, long k,
                        result r, coming *next) {
    long mc = ceil_div(ceil_div(m, ceil_div(m, MC_WHOLE)), MR) * MR;
    long nc = ceil_div(ceil_div(n, ceil_div(n, NC_WHOLE)), COLS) * COLS;
    long kc = ceil_div(k, ceil_div(k, KC));
    float *scratch_a = scratch, *scratch_b = scratch + SLOT_FLOATS - B_FLOATS;
    if (STREAM_C)
        r.stream = kc == k && r.beta == 0 && ((uintptr_t)r.c | (uintptr_t)(r.ldc * 4)) % sizeof(vec) == 0;
    long outer = OUTER_A ? m : n, outer_step = OUTER_A ? mc : nc;
    long inner = OUTER_A ? n : m, inner_step = OUTER_A ? nc : mc;
    int inner_stays = inner <= inner_step && kc == k;  // packed once for all
    if (AHEAD && PACK_B != 3 && (m + n) * k * 4 <= AHEAD_BYTES) {
        ask_for(A, lda, A_T ? k : m, A_T ? m : k);
        ask_for(B, ldb, B_T ? n : k, B_T ? k : n);
    }
    int finishes = r.last;
    operand a = {0}, b = {0};
    for (long o = 0; o < outer; o += outer_step) {
        for (long p = 0; p < k; p += kc) {
            long depth = least(kc, k - p);
            for (long q = 0; q < inner; q += inner_step) {
                long i = OUTER_A ? o : q, j = OUTER_A ? q : o;
                long rows = least(mc, m - i), cols = least(nc, n - j);
                int new_outer = q == 0, new_inner = o == 0 || !inner_stays;
                if (OUTER_A ? new_outer : new_inner)
                    a = operand_a(scratch_a, A_T ? A + p * lda + i : A + i * lda + p, lda, rows, depth);
                if (PACK_B == 3)
                    b = (operand){B + j / COLS * ldb + p * COLS, COLS, ldb, 0, 0};
                else if (OUTER_A ? new_inner : new_outer)
                    b = operand_b(scratch_b, B_T ? B + j * ldb + p : B + p * ldb + j, ldb, cols, depth);
                int deeper = p + depth < k, wider = !deeper && j + cols < n;
                if (NEXT_BLOCK && new_outer) expect_block(next, B, ldb, deeper ? p + depth : 0, wider ? j + cols : j,
                                                          deeper ? least(kc, k - p - depth) : kc,
                                                          wider ? least(nc, n - j - cols) : deeper ? cols : 0);
                // While the last strip stays, the first one of the next block is asked for.
                const float *after = q + mc < m ? 0 : deeper ? A + p + depth : wider ? A : 0;
                result part = tile_at(r, i, j);
                if (p) part.beta = 1;
                part.last = finishes && p + depth == k;
                block(a, b, scratch_a, scratch_b, rows, cols, depth, &part, after, next);
                b.from = 0;
            }
        }
    }
    if (STREAM_C) _mm_sfence();
}
