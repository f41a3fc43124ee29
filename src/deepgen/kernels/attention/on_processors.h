// What attention on processors shares: what a call is given, loads and stores anywhere, lanes of several vectors exchanged.
#include <math.h>
#if LENGTHS
#include <stddef.h>
#endif

#include "x86_call.h"
#include "cpu_pool.h"
#include "numbers.h"

#define EACH(n, i) for (int i = 0; i < n; i++)
#define UNROLLED _Pragma("GCC unroll 16")
// A function whose loops have all registers. gcc 12 took one of them for pure, and left out its calls.
#if defined(__clang__)
#define ALONE __attribute__((noinline))
#else
#define ALONE __attribute__((noipa))
#endif
#define ALWAYS static inline __attribute__((always_inline))

// By pointers of their own kind: compilers take copies of 16 bytes apart for their lanes.
typedef num anywhere __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
ALWAYS vec get(const num *from) { return *(const anywhere *)from; }
ALWAYS void put(num *to, vec x) { *(anywhere *)to = x; }
ALWAYS num one(const stored *from) {
    stored_vec x = {*from};
    return widen(x)[0];
}

ALWAYS vec counted(void) {  // 0, 1, ...
    vec x;
    EACH(LANES, l) x[l] = (num)l;
    return x;
}

// The lower and the upper halves of two vectors, their lanes in turn.
#if VECTOR_BYTES == 64
#define LOWER 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define UPPER 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif VECTOR_BYTES == 32
#define LOWER 0, 8, 1, 9, 2, 10, 3, 11
#define UPPER 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOWER 0, 4, 1, 5
#define UPPER 2, 6, 3, 7
#endif
#if defined(__clang__)
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else  // which gcc has from version 12 on only
#define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, (bits){__VA_ARGS__})
#endif

// A square of numbers: rows become columns.
ALWAYS void transpose(vec t[LANES]) {
    UNROLLED for (int round = 1; round < LANES; round *= 2) {
        vec from[LANES];
        UNROLLED EACH(LANES, i) from[i] = t[i];
        UNROLLED EACH(LANES / 2, i) {
            t[2 * i] = SHUFFLED(from[i], from[i + LANES / 2], LOWER);
            t[2 * i + 1] = SHUFFLED(from[i], from[i + LANES / 2], UPPER);
        }
    }
}

// Lane l is the sum of t[l].
ALWAYS vec sums_of(vec t[LANES]) {
    UNROLLED for (int n = LANES / 2; n > 0; n /= 2)
        UNROLLED EACH(n, i) t[i] = SHUFFLED(t[i], t[i + n], LOWER) + SHUFFLED(t[i], t[i + n], UPPER);
    return t[0];
}

// `count` numbers from there on, at most a vector; zeros for others.
ALWAYS vec get_part(const stored *from, long count) {
    if (count >= LANES) return load(from);
    stored_vec x = {0};
    memcpy(&x, from, count * sizeof *from);
    return widen(x);
}

static inline vec capped(vec x, num cap) {
    vec size = pick(x < 0, -x, x), e = exponential(size * (-2 / cap)), y = (1 - e) / (1 + e) * cap;
    return pick(x < 0, -y, y);
}

typedef struct {
    const stored *q, *k, *v;
    stored *o;
    num *memory;
    long q_row, q_head, q_batch, k_row, k_head, k_batch, v_row, v_head, v_batch, o_row, o_head, o_batch;
    long batch, heads, per_group, queries, keys, window;
    num scale, cap;
    const stored *bias;
    long bias_batch, bias_head, bias_row, bias_key;
    const num *slopes, *sinks;
    num *lse;
    int threads;
    _Atomic long next, joined;
#if LENGTHS
    const int32_t *lengths, *pages;
    long pages_row;
#endif
} job;

#define PARAMETERS                                                                                                     \
    const stored *q, const stored *k, const stored *v, stored *o, num *memory, int64_t q_row, int64_t q_head,          \
        int64_t q_batch, int64_t k_row, int64_t k_head, int64_t k_batch, int64_t v_row, int64_t v_head,                \
        int64_t v_batch, int64_t o_row, int64_t o_head, int64_t o_batch, int64_t batch, int64_t heads,                 \
        int64_t per_group, int64_t queries, int64_t keys, int64_t window, float scale, float cap, const stored *bias,  \
        int64_t bias_batch, int64_t bias_head, int64_t bias_row, int64_t bias_key, const num *slopes,                  \
        const num *sinks, num *lse, int32_t threads
#define JOB                                                                                                            \
    {                                                                                                                  \
        q, k, v, o, memory, q_row, q_head, q_batch, k_row, k_head, k_batch, v_row, v_head, v_batch, o_row, o_head,     \
            o_batch, batch, heads, per_group, queries, keys, window, scale, cap, bias, bias_batch, bias_head,          \
            bias_row, bias_key, slopes, sinks, lse, threads, 0, 0                                                      \
    }

static inline long least(long a, long b) { return a < b ? a : b; }
static inline long most_of(long a, long b) { return a > b ? a : b; }
#if LENGTHS

#define MORE_PARAMETERS const int32_t *lengths, const int32_t *pages, int64_t pages_row
// What a batch is computed with: its own number of keys, and its row of the table of pages.
static inline job of_batch(const job *j, long batch) {
    job own;
    memcpy(&own, j, offsetof(job, next));
    own.keys = least(most_of(j->lengths[batch], 0), j->keys);
    own.pages = j->pages + batch * j->pages_row;
    return own;
}
#endif

// The keys that a query sees: from `low` up to `high`.
static inline long low(const job *j, long query) {
    return WINDOW ? most_of(0, query + j->keys - j->queries - j->window + 1) : 0;
}
static inline long high(const job *j, long query) {
    long own = query + j->keys - j->queries;
    return CAUSAL ? least(j->keys, own + 1) : WINDOW ? least(j->keys, own + j->window) : j->keys;
}

// What a query's sums are multiplied by in the end; its log-sum-exp is stored.
static inline num settled(const job *j, num most, num total, long batch, long head, long query) {
    num by = total > 0 ? 1 / total : 0;
    if (SINKS || LSE) {
        double whole = total > 0 ? most + log(total) : -INFINITY;
        if (SINKS) {
            double sink = j->sinks[head], top = whole > sink ? whole : sink;
            if (top > -INFINITY) whole = top + log(exp(whole - top) + exp(sink - top));
            by = total > 0 ? (num)exp(most - whole) : 0;
        }
        if (LSE && query < j->queries) j->lse[(batch * j->heads + head) * j->queries + query] = (num)whole;
    }
    return by;
}
