// Cache blocks: MC x NC of C over KC of K, the operands of many tiles, packed or as they lie, held in L1 and L2.

// A block at work. With HELP its strips may be computed by any thread.
typedef struct {
    _Alignas(64) operand a;  // threads write their own and would disturb each other in one cache line
    operand b;
    const float *edge;  // the last strip of A, where it is not whole
    long mc, nc, kc;
    result r;
    const float *after;  // the strip of A that is needed when this block is done
    offer strips;        // by their first rows
} work;

// The tile at row i and column j of a block, `cols` columns of it.
typedef struct {
    const float *strip, *panel;
    long lda, ldb, rows, cols, i, j;
    float *copy;
} tile;

static void run(void (*loop)(tile_work *), int unroll, const work *w, const tile *t, lines *later) {
    float sums[MR * COLS] __attribute__((aligned(64)));
    result r = tile_at(w->r, t->i, t->j);
    int left = SWAP || ((BIAS || ACTIVATION) && r.last) || (VL == 8 && t->cols < COLS && r.beta != 0);
    int how = left ? LEFT : r.beta != 0 ? ADDED : STREAM_C && r.stream ? STREAMED : PLAIN;
    long asked = how == STREAMED ? 0 : t->rows;  // lines of C: what goes past the caches had better not be in them
    tile_work job = {.last = first((t->cols - 1) % VL + 1), .a = t->strip, .lda = t->lda * 4, .b = t->panel,
                     .ldb = t->ldb * 4, .copy = t->copy, .turns = unroll == 1 ? w->kc : w->kc / UNROLL,
                     .rest = unroll == 1 ? 0 : w->kc % UNROLL, .rows_left = asked, .rows = t->rows, .c = r.c,
                     .to = r.c, .ldc = r.ldc * 4, .far = ROWS_AHEAD * t->ldb * 4, .sums = sums, .alpha = r.alpha,
                     .beta = r.beta, .how = how};
    if (ASKS) job.at = later->at, job.end = later->end, job.gap = later->gap, job.ld = later->ld;
    if (NEXT_C && !SWAP)
        for (float *c = r.c + (INNER_A ? MR * r.ldc : COLS), *end = c + MR * r.ldc; c < end; c += r.ldc)
            UNROLLED for (int j = 0; j < COLS; j += 16) __builtin_prefetch(c + j, 1);
    loop(&job);
    if (ASKS) later->at = job.at, later->end = job.end;
    if (left) put(sums, COLS, t->rows, t->cols, &r);
}

static void one_tile(const work *w, const float *strip, const float *panel, long ldb, long i, long j, coming *next) {
    lines nothing, *later = to_ask_for(next, panel, &nothing);
    tile t = {strip, panel, w->a.ld, ldb, least(MR, w->mc - i), least(COLS, w->nc - j), i, j, 0};
    if (!PACK_A && t.rows < MR) {
        t.strip = w->edge;
        t.lda = A_T ? MR : A_ROW;
    }
    int whole = t.cols == COLS, tail = !whole && ceil_div(t.cols, VL) == TAIL;
#if PACK_B == 4
    const float *from = i ? 0 : w->b.from;
    if (from && (whole || tail)) {
        t.copy = (float *)panel, t.panel = from + j, t.ldb = w->b.ld_from;
        run(whole ? packing_loop : packing_tail_loop, UNROLL, w, &t, later);
        return;
    }
    if (from) pack_b((float *)panel, B_PANEL, from + j, w->b.ld_from, t.cols, w->kc);
#endif
    if (whole) return run(whole_loop, UNROLL, w, &t, later);
#if TAIL
    if (tail) return run(tail_loop, UNROLL, w, &t, later);
#endif
    // A width that the shape which the kernel was made for does not have: a vector at a time.
    for (long left = t.cols; left > 0; left -= VL, t.panel += VL, t.j += VL) {
        t.cols = least(VL, left);
#if TAIL == 1
        run(tail_loop, UNROLL, w, &t, later);
#else
        run(narrow_loop, 1, w, &t, later);
#endif
    }
}

#if INNER_A
static void panels(const work *w, float *scratch, coming *next) {
    const float *panel = w->b.at;
    for (long j = 0; j < w->nc; j += COLS, panel += w->b.next) {
        const float *strip = w->a.at, *packed = PACK_B == 2 ? scratch : panel;
        if (PACK_B == 2) pack_b(scratch, B_PANEL, panel, w->b.ld, least(COLS, w->nc - j), w->kc);
        for (long i = 0; i < w->mc; i += MR, strip += w->a.next)
            one_tile(w, strip, packed, PACK_B == 2 ? COLS : w->b.ld, i, j, next);
    }
}
#else
static void strip(const work *w, long i, coming *next) {
    const float *a = w->a.at + i / MR * w->a.next, *panel = w->b.at;
    if (NEXT_STRIP) {
        const float *following = i + MR < w->mc ? a + w->a.next : w->after;
        next->of[0] = (lines){0};
        if (following) expect(next, 0, (region){following, w->a.ld, MR, w->kc});
    }
    for (long j = 0; j < w->nc; j += COLS, panel += w->b.next) one_tile(w, a, panel, w->b.ld, i, j, next);
}
#endif

#if HELP
static void draw_strips(work *w, coming *next) {
    for (long i; (i = offer_draw(&w->strips, MR)) < w->mc;) strip(w, i, next);
}

// Some strips of another thread's block, if it has any to offer.
static int help(work *w) {
    if (!offer_join(&w->strips, WORTH_HELP * MR)) return 0;
    coming next = {0};
    draw_strips(w, &next);
    if (STREAM_C) _mm_sfence();
    offer_leave(&w->strips);
    return 1;
}
#endif

static void block(work *w, float *edge, float *panel_of_b, coming *next) {
    (void)panel_of_b;
    long whole = w->mc / MR;
    w->edge = edge;
    if (!PACK_A && w->mc % MR)  // in place the last tiles would read rows that A does not have
        pack_a_strip(edge, w->a.at + whole * w->a.next, w->a.ld, w->mc % MR, w->kc);
#if INNER_A
    panels(w, panel_of_b, next);
#elif HELP
    if (PACK_B == 4) strip(w, 0, next);  // the others read what it packs
    offer_open(&w->strips, PACK_B == 4 ? MR : 0, w->mc);
    draw_strips(w, next);
    offer_close(&w->strips);
#else
    for (long i = 0; i < w->mc; i += MR) strip(w, i, next);
#endif
}

// The next block of a dimension of which `left` is left: nearly as large as those that follow, in whole units.
static inline long block_of(long left, long most, long unit) {
    return least(left, ceil_div(ceil_div(left, ceil_div(left, most)), unit) * unit);
}

static inline long rows_of(long left) { return block_of(left, MC_WHOLE, MR); }
static inline long columns_of(long left) { return block_of(left, NC_WHOLE, COLS); }

// A whole GEMM on one thread. Where B was packed ahead of time, ldb is the distance of its panels. `w` is where others
// see what this thread is at.
static void serial_gemm(work *w, float *scratch, const float *A, long lda, const float *B, long ldb, long m, long n,
                        long k, result r, coming *next) {
    long kc = ceil_div(k, ceil_div(k, KC));
    float *scratch_a = scratch, *scratch_b = scratch + SLOT_FLOATS - B_FLOATS;
    if (STREAM_C)
        r.stream = kc == k && r.beta == 0 && ((uintptr_t)r.c | (uintptr_t)(r.ldc * 4)) % sizeof(vec) == 0;
    long outer = OUTER_A ? m : n, inner = OUTER_A ? n : m;
    int inner_stays = inner <= (OUTER_A ? NC_WHOLE : MC_WHOLE) && kc == k;  // packed once for all
    if (AHEAD && (m + n) * k * 4 <= AHEAD_BYTES) {
        ask_for(region_of_a(A, lda, 0, 0, m, k));
        ask_for(region_of_b(B, ldb, 0, 0, k, n));
    }
    int finishes = r.last;
    operand a = {0}, b = {0};
    for (long o = 0, outer_size; o < outer; o += outer_size) {
        outer_size = OUTER_A ? rows_of(m - o) : columns_of(n - o);
        for (long p = 0; p < k; p += kc) {
            long depth = least(kc, k - p);
            for (long q = 0, inner_size; q < inner; q += inner_size) {
                inner_size = OUTER_A ? columns_of(n - q) : rows_of(m - q);
                long i = OUTER_A ? o : q, j = OUTER_A ? q : o;
                long rows = OUTER_A ? outer_size : inner_size, cols = OUTER_A ? inner_size : outer_size;
                int new_outer = q == 0, new_inner = o == 0 || !inner_stays;
                if (OUTER_A ? new_outer : new_inner)
                    a = operand_a(scratch_a, region_of_a(A, lda, i, p, rows, depth).at, lda, rows, depth);
                const float *from = region_of_b(B, ldb, p, j, depth, cols).at;
                if (PACK_B == 3)
                    b = (operand){from, COLS, ldb, 0, 0};
                else if (OUTER_A ? new_inner : new_outer)
                    b = operand_b(scratch_b, from, ldb, cols, depth);
                int deeper = p + depth < k, wider = !deeper && j + cols < n;
                if (NEXT_BLOCK && new_outer) {  // while this block of B is at work, the next one is asked for
                    next->of[1] = (lines){0};
                    if (deeper)
                        expect(next, 1, region_of_b(B, ldb, p + depth, j, least(kc, k - p - depth), cols));
                    else if (wider)
                        expect(next, 1, region_of_b(B, ldb, 0, j + cols, kc, columns_of(n - j - cols)));
                }
                // While the last strip stays, the first one of the next block is asked for.
                const float *after = i + rows < m ? 0 : deeper ? A + p + depth : wider ? A : 0;
                result part = tile_at(r, i, j);
                if (p) part.beta = 1;
                part.last = finishes && p + depth == k;
                w->a = a, w->b = b, w->mc = rows, w->nc = cols, w->kc = depth, w->r = part, w->after = after;
                block(w, scratch_a, scratch_b, next);
                b.from = 0;
            }
        }
    }
    if (STREAM_C) _mm_sfence();
}
