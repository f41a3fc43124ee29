// dQ, dK and dV of attention on products of warps, in three launches. sm_80 and later.
//
//   sums      of each query: delta = rowsum(dO * O), and its log-sum-exp in binary
//   keys      a block has rows of K and V of its own, and goes over the queries that see them, of all heads that share
//             them: dV += P^T dO and dK += dS^T Q stay in registers
//   queries   a block has rows of Q and dO of its own, and goes over the keys that they see: dQ += dS K
//
// The last two compute scores and their gradients anew, seven products in place of five. So every sum has one owner that
// adds in a fixed order: results do not depend on timing, and nothing is added in memory.
//
// Both are one text: a warp owns HIGH * 16 rows; WIDE rows of the other side are fetched STAGES - 1 tiles ahead. S and dP
// (or their transposes: own rows by the other side's) stay in registers, become P and dS there, and are first operands
// of the products that are added up.
#include "warps.h"

typedef TYPE_A Number;
constexpr int THREADS = WARPS * 32, STEPS = D / 16, CHUNKS = D / 8;
constexpr u32 PITCH = (CHUNKS | 1) * 16;  // odd: eight rows of a matrix share no bank

struct Place {  // a tensor and its distances
    const Number* at;
    i64 row, head, batch;
    DG_DEVICE const Number* of(int b, int h) const { return at + b * batch + h * head; }
};

struct Problem {
    Place q, k, v, dout;
    const f32* sums;  // of each query its log-sum-exp and delta
    int heads, per_group, queries, keys, window, shift;
    f32 scale, cap, factor;  // to binary exponents; with a cap, what its hyperbolic tangent takes; of dQ and dK

    DG_DEVICE bool sees(int query, int key) const {
        int apart = query + shift - key;
        return key < keys && (!CAUSAL || apart >= 0) && (!WINDOW || (apart < window && (CAUSAL || apart > -window)));
    }
    // Whether all queries of a range, to `q1`, see all keys of another.
    DG_DEVICE bool all_see(int q0, int q1, int k0, int k1) const {
        return k1 < keys && (!CAUSAL || k1 <= q0 + shift) &&
               (!WINDOW || (q1 + shift - k0 < window && (CAUSAL || k1 - q0 - shift < window)));
    }
    // The queries that see any of the keys from k0 to k1, and the keys that any of some queries sees.
    DG_DEVICE int first_query(int k0) const { return CAUSAL ? k0 - shift : WINDOW ? k0 - shift - window + 1 : 0; }
    DG_DEVICE int end_query(int k1) const { return WINDOW ? least(queries, k1 - shift + window) : queries; }
    DG_DEVICE int first_key(int q0) const { return WINDOW ? q0 + shift - window + 1 : 0; }
    DG_DEVICE int end_key(int q1) const {
        return CAUSAL ? least(keys, q1 + shift + 1) : WINDOW ? least(keys, q1 + shift + window) : keys;
    }
};

// ROWS rows of a tensor from `first` on, zeros from `limit` on.
template <int ROWS>
DG_DEVICE void copy_rows(u32 to, const Number* from, i64 row, int first, int limit) {
    const u32 own = opaque(thread_id());
    DG_UNROLL for (int n = 0; n < (ROWS * CHUNKS + THREADS - 1) / THREADS; ++n) {
        int i = n * THREADS + own, line = i / CHUNKS, chunk = i % CHUNKS;
        if (ROWS * CHUNKS % THREADS == 0 || i < ROWS * CHUNKS)
            copy_async_or_zero<16>(to + line * PITCH + chunk * 16, from + (first + line) * row + chunk * 8,
                                   first + line < limit);
    }
}

// A block's work: OF_KEYS tells whose rows it owns.
template <bool OF_KEYS, int HIGH, int WIDE>
struct Block {
    static constexpr int OWN = WARPS * HIGH * 16;
    static constexpr u32 AT_OTHER = 2 * OWN * PITCH, TILE = WIDE * PITCH, STAGE = 2 * TILE + (OF_KEYS ? WIDE * 8 : 0);
    const Problem& p;
    int batch, group, begin;      // `group`: the head of K, or of Q
    int first, tiles, heads;      // tiles of the other side from `first`, of so many heads
    f32 dv[OF_KEYS ? HIGH : 1][D / 8][4], other[HIGH][D / 8][4];  // sums: of dV; of dK or dQ
    Vec<f32, 2> of_row[HIGH][2];  // sums of own queries

    DG_DEVICE Block(const Problem& p) : p(p) {
        const int own = OF_KEYS ? p.keys : p.queries, parts = (own + OWN - 1) / OWN, part = block_id() % parts;
        const int all = OF_KEYS ? p.heads / p.per_group : p.heads, at = block_id() / parts;
        batch = at / all, group = at % all;
        begin = (CAUSAL && !OF_KEYS ? parts - 1 - part : part) * OWN;  // the longest first
        const int last = least(begin + OWN, own) - 1;
        const int low = most_of(0, OF_KEYS ? p.first_query(begin) : p.first_key(begin));
        const int high = OF_KEYS ? p.end_query(last) : p.end_key(last);
        first = low / WIDE;
        tiles = high > low ? (high + WIDE - 1) / WIDE - first : 0;
        heads = OF_KEYS ? p.per_group : 1;
        DG_UNROLL for (int m = 0; m < HIGH; ++m)
            DG_UNROLL for (int n = 0; n < D / 8; ++n)
                DG_UNROLL for (int e = 0; e < 4; ++e) {
                    other[m][n][e] = 0;
                    if (OF_KEYS) dv[m][n][e] = 0;
                }
    }

    DG_DEVICE void fetch_own() {
        const Place &one = OF_KEYS ? p.k : p.q, &two = OF_KEYS ? p.v : p.dout;
        const int limit = OF_KEYS ? p.keys : p.queries;
        copy_rows<OWN>(shared_begin(), one.of(batch, group), one.row, begin, limit);
        copy_rows<OWN>(shared_begin() + OWN * PITCH, two.of(batch, group), two.row, begin, limit);
        if (!OF_KEYS)
            DG_UNROLL for (int m = 0; m < HIGH; ++m)
                DG_UNROLL for (int r = 0; r < 2; ++r) {
                    int query = row(m, r);
                    of_row[m][r] = {};
                    if (query < p.queries)
                        of_row[m][r] = load_global<Vec<f32, 2>>(
                            p.sums + (((i64)batch * p.heads + group) * p.queries + query) * 2);
                }
    }
    DG_DEVICE int row(int m, int r) const {
        return begin + (thread_id() / 32 * HIGH + m) * 16 + r * 8 + thread_id() % 32 / 4;
    }
    DG_DEVICE int column(int tile) const { return (first + tile % tiles) * WIDE; }

    // Tile `n` of all heads.
    DG_DEVICE void fetch(int n) {
        if (n < tiles * heads) {
            const int head = OF_KEYS ? group * p.per_group + n / tiles : group / p.per_group, at = column(n);
            const Place &one = OF_KEYS ? p.q : p.k, &two = OF_KEYS ? p.dout : p.v;
            const int limit = OF_KEYS ? p.queries : p.keys;
            const u32 to = shared_begin() + AT_OTHER + n % STAGES * STAGE;
            copy_rows<WIDE>(to, one.of(batch, head), one.row, at, limit);
            copy_rows<WIDE>(to + TILE, two.of(batch, head), two.row, at, limit);
            if (OF_KEYS && thread_id() < WIDE) {
                const int query = at + thread_id();
                copy_async_or_zero<8>(to + 2 * TILE + thread_id() * 8,
                                      p.sums + (((i64)batch * p.heads + head) * p.queries + query) * 2, query < limit);
            }
        }
        copy_commit();
    }

    // d = own rows by rows of the other side.
    DG_DEVICE void multiply(f32 (&d)[HIGH][WIDE / 8][4], u32 own, u32 stage) {
        const int lane = thread_id() % 32;
        own += (thread_id() / 32 * HIGH * 16 + lane % 16) * PITCH + lane / 16 * 16;
        stage += (lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 16;
        DG_UNROLL for (int m = 0; m < HIGH; ++m)
            DG_UNROLL for (int n = 0; n < WIDE / 8; ++n)
                DG_UNROLL for (int e = 0; e < 4; ++e) d[m][n][e] = 0;
        DG_UNROLL for (int s = 0; s < STEPS; ++s) {
            u32 a[HIGH][4];
            DG_UNROLL for (int m = 0; m < HIGH; ++m) load_matrices(a[m], own + m * 16 * PITCH + s * 32);
            DG_UNROLL for (int n = 0; n < WIDE / 8; n += 2) {
                u32 b[4];
                load_matrices(b, stage + n * 8 * PITCH + s * 32);
                const u32 even[2] = {b[0], b[1]}, odd[2] = {b[2], b[3]};
                DG_UNROLL for (int m = 0; m < HIGH; ++m) {
                    product(d[m][n], a[m], even);
                    product(d[m][n + 1], a[m], odd);
                }
            }
        }
    }

    // sums += weights by the other side's columns.
    static DG_DEVICE void add(f32 (&sums)[HIGH][D / 8][4], const f32 (&weights)[HIGH][WIDE / 8][4], u32 stage) {
        const int lane = thread_id() % 32;
        stage += lane % 16 * PITCH + lane / 16 * 16;
        DG_UNROLL for (int step = 0; step < WIDE / 16; ++step) {
            u32 a[HIGH][4];
            DG_UNROLL for (int m = 0; m < HIGH; ++m)
                DG_UNROLL for (int w = 0; w < 4; ++w) {
                    Vec<Number, 2> two;
                    const f32(&from)[4] = weights[m][step * 2 + w / 2];
                    narrow_two(from[w % 2 * 2], from[w % 2 * 2 + 1], two);
                    a[m][w] = bit_cast<u32>(two);
                }
            DG_UNROLL for (int n = 0; n < D / 8; n += 2) {
                u32 b[4];
                load_matrices_turned(b, stage + step * 16 * PITCH + n * 16);
                const u32 even[2] = {b[0], b[1]}, odd[2] = {b[2], b[3]};
                DG_UNROLL for (int m = 0; m < HIGH; ++m) {
                    product(sums[m][n], a[m], even);
                    product(sums[m][n + 1], a[m], odd);
                }
            }
        }
    }

    // Products become P, and gradients of P those of scores.
    DG_DEVICE void weigh(f32 (&s)[HIGH][WIDE / 8][4], f32 (&dp)[HIGH][WIDE / 8][4], int at, u32 pairs) {
        const int lane = thread_id() % 32, own = begin + thread_id() / 32 * HIGH * 16, last = own + HIGH * 16 - 1;
        const bool whole = OF_KEYS ? p.all_see(at, at + WIDE - 1, own, last) : p.all_see(own, last, at, at + WIDE - 1);
        DG_UNROLL for (int n = 0; n < WIDE / 8; ++n) {
            const int column = n * 8 + lane % 4 * 2;
            Vec<f32, 4> two = {};
            if (OF_KEYS) two = load_shared<Vec<f32, 4>>(pairs + column * 8);
            DG_UNROLL for (int m = 0; m < HIGH; ++m)
                DG_UNROLL for (int r = 0; r < 2; ++r)
                    DG_UNROLL for (int e = 0; e < 2; ++e) {
                        f32 &score = s[m][n][r * 2 + e], &gradient = dp[m][n][r * 2 + e], slope = 1;
                        const f32 sum = OF_KEYS ? two.v[e * 2] : of_row[m][r].v[0];
                        const f32 delta = OF_KEYS ? two.v[e * 2 + 1] : of_row[m][r].v[1];
                        if (SOFTCAP) {
                            score = 1 - 2 * reciprocal(power_of_two(score * p.cap) + 1);
                            slope = 1 - score * score;
                        }
                        f32 weight = power_of_two(multiply_add(score, p.scale, -sum));
                        if (!whole) {
                            const int mine = row(m, r), its = at + column + e;
                            if (!(OF_KEYS ? p.sees(its, mine) : p.sees(mine, its))) weight = 0;
                        }
                        score = weight;
                        gradient = weight * (gradient - delta);
                        if (SOFTCAP) gradient *= slope;
                    }
        }
    }

    DG_DEVICE void run() {
        fetch_own();
        DG_NO_UNROLL for (int n = 0; n < STAGES - 1; ++n) fetch(n);
        DG_NO_UNROLL for (int n = 0; n < tiles * heads; ++n) {
            copy_wait<STAGES - 2>();
            barrier();  // the tile has come, and the one before it has been read
            fetch(n + STAGES - 1);
            const u32 stage = shared_begin() + AT_OTHER + n % STAGES * STAGE;
            f32 s[HIGH][WIDE / 8][4], dp[HIGH][WIDE / 8][4];
            multiply(s, shared_begin(), stage);
            multiply(dp, shared_begin() + OWN * PITCH, stage + TILE);
            weigh(s, dp, column(n), stage + 2 * TILE);
            if constexpr (OF_KEYS) add(dv, s, stage + TILE);
            add(other, dp, stage);
        }
        copy_wait<0>();
    }

    DG_DEVICE void store(const f32 (&sums)[HIGH][D / 8][4], Number* to, i64 of_row, i64 of_head, i64 of_batch, f32 by) {
        const int lane = thread_id() % 32, limit = OF_KEYS ? p.keys : p.queries;
        to += batch * of_batch + group * of_head + lane % 4 * 2;
        DG_UNROLL for (int m = 0; m < HIGH; ++m)
            DG_UNROLL for (int r = 0; r < 2; ++r)
                if (row(m, r) < limit)
                    DG_UNROLL for (int n = 0; n < D / 8; ++n) {
                        Vec<Number, 2> two;
                        narrow_two(sums[m][n][r * 2] * by, sums[m][n][r * 2 + 1] * by, two);
                        store_global(to + row(m, r) * of_row + n * 8, two);
                    }
    }
};

// Eight lanes a query. One that sees no key has a log-sum-exp of minus infinity: its weights are to be zero.
DG_KERNEL(256, 1)
sums(const Number* out, i64 out_row, i64 out_head, i64 out_batch, const Number* dout, i64 dout_row, i64 dout_head,
     i64 dout_batch, const f32* lse, f32* to, i32 batch, i32 heads, i32 queries) {
    const i64 at = (i64)block_id() * 32 + thread_id() / 8;
    const int lane = thread_id() % 8;
    const bool real = at < (i64)batch * heads * queries;
    f32 sum = 0;
    if (real) {
        const i64 of = at / queries, query = at % queries, b = of / heads, h = of % heads;
        const Number* one = out + b * out_batch + h * out_head + query * out_row;
        const Number* two = dout + b * dout_batch + h * dout_head + query * dout_row;
        DG_UNROLL for (int i = 0; i < (CHUNKS + 7) / 8; ++i)
            if (i * 8 + lane < CHUNKS) {
                const auto a = load_global<Vec<Number, 8>>(one + (i * 8 + lane) * 8);
                const auto c = load_global<Vec<Number, 8>>(two + (i * 8 + lane) * 8);
                DG_UNROLL for (int e = 0; e < 8; ++e) {
                    f32 x, y;
                    widen(a.v[e], x);
                    widen(c.v[e], y);
                    sum = multiply_add(x, y, sum);
                }
            }
    }
    DG_UNROLL for (int bit = 1; bit < 8; bit *= 2) sum += from_lane_across(sum, bit);
    if (real && lane == 0) {
        f32 own = load_global<f32>(lse + at);
        own = own == -infinity() ? infinity() : own * LOG2_E;
        store_global(to + at * 2, Vec<f32, 2>{{own, sum}});
    }
    block_ends();
}

#define PARAMETERS                                                                                                     \
    const Number *q, i64 q_row, i64 q_head, i64 q_batch, const Number *k, i64 k_row, i64 k_head, i64 k_batch,          \
        const Number *v, i64 v_row, i64 v_head, i64 v_batch, const Number *dout, i64 dout_row, i64 dout_head,          \
        i64 dout_batch, const f32 *of_queries, i32 heads, i32 per_group, i32 queries, i32 keys, i32 window, f32 scale, \
        f32 cap
#define PROBLEM                                                                                                   \
    {                                                                                                             \
        {q, q_row, q_head, q_batch}, {k, k_row, k_head, k_batch}, {v, v_row, v_head, v_batch},                    \
            {dout, dout_row, dout_head, dout_batch}, of_queries, heads, per_group, queries, keys, window,         \
            keys - queries, (SOFTCAP ? cap : scale) * LOG2_E, SOFTCAP ? 2 * LOG2_E * scale / cap : 0, scale       \
    }

DG_KERNEL(THREADS, MIN_BLOCKS)
keys(PARAMETERS, Number* dk, i64 dk_row, i64 dk_head, i64 dk_batch, Number* dv, i64 dv_row, i64 dv_head, i64 dv_batch) {
    const Problem p = PROBLEM;
    Block<true, KEYS_HIGH, KEYS_WIDE> block(p);
    block.run();
    block.store(block.dv, dv, dv_row, dv_head, dv_batch, 1);
    block.store(block.other, dk, dk_row, dk_head, dk_batch, p.factor);
    block_ends();
}

DG_KERNEL(THREADS, MIN_BLOCKS)
queries(PARAMETERS, Number* dq, i64 dq_row, i64 dq_head, i64 dq_batch) {
    const Problem p = PROBLEM;
    Block<false, QUERIES_HIGH, QUERIES_WIDE> block(p);
    block.run();
    block.store(block.other, dq, dq_row, dq_head, dq_batch, p.factor);
    block_ends();
}
