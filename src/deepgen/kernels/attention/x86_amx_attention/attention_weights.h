// Scores become weights, by vectors: lanes are keys.
#define LN2 0.69314718055994531f
#define LOG2E 1.4426950408889634f
#define SLACK 8  // a maximum is kept until weights exceed 2^8: sums are rarely scaled, and are as exact
#define CHANGED (SOFTCAP || ALIBI || BIAS)  // scores are more than products times a scale

// 2^x for numbers up to about SLACK, -inf and NaN. Both series are exact at 0. The short one has an error of 9e-5, a
// twentieth of what rounding a weight to bf16 may change. Where the log of their sum is a result: the long one, 1e-7.
ALWAYS vec power_of_two(vec x) {
#if defined(__AVX512DQ__)
#if LSE
    static const num series[] = {1, 0.69315131f, 0.24016445f, 0.05579991f, 0.00901703f, 0.00186713f};
    enum { LAST = 5 };
#else
    static const num series[] = {1, 0.69511679f, 0.22764498f, 0.07706706f};
    enum { LAST = 3 };
#endif
    __m512 rest = _mm512_reduce_ps((__m512)x, 9);  // x less the whole number below it
    vec sum = fill(series[LAST]);
    UNROLLED for (int i = LAST - 1; i >= 0; i--) sum = sum * (vec)rest + series[i];
    return (vec)_mm512_scalef_ps((__m512)sum, (__m512)x);
#else
    return exponential(x * LN2);
#endif
}

// A NaN in x is passed over.
ALWAYS vec most_in_each(vec x, vec most) {
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)x, (__m512)most);
#else
    return larger(x, most);
#endif
}

// Lane l is the largest of t[l].
ALWAYS vec tops_of(vec t[LANES]) {
    UNROLLED for (int n = LANES / 2; n > 0; n /= 2)
        UNROLLED EACH(n, i)
            t[i] = most_in_each(SHUFFLED(t[i], t[i + n], LOWER), SHUFFLED(t[i], t[i + n], UPPER));
    return t[0];
}

// Two vectors of weights, side by side.
ALWAYS void put_weights(stored *to, vec low_half, vec high_half) {
#if defined(__AVX512BF16__)
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)high_half, (__m512)low_half));
#else
    store_part(to, low_half, LANES);
    store_part(to + LANES, high_half, LANES);
#endif
}

// A row of scores: where it is, and what changes it.
typedef struct {
    num begin, end, own;  // keys that the query sees, and its own place, both from the block's first key on
    num slope;
    const stored *bias;  // of the block's first key
    long step, count;
} row_of;

ALWAYS vec bias_of(const row_of *row, long i) {
    long left = row->count - i;
    if (left <= 0) return fill(0);
    if (row->step == 1) return get_part(row->bias + i, left);
    vec x = fill(0);
    EACH(LANES, l) x[l] = one(row->bias + least(i + l, row->count - 1) * row->step);
    return x;
}

ALWAYS vec changed(const job *j, const row_of *row, vec x, long i, int whole) {
    vec key = counted() + (num)i;
    if (CHANGED) x *= j->scale;
    if (SOFTCAP) x = capped(x, j->cap);
    if (ALIBI) {
        vec apart = row->own - key;
        x -= row->slope * pick(apart < 0, -apart, apart);
    }
    if (BIAS) x += bias_of(row, i);
    if (CHANGED) x *= LOG2E;
    if (!whole) x = pick(key < row->end, x, fill(-__builtin_inff()));
    if (!whole && WINDOW) x = pick(key >= row->begin, x, fill(-__builtin_inff()));
    return x;
}

static row_of row_at(const job *j, const step *s, long batch, long query) {
    row_of row = {(num)(low(j, query) - s->first), (num)(high(j, query) - s->first),
                  (num)(query + j->keys - j->queries - s->first)};
    if (ALIBI) row.slope = j->slopes[s->own->head];
    if (BIAS) {
        row.bias = j->bias + batch * j->bias_batch + s->own->head * j->bias_head + query * j->bias_row +
                   s->first * j->bias_key;
        row.step = j->bias_key, row.count = least(KEYS, j->keys - s->first);
    }
    return row;
}

// The largest score of each of up to 16 rows, in lanes; scores are changed in place.
ALWAYS vec tops(const job *j, const step *s, long batch, int half, long rows, const int whole) {
    vec t[LANES];
    for (long e = 0; e < 16; e++) {
        t[e] = fill(-__builtin_inff());
        if (e >= rows) continue;
        row_of row = {0};
        if (CHANGED || !whole) row = row_at(j, s, batch, s->own->query + half * 16 + e);
        num *scores = s->to->scores[half][0] + e * 16;
        for (long i = 0; i < 2 * s->pairs; i++) {
            vec x = get(scores + i * SUMS);
            if (CHANGED || !whole) {
                x = changed(j, &row, x, i * 16, whole);
                put(scores + i * SUMS, x);
            }
            t[e] = most_in_each(x, t[e]);
        }
    }
    return tops_of(t);
}

ALONE static vec whole_tops(const job *j, const step *s, long batch, int half, long rows) {
    return tops(j, s, batch, half, rows, 1);
}
ALONE static vec masked_tops(const job *j, const step *s, long batch, int half, long rows) {
    return tops(j, s, batch, half, rows, 0);
}

// Weights of up to 16 rows, and their sums; what was added up so far is to be scaled by `by`.
ALONE static void weigh_rows(const job *j, const step *s, int half, long rows, const num *by, beside *b) {
    num factor = CHANGED ? 1 : j->scale * LOG2E;
    for (long e = 0; e < rows; e++) {
        const num *scores = s->to->scores[half][0] + e * 16;
        stored *weights = s->to->weights[half][0] + e * 32;
        num most = s->own->most[half][e];
        vec even = get(s->own->total[half][e]) * by[e], odd = fill(0);
        for (long i = 0; i < s->pairs; i++) {
            vec x = power_of_two(get(scores + 2 * i * SUMS) * factor - most);
            vec y = power_of_two(get(scores + (2 * i + 1) * SUMS) * factor - most);
            even += x, odd += y;
            put_weights(weights + i * HALVES, x, y);
        }
        put(s->own->total[half][e], even + odd);
        due_products(b);
    }
}

ALONE static void scale_sums(part *own, int half, long rows, const num *by) {
    for (long e = 0; e < rows; e++)
        if (by[e] != 1)
            for (long c = 0; c < COLUMNS; c++) {
                num *sums = own->sums[half][c] + e * 16;
                put(sums, get(sums) * by[e]);
            }
}

// Products in `b` are done when this returns: they may be of the same sums, which are scaled after them.
ALONE static void weigh(const job *j, const step *s, long batch, beside *b) {
    part *own = s->own;
    num by[2][LANES];
    // Whether every query of the part sees all of these keys.
    int whole = high(j, own->query) >= s->first + 32 * s->pairs && low(j, own->query + own->rows - 1) <= s->first;
    spread(b, own->rows);
    for (int half = 0; half <= s->two; half++) {
        long rows = least(16, own->rows - half * 16);
        vec top = (whole ? whole_tops : masked_tops)(j, s, batch, half, rows) * (CHANGED ? 1 : j->scale * LOG2E);
        vec before = get(own->most[half]), most = pick(top > before + SLACK, top, before);
        put(own->most[half], most);
        put(by[half], exponential((before - most) * LN2));
        weigh_rows(j, s, half, rows, by[half], b);
    }
    all_products(b);
    for (int half = 0; half <= s->two; half++) scale_sums(own, half, least(16, own->rows - half * 16), by[half]);
}
