// dQ, dK and dV of attention on any processor with vectors. A thread takes a head of K with all heads of Q that share it:
// it alone adds to dK and dV, in the order of heads and queries. Rows are widened once, and filled up with zeros to whole
// vectors; lanes are columns.
#include <math.h>

#include "x86_call.h"
#include "cpu_pool.h"
#include "numbers.h"

#define EACH(n, i) for (int i = 0; i < n; i++)
#define VECTORS ((D + LANES - 1) / LANES)
#define WIDE (VECTORS * LANES)

typedef struct {
    const stored *at;
    long row, head, batch;
} place;

typedef struct {
    place q, k, v, out, dout;
    const num *lse;
    stored *dq, *dk, *dv;
    place of_dq, of_dk, of_dv;  // distances
    num *memory;
    long batches, heads, per_group, queries, keys, window, room;
    num scale, cap;
    _Atomic long next;
} job;

static inline long least(long a, long b) { return a < b ? a : b; }
static inline long most(long a, long b) { return a > b ? a : b; }
static inline vec get(const num *from) {
    vec x;
    memcpy(&x, from, sizeof x);
    return x;
}
static inline void put(num *to, vec x) { memcpy(to, &x, sizeof x); }

static void widen_row(num *to, const stored *from) {
    EACH(VECTORS, c) {
        stored_vec x = {0};
        memcpy(&x, from + c * LANES, sizeof *from * least(LANES, D - c * LANES));
        put(to + c * LANES, widen(x));
    }
}
static void store_row(stored *to, const num *from, num by) {
    EACH(VECTORS, c) store_part(to + c * LANES, get(from + c * LANES) * by, D - c * LANES);
}
static const stored *rows(const place *p, long batch, long head) { return p->at + batch * p->batch + head * p->head; }

// The keys that a query sees: from `low` up to `high`.
static inline long low(const job *j, long query) {
    return WINDOW ? most(0, query + j->keys - j->queries - j->window + 1) : 0;
}
static inline long high(const job *j, long query) {
    long own = query + j->keys - j->queries;
    return CAUSAL ? least(j->keys, own + 1) : WINDOW ? least(j->keys, own + j->window) : j->keys;
}

static void group_of(job *j, num *memory, long number) {
    long groups = j->heads / j->per_group, batch = number / groups, group = number % groups, shift = j->keys - j->queries;
    num *k = memory, *v = k + j->keys * WIDE, *dk = v + j->keys * WIDE, *dv = dk + j->keys * WIDE;
    long room = j->keys + LANES;
    num *weights = dv + j->keys * WIDE, *gradients = weights + QUERIES * room;
    for (long i = 0; i < j->keys; i++) {
        widen_row(k + i * WIDE, rows(&j->k, batch, group) + i * j->k.row);
        widen_row(v + i * WIDE, rows(&j->v, batch, group) + i * j->v.row);
    }
    memset(dk, 0, 2 * j->keys * WIDE * sizeof(num));
    for (long head = group * j->per_group; head < (group + 1) * j->per_group; head++)
        for (long query = 0; query < j->queries; query += QUERIES) {
            num q[QUERIES][WIDE], dout[QUERIES][WIDE], out[WIDE], dq[QUERIES][WIDE], delta[QUERIES], lse[QUERIES];
            long last = least(query + QUERIES, j->queries) - 1;
            EACH(QUERIES, u) {
                long own = least(query + u, last);  // the last one again, whose second result is dropped
                widen_row(q[u], rows(&j->q, batch, head) + own * j->q.row);
                widen_row(dout[u], rows(&j->dout, batch, head) + own * j->dout.row);
                widen_row(out, rows(&j->out, batch, head) + own * j->out.row);
                delta[u] = 0;
                EACH(WIDE, c) delta[u] += dout[u][c] * out[c], dq[u][c] = 0;
                lse[u] = j->lse[(batch * j->heads + head) * j->queries + own];
            }
            long first = low(j, query), count = most(0, high(j, last) - first);
            for (long i = 0; i < count; i++)
                EACH(QUERIES, u) {
                    long key = first + i;
                    vec score = {0}, gradient = {0};
                    EACH(VECTORS, c) {
                        score += get(q[u] + c * LANES) * get(k + key * WIDE + c * LANES);
                        gradient += get(dout[u] + c * LANES) * get(v + key * WIDE + c * LANES);
                    }
                    num x = sum_of(score) * j->scale, slope = 1;
                    if (SOFTCAP) {
                        num share = (num)tanh(x / j->cap);
                        x = share * j->cap, slope = 1 - share * share;
                    }
                    int sees = query + u <= last && key >= low(j, query + u) && key < high(j, query + u);
                    weights[u * room + i] = sees ? x - lse[u] : -INFINITY;
                    gradients[u * room + i] = (sum_of(gradient) - delta[u]) * slope;
                }
            EACH(QUERIES, u)
                for (long i = u * room; i < u * room + count; i += LANES) put(weights + i, exponential(get(weights + i)));
            for (long i = 0; i < count; i++)
                EACH(QUERIES, u) {
                    num p = weights[u * room + i], ds = p * gradients[u * room + i];
                    EACH(VECTORS, c) {
                        long at = (first + i) * WIDE + c * LANES;
                        put(dq[u] + c * LANES, get(dq[u] + c * LANES) + ds * get(k + at));
                        put(dk + at, get(dk + at) + ds * get(q[u] + c * LANES));
                        put(dv + at, get(dv + at) + p * get(dout[u] + c * LANES));
                    }
                }
            stored *to = j->dq + batch * j->of_dq.batch + head * j->of_dq.head;
            for (long own = query; own <= last; own++) store_row(to + own * j->of_dq.row, dq[own - query], j->scale);
        }
    for (long i = 0; i < j->keys; i++) {
        store_row(j->dk + batch * j->of_dk.batch + group * j->of_dk.head + i * j->of_dk.row, dk + i * WIDE, j->scale);
        store_row(j->dv + batch * j->of_dv.batch + group * j->of_dv.head + i * j->of_dv.row, dv + i * WIDE, 1);
    }
}

static void draw(void *given, int thread) {
    job *j = given;
    long all = j->batches * (j->heads / j->per_group);
    for (long at; (at = atomic_fetch_add(&j->next, 1)) < all;) group_of(j, j->memory + thread * j->room, at);
}

#define TENSOR(kind, name) kind name, int64_t name##_row, int64_t name##_head, int64_t name##_batch
#define PLACE(name) {name, name##_row, name##_head, name##_batch}

void deepgen_attention_backward(
    TENSOR(const stored *, q), TENSOR(const stored *, k), TENSOR(const stored *, v), TENSOR(const stored *, out),
    TENSOR(const stored *, dout), const num *lse, TENSOR(stored *, dq), TENSOR(stored *, dk), TENSOR(stored *, dv),
    num *memory, int64_t batches, int64_t heads, int64_t per_group, int64_t queries, int64_t keys, int64_t window,
    float scale, float cap, int32_t threads
) {
    job j = {PLACE(q), PLACE(k), PLACE(v), PLACE(out), PLACE(dout), lse, dq, dk, dv, PLACE(dq), PLACE(dk), PLACE(dv),
             memory, batches, heads, per_group, queries, keys, window, keys * (4 * WIDE + 2 * QUERIES) + 2 * QUERIES * LANES, scale, cap, 0};
    pool_run(threads, draw, &j);
}
