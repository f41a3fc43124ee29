// O = softmax(scale * Q K^T) V for few queries, on any processor with vectors: all lanes are used by a single one.
//
// Rows are the queries of all heads that share a head of K; a tile has up to ROWS of them, and one of SPLITS parts of the
// keys, KEYS at a time. Lanes are columns: a key is multiplied by a query in vectors, whose lanes are added up for as many
// keys as a vector has lanes at a time. Weights are vectors of keys; a weight multiplies vectors of V.
#include "on_processors.h"

#define VECTORS(n) (((n) + LANES - 1) / LANES)
#define WIDE (VECTORS(D) * LANES)
#define V_WIDE (VECTORS(DV) * LANES)
#define BESIDE 4  // rows, and vectors of columns beside them, whose sums are in registers

#if PAGE
// Keys of a block that lie side by side, and the first row of each such run: of K, of V, and of K in the block after it.
#define RUN (PAGE < KEYS ? PAGE : KEYS)
typedef struct {
    const stored *k[KEYS / RUN], *v[KEYS / RUN], *next[KEYS / RUN];
    long k_row, v_row;
} runs;

#endif
// What rows have of a part of the keys, and what a thread works with.
typedef struct {
    num sums[ROWS][V_WIDE], most[ROWS], total[ROWS];
} __attribute__((aligned(64))) part;
typedef struct {
    part own;
#if PAGE
    runs of;
#endif
    num q[ROWS][WIDE], scores[ROWS][KEYS], by[ROWS];
} __attribute__((aligned(64))) room;

// Where a row of a tile is: queries of a head lie side by side.
typedef struct {
    long batch, group, first, rows, part;
} place;
static inline long head_of(const job *j, const place *at, long row) {
    return at->group * j->per_group + (at->first + row) / j->queries;
}
static inline long query_of(const job *j, const place *at, long row) { return (at->first + row) % j->queries; }

static inline long tiles_of(const job *j) { return (j->per_group * j->queries + ROWS - 1) / ROWS; }
static place place_of(const job *j, long tile) {
    long all = j->per_group * j->queries, tiles = tiles_of(j), groups = j->heads / j->per_group;
    long first = tile % tiles * ROWS, of = tile / tiles;
    return (place){of / groups, of % groups, first, least(ROWS, all - first), 0};
}

// To be added up over lanes.
ALWAYS vec multiplied(const num *q, const stored *k) {
    vec sums = fill(0);
    for (long d = 0; d < D; d += LANES) sums += get(q + d) * get_part(k + d, D - d);
    return sums;
}

// Scores of up to LANES keys for all rows.
ALWAYS void score_some(room *r, long rows, const stored *k, long row, const long count, num *to) {
    for (long i = 0; i < rows; i++) {
        vec t[LANES];
        UNROLLED EACH(LANES, e) {
            t[e] = e < count ? multiplied(r->q[i], k + e * row) : fill(0);
        }
        put(to + i * KEYS, sums_of(t));
    }
}

#if PAGE
// Part of a row that is read later, in lines of the cache: processors do not see where the next page is, and would wait at
// each. Beside a key's score a share of its value is fetched, and beside a value a key of the next block. Few at a time
// leave room for others.
#define LINES(width) (((width) * (long)sizeof(stored) + 63) / 64)
#define SHARE(n, parts) (((n) + (parts) - 1) / (parts))
ALWAYS void fetch(const stored *from, long first, const long count) {
    for (long line = first; line < first + count; line++) __builtin_prefetch((const char *)from + line * 64, 0, 2);
}

ALONE static void score_run(room *r, long rows, const stored *k, const stored *v, long count, num *to) {
    const long row = r->of.k_row, v_row = r->of.v_row;
    long i = 0;
    for (; i + LANES <= count; i += LANES)
        for (long q = 0; q < rows; q++) {
            vec t[LANES];
            UNROLLED EACH(LANES, e) {
                if (q * LINES(DV) % ROWS < LINES(DV))  // with more rows than lines, the first row of each line
                    fetch(v + (i + e) * v_row, q * LINES(DV) / ROWS, SHARE(LINES(DV), ROWS));
                t[e] = multiplied(r->q[q], k + (i + e) * row);
            }
            put(to + q * KEYS + i, sums_of(t));
        }
    if (i < count) score_some(r, rows, k + i * row, row, count - i, to + i);
}

static void score(room *r, long rows, long count) {
    for (long i = 0; i < count; i += RUN)
        score_run(r, rows, r->of.k[i / RUN], r->of.v[i / RUN], least(RUN, count - i), r->scores[0] + i);
}
#else
ALONE static void score(room *r, long rows, const stored *k, long row, long count) {
    long i = 0;
    for (; i + LANES <= count; i += LANES) score_some(r, rows, k + i * row, row, LANES, r->scores[0] + i);
    if (i < count) score_some(r, rows, k + i * row, row, count - i, r->scores[0] + i);
}
#endif

// Scores of keys from `first` on become weights; what has been added up so far is to be scaled by `by`.
ALONE static void weigh(const job *j, room *r, long row, const place *at, long first, long count) {
    long head = head_of(j, at, row), query = query_of(j, at, row);
    num begin = (num)(low(j, query) - first), end = (num)(least(high(j, query), first + count) - first);
    num own = (num)(query + j->keys - j->queries - first), before = r->own.most[row];
    const stored *bias =
        j->bias + at->batch * j->bias_batch + head * j->bias_head + query * j->bias_row + first * j->bias_key;
    vec tops = fill(before), sums = fill(0), lanes = counted();
    for (long i = 0; i < count; i += LANES) {
        vec x = get(r->scores[row] + i), key = lanes + (num)i;
        if (SOFTCAP) x = capped(x, j->cap);
        if (ALIBI) {
            vec apart = own - key;
            x -= j->slopes[head] * pick(apart < 0, -apart, apart);
        }
        if (BIAS) EACH(LANES, l) x[l] += one(bias + least(i + l, count - 1) * j->bias_key);
        x = pick(key < end, x, fill(-__builtin_inff()));
        if (WINDOW) x = pick(key >= begin, x, fill(-__builtin_inff()));
        put(r->scores[row] + i, x);
        tops = larger(x, tops);
    }
    num most = largest_of(tops);
    for (long i = 0; i < count; i += LANES) {
        vec e = exponential(get(r->scores[row] + i) - most);
        put(r->scores[row] + i, e);
        sums += e;
    }
    num by = exponential(fill(before - most))[0];
    r->by[row] = by, r->own.most[row] = most;
    r->own.total[row] = r->own.total[row] * by + sum_of(sums);
}

// Weights of some rows times some vectors of columns of V are added to what there is.
ALWAYS void add_some(room *r, long row, const int rows, const stored *v, long v_row, long count, long c, const int vectors) {
    vec sums[BESIDE][BESIDE];
    UNROLLED EACH(rows, i) UNROLLED EACH(vectors, u)
        sums[i][u] = get(r->own.sums[row + i] + c + u * LANES) * r->by[row + i];
#if PAGE
    for (long run = 0; run < count; run += RUN)
    for (long key = run; key < least(run + RUN, count); key++) {
        v = r->of.v[run / RUN] - run * v_row;
        const long shares = SHARE(DV, BESIDE * LANES), own = c / (BESIDE * LANES);
        const stored *next = r->of.next[run / RUN] + (key - run) * r->of.k_row;
        if (row == 0) fetch(next, own * LINES(D) / shares, SHARE(LINES(D), shares));
#else
    for (long key = 0; key < count; key++) {
#endif
        vec right[BESIDE];
        UNROLLED EACH(vectors, u) right[u] = get_part(v + key * v_row + c + u * LANES, DV - c - u * LANES);
        UNROLLED EACH(rows, i) {
            vec left = fill(r->scores[row + i][key]);
            UNROLLED EACH(vectors, u) sums[i][u] += left * right[u];
        }
    }
    UNROLLED EACH(rows, i) UNROLLED EACH(vectors, u) put(r->own.sums[row + i] + c + u * LANES, sums[i][u]);
}

ALWAYS void add_rows(room *r, long row, const int rows, const stored *v, long v_row, long count) {
    long c = 0;
    for (; c + BESIDE * LANES <= DV; c += BESIDE * LANES) add_some(r, row, rows, v, v_row, count, c, BESIDE);
    if (DV % (BESIDE * LANES))  // a constant, so that its last vector is known to be part of one
        add_some(r, row, rows, v, v_row, count, DV - DV % (BESIDE * LANES), VECTORS(DV % (BESIDE * LANES)));
}

ALONE static void add(room *r, long rows, const stored *v, long v_row, long count) {
    long i = 0;
    for (; i + BESIDE <= rows; i += BESIDE) add_rows(r, i, BESIDE, v, v_row, count);
    for (; i + 2 <= rows; i += 2) add_rows(r, i, 2, v, v_row, count);
    if (i < rows) add_rows(r, i, 1, v, v_row, count);
}

// The result of rows, of all parts of the keys.
ALONE static void finish(const job *j, const part *parts, long count, const place *at) {
    for (long row = 0; row < at->rows; row++) {
        long head = head_of(j, at, row), query = query_of(j, at, row);
        num most = LOWEST, total = 0, by[SPLITS];
        for (long p = 0; p < count; p++) most = parts[p].most[row] > most ? parts[p].most[row] : most;
        for (long p = 0; p < count; p++) {
            by[p] = exponential(fill(parts[p].most[row] - most))[0];
            total += parts[p].total[row] * by[p];
        }
        num last = settled(j, most, total, at->batch, head, query);
        stored *to = j->o + at->batch * j->o_batch + head * j->o_head + query * j->o_row;
        for (long c = 0; c < DV; c += LANES) {
            vec sum = fill(0);
            for (long p = 0; p < count; p++) sum += get(parts[p].sums[row] + c) * by[p];
            store_part(to + c, sum * last, DV - c);
        }
    }
}

#if PAGE
// Where the keys from `first` on are, in a part that ends at `end`; after its last block none is fetched anew.
static void locate(const job *j, room *r, const place *at, long first, long end) {
    for (long i = 0; i < KEYS && first + i < end; i += RUN) {
        long key = first + i, next = key + KEYS < end ? key + KEYS : key;
        const stored *k = j->k + at->group * j->k_head, *v = j->v + at->group * j->v_head;
        r->of.k[i / RUN] = k + j->pages[key / PAGE] * j->k_batch + key % PAGE * j->k_row;
        r->of.v[i / RUN] = v + j->pages[key / PAGE] * j->v_batch + key % PAGE * j->v_row;
        r->of.next[i / RUN] = k + j->pages[next / PAGE] * j->k_batch + next % PAGE * j->k_row;
    }
    r->of.k_row = j->k_row, r->of.v_row = j->v_row;
}

#endif
static void tile(const job *j, room *r, const place *at) {
#if LENGTHS
    const job own = of_batch(j, at->batch);
    j = &own;
#endif
    for (long row = 0; row < at->rows; row++) {
        const stored *q =
            j->q + at->batch * j->q_batch + head_of(j, at, row) * j->q_head + query_of(j, at, row) * j->q_row;
        for (long d = 0; d < D; d += LANES) put(r->q[row] + d, get_part(q + d, D - d) * j->scale);
        r->own.most[row] = LOWEST, r->own.total[row] = 0;
    }
    memset(r->own.sums, 0, sizeof r->own.sums);
#if PAGE  // every part begins with a run
    long begin = low(j, 0) / RUN * RUN, seen = most_of(0, high(j, j->queries - 1) - begin);
    long end = begin + (at->part + 1 < SPLITS ? seen * (at->part + 1) / SPLITS / RUN * RUN : seen);
    for (long first = begin + seen * at->part / SPLITS / RUN * RUN; first < end; first += KEYS) {
        long count = least(KEYS, end - first);
        locate(j, r, at, first, end);
        score(r, at->rows, count);
        for (long row = 0; row < at->rows; row++) weigh(j, r, row, at, first, count);
        add(r, at->rows, 0, j->v_row, count);
    }
#else
    long begin = low(j, 0), seen = most_of(0, high(j, j->queries - 1) - begin);
    long end = begin + seen * (at->part + 1) / SPLITS;
    const stored *k = j->k + at->batch * j->k_batch + at->group * j->k_head;
    const stored *v = j->v + at->batch * j->v_batch + at->group * j->v_head;
    for (long first = begin + seen * at->part / SPLITS; first < end; first += KEYS) {
        long count = least(KEYS, end - first);
        score(r, at->rows, k + first * j->k_row, j->k_row, count);
        for (long row = 0; row < at->rows; row++) weigh(j, r, row, at, first, count);
        add(r, at->rows, v + first * j->v_row, j->v_row, count);
    }
#endif
}

static inline part *parts_of(job *j) { return (part *)((room *)j->memory + j->threads); }

static void draw(void *given, int thread) {
    job *j = given;
    room *r = (room *)j->memory + thread;
    long all = tiles_of(j) * j->batch * (j->heads / j->per_group) * SPLITS;
    for (long n; (n = atomic_fetch_add(&j->next, 1)) < all;) {
        place at = place_of(j, n / SPLITS);
        at.part = n % SPLITS;
        tile(j, r, &at);
        if (SPLITS > 1)
            parts_of(j)[n] = r->own;
        else
            finish(j, &r->own, 1, &at);
    }
}

static void join(void *given, int thread) {
    job *j = given;
    long all = tiles_of(j) * j->batch * (j->heads / j->per_group);
    for (long n; (n = atomic_fetch_add(&j->joined, 1)) < all;) {
        place at = place_of(j, n);
        finish(j, parts_of(j) + n * SPLITS, SPLITS, &at);
    }
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
    if (SPLITS > 1) pool_run(threads, join, &j);
}
