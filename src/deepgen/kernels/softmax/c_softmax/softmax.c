// Softmax of each row: y[r, c] = exp(x[r, c] - max_r) / sum_r. Any rows and columns, on any processor. Threads draw rows.
//     cc -O3 -std=gnu11 -DFORMAT=32 -DVECTOR_BYTES=16 -DMETHOD=0 -DUNROLL=2 -shared -fPIC -pthread -I.. softmax.c
//
// METHOD  0, reread: the maximum, the sum, the result: x is read three times, and exponentials are computed twice
//         1, kept: the sum's exponentials are kept for the result: computed once
//         2, online: maximum and sum at once, by lane: x is read twice
// UNROLL  vectors at a time
#include "x86_call.h"
#include "cpu_pool.h"
#include "numbers.h"

#define REREAD 0
#define KEPT 1
#define ONLINE 2
#define STEP (UNROLL * LANES)
#define EACH(u) for (int u = 0; u < UNROLL; u++)

static inline num row_largest(const stored *x, long cols) {
    vec most[UNROLL];
    EACH(u) most[u] = fill(LOWEST);
    long c = 0;
    for (; c + STEP <= cols; c += STEP) EACH(u) most[u] = larger(load(x + c + u * LANES), most[u]);
    for (; c < cols; c += LANES) most[0] = larger(load_part(x + c, cols - c), most[0]);
    EACH(u) most[0] = larger(most[u], most[0]);
    return largest_of(most[0]);
}

// Adds up the exponentials, which go to `kept` where that is wanted.
static inline num row_sum(const stored *x, long cols, num most, num *kept) {
    vec sum[UNROLL], below = fill(most);
    EACH(u) sum[u] = fill(0);
    long c = 0;
    for (; c + STEP <= cols; c += STEP) EACH(u) {
            vec e = exponential(load(x + c + u * LANES) - below);
            if (METHOD == KEPT) memcpy(kept + c + u * LANES, &e, sizeof e);
            sum[u] += e;
        }
    for (; c < cols; c += LANES) {
        vec e = exponential(load_part(x + c, cols - c) - below);
        if (METHOD == KEPT) memcpy(kept + c, &e, sizeof e);
        sum[0] += e;
    }
    for (int u = 1; u < UNROLL; u++) sum[0] += sum[u];
    return sum_of(sum[0]);
}

// Maximum and sum at once: where a lane's maximum grows, what it has added up so far shrinks.
static inline num row_online(const stored *x, long cols, num *largest) {
    vec most = fill(LOWEST), sum = fill(0);
    long c = 0;
    for (; c + STEP <= cols; c += STEP) {
        vec part[UNROLL], next = most;
        EACH(u) next = larger(part[u] = load(x + c + u * LANES), next);
        sum *= exponential(most - next);
        EACH(u) sum += exponential(part[u] - next);
        most = next;
    }
    for (; c < cols; c += LANES) {
        vec part = load_part(x + c, cols - c), next = larger(part, most);
        sum = sum * exponential(most - next) + exponential(part - next);
        most = next;
    }
    *largest = largest_of(most);
    return sum_of(sum * exponential(most - fill(*largest)));
}

static inline vec finished(const stored *x, const num *kept, long c, long count, vec most, vec scale) {
    if (METHOD != KEPT) return exponential(load_part(x + c, count) - most) * scale;
    vec e;
    memcpy(&e, kept + c, sizeof e);
    return e * scale;
}

static void one_row(const stored *x, stored *y, num *kept, long cols) {
    num most, sum;
    if (METHOD == ONLINE) {
        sum = row_online(x, cols, &most);
    } else {
        most = row_largest(x, cols);
        sum = row_sum(x, cols, most, kept);
    }
    vec below = fill(most), scale = fill(1 / sum);
    long c = 0;
    for (; c + STEP <= cols; c += STEP)
        EACH(u) store_part(y + c + u * LANES, finished(x, kept, c + u * LANES, LANES, below, scale), LANES);
    for (; c < cols; c += LANES) store_part(y + c, finished(x, kept, c, cols - c, below, scale), cols - c);
}

typedef struct {
    const stored *x;
    stored *y;
    num *kept;  // whole vectors, a row for each thread
    long rows, cols, stride_x, stride_y, together;
    _Atomic long next;  // the row to draw
} job;

static void draw_rows(void *given, int thread) {
    job *j = given;
    num *kept = j->kept + thread * ((j->cols + LANES - 1) / LANES * LANES);
    for (;;) {
        long row = atomic_fetch_add(&j->next, j->together), end = row + j->together;
        if (row >= j->rows) return;
        for (; row < end && row < j->rows; row++)
            one_row(j->x + row * j->stride_x, j->y + row * j->stride_y, kept, j->cols);
    }
}

void deepgen_softmax(const stored *x, stored *y, num *kept, int64_t rows, int64_t cols, int64_t stride_x,
                     int64_t stride_y, int32_t threads) {
    long together = rows / (threads * 8L);  // a thread that begins late leaves its share to the others
    job j = {x, y, kept, rows, cols, stride_x, stride_y, together > 0 ? together : 1, 0};
    pool_run(threads, draw_rows, &j);
}

void deepgen_softmax_block(const slot *a) {
    deepgen_softmax(a[0].p, a[1].p, a[2].p, a[3].i64, a[4].i64, a[5].i64, a[6].i64, a[7].i32);
}
