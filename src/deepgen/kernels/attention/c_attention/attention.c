// O = softmax(scale * Q K^T) V for each head of each batch, on any processor with vectors. Threads draw tiles of queries.
//
// Lanes of a vector are queries: scores of a key are whole vectors, and maxima and sums of queries need nothing from other
// lanes. Q is transposed once for a tile, K and V are read as they lie, a number for all lanes at a time, and the result
// is transposed when it is stored. A tile has PARTS parts of QUERIES vectors, and goes over keys KEYS at a time; maxima
// and sums run along (online softmax).
//
// QUERIES  vectors of queries of a part;  TALL  keys, or columns of V, whose sums are in registers beside them
#include "on_processors.h"

#define PART (QUERIES * LANES)
#define TILE (PARTS * PART)

// sums[t][u] += a[t * row + i * step] * b[i * PART + u * LANES], for i from `begin`: `tall` numbers of `a` beside QUERIES
// vectors of `b`.
#define MULTIPLY(sums, tall, a, row, step, b, begin, steps)                                   \
    for (long i = (begin); i < (steps); i++) {                                                \
        vec right[QUERIES];                                                                   \
        UNROLLED EACH(QUERIES, u) right[u] = get((b) + i * PART + u * LANES);                 \
        UNROLLED EACH(tall, t) {                                                              \
            vec left = fill((a)[t * (row) + i * (step)]);                                     \
            UNROLLED EACH(QUERIES, u) sums[t][u] += left * right[u];                          \
        }                                                                                     \
    }
#if BY_LANES  // products take a lane of a vector for all others, and loads that fill vectors cost more
#define MULTIPLY_ROWS(sums, a, row, b, steps)                                                           \
    for (long i = 0; i + LANES <= (steps); i += LANES) {                                                \
        vec left[TALL];                                                                                 \
        UNROLLED EACH(TALL, t) left[t] = get((a) + t * (row) + i);                                      \
        UNROLLED EACH(LANES, e) {                                                                       \
            vec right[QUERIES];                                                                         \
            UNROLLED EACH(QUERIES, u) right[u] = get((b) + (i + e) * PART + u * LANES);                 \
            UNROLLED EACH(TALL, t) UNROLLED EACH(QUERIES, u) sums[t][u] += left[t][e] * right[u];       \
        }                                                                                               \
    }                                                                                                   \
    MULTIPLY(sums, TALL, a, row, 1, b, (steps) / LANES * LANES, steps)
#define MULTIPLY_COLUMNS(sums, tall, a, step, b, steps)                                                 \
    for (long i = 0; i < (steps); i++) {                                                                \
        vec left[TALL / LANES + 1], right[QUERIES];                                                     \
        UNROLLED EACH((tall) / LANES, w) left[w] = get((a) + i * (step) + w * LANES);                   \
        UNROLLED EACH(QUERIES, u) right[u] = get((b) + i * PART + u * LANES);                           \
        UNROLLED EACH(tall, t) {                                                                        \
            num x = t < (tall) / LANES * LANES ? left[t / LANES][t % LANES] : (a)[i * (step) + t];      \
            UNROLLED EACH(QUERIES, u) sums[t][u] += x * right[u];                                       \
        }                                                                                               \
    }
#else
#define MULTIPLY_ROWS(sums, a, row, b, steps) MULTIPLY(sums, TALL, a, row, 1, b, 0, steps)
#define MULTIPLY_COLUMNS(sums, tall, a, step, b, steps) MULTIPLY(sums, tall, a, 1, step, b, 0, steps)
#endif

// Memory of a thread: rows of K and V as f32 where they are not, a part's scores, and what a tile keeps.
typedef struct {
    num k[FORMAT == 32 ? 0 : KEYS * D], v[FORMAT == 32 ? 0 : KEYS * DV];
    num scores[(KEYS + TALL) * PART];
    num q[PARTS][D * PART], sums[PARTS][DV * PART], most[PARTS][PART], total[PARTS][PART];
} room;

// Scores of keys from `first` on for a part's queries: transposed, a row for each key.
ALONE static void score(const job *j, room *r, int part, const num *k, long row, long count) {
    long i0 = 0;
    for (; i0 < count; i0 += TALL) {
        // The last ones again, where fewer are left.
        const num *from = k + (count >= TALL ? least(i0, count - TALL) : 0) * row;
        num *to = r->scores + (count >= TALL ? least(i0, count - TALL) : 0) * PART;
        vec sums[TALL][QUERIES];
        EACH(TALL, t) EACH(QUERIES, u) sums[t][u] = fill(0);
        if (count >= TALL) {
            MULTIPLY_ROWS(sums, from, row, r->q[part], D)
            EACH(TALL, t) EACH(QUERIES, u) put(to + t * PART + u * LANES, sums[t][u]);
        } else {
            for (long t = 0; t < count; t++) {
                vec one_row[QUERIES];
                EACH(QUERIES, u) one_row[u] = fill(0);
                for (long d = 0; d < D; d++)
                    EACH(QUERIES, u) one_row[u] += from[t * row + d] * get(r->q[part] + d * PART + u * LANES);
                EACH(QUERIES, u) put(to + t * PART + u * LANES, one_row[u]);
            }
        }
    }
}

// Scores become weights; what has been added up so far is to be scaled by `by`.
ALONE static void weigh(const job *j, room *r, int part, long query, long head, const stored *bias, long first, long count,
                  int whole, vec (*by)[QUERIES]) {
    EACH(QUERIES, u) {
        vec before = get(r->most[part] + u * LANES), most = before, sum = fill(0);
        // A query's place among keys, of which it sees those from `lows` up to `highs`.
        vec own = counted() + (num)(query + u * LANES + j->keys - j->queries - first);
        vec highs = own + (num)(CAUSAL ? 1 : j->window), lows = own - (num)(j->window - 1);
        for (long i = 0; i < count; i++) {
            num *at = r->scores + i * PART + u * LANES;
            vec x = get(at);
            if (SOFTCAP) x = capped(x, j->cap);
            if (ALIBI) {
                vec apart = own - (num)i;
                x -= j->slopes[head] * pick(apart < 0, -apart, apart);
            }
            if (BIAS)
                EACH(LANES, l) x[l] += one(bias + least(query + u * LANES + l, j->queries - 1) * j->bias_row +
                                           (first + i) * j->bias_key);
            if (!whole && (CAUSAL || WINDOW)) x = pick(highs > (num)i, x, fill(-__builtin_inff()));
            if (!whole && WINDOW) x = pick(lows <= (num)i, x, fill(-__builtin_inff()));
            put(at, x);
            most = larger(x, most);
        }
        for (long i = 0; i < count; i++) {
            num *at = r->scores + i * PART + u * LANES;
            vec e = exponential(get(at) - most);
            put(at, e);
            sum += e;
        }
        vec scale = exponential(before - most);
        (*by)[u] = scale;
        put(r->most[part] + u * LANES, most);
        put(r->total[part] + u * LANES, get(r->total[part] + u * LANES) * scale + sum);
    }
}

// Weights times so many columns of V are added to what there is.
ALWAYS void add_columns(room *r, const int columns, const num *v, long row, long count, num *to, vec (*by)[QUERIES]) {
    vec sums[TALL][QUERIES];
    UNROLLED EACH(columns, t) UNROLLED EACH(QUERIES, u) sums[t][u] = get(to + t * PART + u * LANES) * (*by)[u];
    MULTIPLY_COLUMNS(sums, columns, v, row, r->scores, count)
    UNROLLED EACH(columns, t) UNROLLED EACH(QUERIES, u) put(to + t * PART + u * LANES, sums[t][u]);
}

ALONE static void add(room *r, int part, const num *v, long row, long count, vec (*by)[QUERIES]) {
    long c = 0;
    for (; c + TALL <= DV; c += TALL) add_columns(r, TALL, v + c, row, count, r->sums[part] + c * PART, by);
    if (DV % TALL) add_columns(r, DV % TALL, v + c, row, count, r->sums[part] + c * PART, by);
}

static void widen_rows(num *to, const stored *from, long row, long count, long width) {
    for (long i = 0; i < count; i++)
        for (long c = 0; c < width; c += LANES) {
            vec x = load_part(from + i * row + c, width - c);
            if (width - c >= LANES)
                put(to + i * width + c, x);
            else
                memcpy(to + i * width + c, &x, (width - c) * sizeof(num));
        }
}

// Scaled queries become columns; those past the last one are like it.
ALONE static void take(const job *j, room *r, int part, const stored *q, long query) {
    for (long l = 0; l < PART; l += LANES)
        for (long d = 0; d < D; d += LANES) {
            vec t[LANES];
            UNROLLED EACH(LANES, e)
                t[e] = get_part(q + least(query + l + e, j->queries - 1) * j->q_row + d, D - d) * j->scale;
            transpose(t);
            UNROLLED EACH(LANES, e) if (d + e < D) put(r->q[part] + (d + e) * PART + l, t[e]);
        }
    for (long l = 0; l < PART; l++) r->most[part][l] = LOWEST, r->total[part][l] = 0;
    memset(r->sums[part], 0, sizeof r->sums[part]);
}

ALONE static void finish(const job *j, room *r, int part, long query, long batch, long head) {
    num by[PART];
    EACH(PART, l) by[l] = settled(j, r->most[part][l], r->total[part][l], batch, head, query + l);
    stored *to = j->o + batch * j->o_batch + head * j->o_head + query * j->o_row;
    for (long l = 0; l < PART; l += LANES)
        for (long c = 0; c < DV; c += LANES) {
            vec t[LANES];
            UNROLLED EACH(LANES, e) t[e] = c + e < DV ? get(r->sums[part] + (c + e) * PART + l) * get(by + l) : fill(0);
            transpose(t);
            UNROLLED EACH(LANES, e)
                if (query + l + e < j->queries) store_part(to + (l + e) * j->o_row + c, t[e], DV - c);
        }
}

static void tile(const job *j, room *r, long number) {
    long tiles = (j->queries + TILE - 1) / TILE, of = number / tiles, batch = of / j->heads, head = of % j->heads;
#if LENGTHS
    const job own = of_batch(j, batch);
    j = &own;
#endif
    long at = number % tiles, query = (CAUSAL ? tiles - 1 - at : at) * TILE;  // the longest come first
    long end = least(query + TILE, j->queries), group = head / j->per_group;
    const stored *q = j->q + batch * j->q_batch + head * j->q_head, *k = j->k + batch * j->k_batch + group * j->k_head;
    const stored *v = j->v + batch * j->v_batch + group * j->v_head;
    const stored *bias = j->bias + batch * j->bias_batch + head * j->bias_head;
    int parts = (int)((end - query + PART - 1) / PART);
    for (int p = 0; p < parts; p++) {
        take(j, r, p, q, query + p * PART);
    }
    for (long first = low(j, query) / KEYS * KEYS; first < high(j, end - 1); first += KEYS) {
        long count = least(KEYS, j->keys - first), k_row = j->k_row, v_row = j->v_row;
#if FORMAT == 32
        const num *keys = k + first * k_row, *values = v + first * v_row;
#else
        widen_rows(r->k, k + first * k_row, k_row, count, D);
        widen_rows(r->v, v + first * v_row, v_row, count, DV);
        const num *keys = r->k, *values = r->v;
        k_row = D, v_row = DV;
#endif
        for (int p = 0; p < parts; p++) {
            long top = query + p * PART, last = least(top + PART, end) - 1;
            if (high(j, last) <= first || low(j, top) >= first + count) continue;  // it sees none of these
            vec by[QUERIES];
            score(j, r, p, keys, k_row, count);
            weigh(j, r, p, top, head, bias, first, count, high(j, top) >= first + count && low(j, last) <= first, &by);
            add(r, p, values, v_row, count, &by);
        }
    }
    for (int p = 0; p < parts; p++) finish(j, r, p, query + p * PART, batch, head);
}

static void draw(void *given, int thread) {
    job *j = given;
    room *r = (room *)j->memory + thread;
    long all = (j->queries + TILE - 1) / TILE * j->batch * j->heads;
    for (long at; (at = atomic_fetch_add(&j->next, 1)) < all;) tile(j, r, at);
}

#if LENGTHS
void deepgen_attention(PARAMETERS, MORE_PARAMETERS) {
    job j = JOB;
    j.lengths = lengths, j.pages = pages, j.pages_row = pages_row;
#else
void deepgen_attention(PARAMETERS) {
    job j = JOB;
#endif
    pool_run(threads, draw, &j);
}
