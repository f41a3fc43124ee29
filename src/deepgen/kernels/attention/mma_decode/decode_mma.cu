// O = softmax(scale * Q K^T) V for few queries: bound by reading K and V once. sm_80 and later.
//
//   1. all queries of all heads that share a head of K are rows of one product: what is read serves them all    ROWS
//   2. a warp has keys of its own, KEYS in a stage, and copies them STAGES - 1 stages ahead (cp.async): it waits
//      for no other warp until a head is done                                                     KEYS, STAGES, WARPS
//   3. scores stay in registers, become weights there, and are the first operand of the product with V
//   4. all keys of all heads are one row of tiles, of which every block has an equal share; where a head's keys are
//      several blocks', whoever comes last joins their results, in the order of keys                           SPLITS
//
// What a block copies ahead goes on from one head to the next. The knobs are macros; `__init__.py` gives them all.
#include "warps.h"

typedef TYPE_A Number;
constexpr int THREADS = WARPS * 32, TILE = WARPS * KEYS;  // keys of a tile of the block
constexpr int BLOCKS_M = (ROWS + 15) / 16, STEPS = D / 16;
constexpr int K_PITCH = (D / 8 | 1) * 16, V_PITCH = (DV / 8 | 1) * 16;  // odd: eight rows of a matrix share no bank
constexpr u32 STAGE = KEYS * (K_PITCH + V_PITCH), NOTE = 16;            // NOTE: bytes that `arrive` uses
constexpr int O_PITCH = DV + 8;                                         // of results, in numbers
constexpr u32 AT_RESULTS = NOTE + WARPS * STAGES * STAGE, AT_STATES = AT_RESULTS + WARPS * ROWS * O_PITCH * 4;
constexpr u32 AT_QUERIES = AT_STATES + WARPS * ROWS * 8, Q_ROWS = BLOCKS_M * 16;  // used where Q_SHARED
constexpr i64 SLOT = ROWS * (DV + 2);  // numbers that a block leaves of a head's results: sums, and each row's state
constexpr f32 LEAST = 1e-30f;          // sums of weights are larger, but for rows that see no key

// The run-time arguments, and what follows from them.
struct Problem {
    const Number *q, *k, *v;
    Number* o;
    f32* partial;
    u32* arrived;
    i64 q_row, q_head, q_batch, k_row, k_head, k_batch, v_row, v_head, v_batch, o_row, o_head, o_batch;
    int heads, per_group, queries, keys, window;
    const Number* bias;
    i64 bias_batch, bias_head, bias_row, bias_key;
    const f32 *slopes, *sinks;
    f32* lse;
    f32 scale, cap;  // to binary exponents; with a cap, what its hyperbolic tangent takes comes first
    int first, tiles, groups, rows;  // tiles of a head of K from the first that is seen; heads of K; rows of each
    int shift, row_tiles, row_tile;
    i64 all, blocks;
#if LENGTHS
    const i32 *lengths, *pages;
    i64 pages_row;

    // With the number of keys that a batch has.
    DG_DEVICE Problem of_batch(int batch) const {
        Problem own = *this;
        own.keys = least(most_of(load_global<i32>(lengths + batch), 0), keys);
        own.shift = own.keys - queries;
        return own;
    }
#endif

    // The keys that a query sees: from `low` to before `high`.
    DG_DEVICE int low(int query) const { return WINDOW ? most_of(0, query + shift - window + 1) : 0; }
    DG_DEVICE int high(int query) const {
        return CAUSAL ? least(keys, query + shift + 1) : WINDOW ? least(keys, query + shift + window) : keys;
    }
    DG_DEVICE void prepare(int batch, f32 by, f32 cap_at, int offered) {
        shift = keys - queries;
        groups = batch * (heads / per_group);
        rows = per_group * queries;
        row_tiles = (rows + ROWS - 1) / ROWS;
        row_tile = block_id() % row_tiles;
#if LENGTHS  // of the batch that has most; others skip tiles
        first = 0;
#else
        first = low(0) / TILE;
#endif
        tiles = most_of(1, (high(queries - 1) + TILE - 1) / TILE - first);
        all = (i64)groups * tiles;
        blocks = offered / row_tiles < all ? offered / row_tiles : all;
        scale = SOFTCAP ? cap_at * LOG2_E : by * LOG2_E;
        cap = SOFTCAP ? 2 * LOG2_E * by / cap_at : 0;
    }
    DG_DEVICE i64 begin(i64 block) const { return all * block / blocks; }  // of its tiles
    DG_DEVICE i64 block_of(i64 tile) const { return ((tile + 1) * blocks - 1) / all; }
};

// What a warp copies, a tile after the other.
struct Copies {
    const Problem& p;
    const Number *k, *v;
    i64 left;
    int group, tile;
    u32 fill, begin;
#if LENGTHS
    int low, keys;  // of the batch, that its queries see
#endif
#if PAGE
    const i32* table;
#endif

    DG_DEVICE Copies(const Problem& p, i64 at, i64 end, u32 own) : p(p), left(end - at), fill(own), begin(own) {
        group = (int)(at / p.tiles);
        tile = (int)(at - (i64)group * p.tiles);
        settle();
    }
    DG_DEVICE void settle() {
        int per = p.heads / p.per_group, batch = group / per, head = group - batch * per;
#if LENGTHS
        const Problem own = p.of_batch(batch);
        low = own.low(0), keys = own.keys;
#endif
#if PAGE
        k = p.k + head * p.k_head;
        v = p.v + head * p.v_head;
        table = p.pages + batch * p.pages_row;
#else
        k = p.k + batch * p.k_batch + head * p.k_head;
        v = p.v + batch * p.v_batch + head * p.v_head;
#endif
    }
#if LENGTHS
    DG_DEVICE bool has(int key) const { return key < keys && (!WINDOW || key >= low); }
#endif
#if PAGE
    // Sixteen keys lie in one page, so a lane needs as many places of the table as there are sixteens in a stage.
    template <int WIDTH, int PITCH>
    DG_DEVICE void rows(u32 to, const Number* from, i64 row, i64 page, int key, const i32 (&at)[KEYS / 16]) const {
        constexpr int CHUNKS = WIDTH / 8;  // 16 bytes each
        const u32 lane = opaque(thread_id() % 32), step = opaque((u32)row);
        DG_UNROLL for (int r = 0; r < KEYS / 16; ++r) {
            const int first = key + r * 16;
            const Number* own = from + at[r] * page + first % PAGE * row;
            DG_UNROLL for (int n = 0; n < CHUNKS / 2; ++n) {
                u32 i = n * 32 + lane, line = i / CHUNKS, chunk = i % CHUNKS;
                copy_async_or_zero<16>(to + (r * 16 + line) * PITCH + chunk * 16, own + (line * step + chunk * 8),
                                       has(first + (int)line));
            }
        }
    }
#else
    template <int WIDTH, int PITCH>
    DG_DEVICE void rows(u32 to, const Number* from, i64 row, int key) const {
        constexpr int CHUNKS = WIDTH / 8;  // 16 bytes each
        // Computed anew each time, in 32 bits: a compiler would keep all that does not change in registers.
        const u32 lane = opaque(thread_id() % 32), step = opaque((u32)row);
        from += key * row;
        DG_UNROLL for (int n = 0; n < KEYS * CHUNKS / 32; ++n) {
            u32 i = n * 32 + lane, line = i / CHUNKS, chunk = i % CHUNKS;
#if LENGTHS
            const bool real = has(key + (int)line);
            copy_async_or_zero<16>(to + line * PITCH + chunk * 16, from + (line * step + chunk * 8), real);
#else
            copy_async_or_zero<16>(to + line * PITCH + chunk * 16, from + (line * step + chunk * 8),
                                   key + (int)line < p.keys);
#endif
        }
    }
#endif
    DG_DEVICE void ask() {
        if (left > 0) {
            int key = (p.first + tile) * TILE + thread_id() / 32 * KEYS;
#if PAGE
            i32 at[KEYS / 16];
            DG_UNROLL for (int r = 0; r < KEYS / 16; ++r)
                at[r] = key + r * 16 < keys ? load_global<i32>(table + (key + r * 16) / PAGE) : 0;
            rows<D, K_PITCH>(fill, k, p.k_row, p.k_batch, key, at);
            rows<DV, V_PITCH>(fill + KEYS * K_PITCH, v, p.v_row, p.v_batch, key, at);
#else
            rows<D, K_PITCH>(fill, k, p.k_row, key);
            rows<DV, V_PITCH>(fill + KEYS * K_PITCH, v, p.v_row, key);
#endif
            --left;
            if (++tile == p.tiles) {
                tile = 0;
                ++group;
                if (left > 0) settle();
            }
        }
        copy_commit();
        fill = fill + STAGE == begin + STAGES * STAGE ? begin : fill + STAGE;
    }
};

// Of a lane: rows `lane / 4` and eight further of each sixteen; of eight columns two.
struct Rows {
    u32 q[BLOCKS_M][Q_SHARED ? 1 : STEPS][4];
    f32 sums[BLOCKS_M][DV / 8][4];
    f32 most[BLOCKS_M][2], total[BLOCKS_M][2];
    int low[BLOCKS_M][2], high[BLOCKS_M][2];  // of the keys that they see
    int least_high, most_low;                 // of all rows of the block
#if LENGTHS
    int most_high, least_low;
#endif
    i64 bias[BLOCKS_M][2];                    // where a row's begins; less than 0 of rows that are not
    f32 slope[BLOCKS_M][2];
    int own[BLOCKS_M][2];  // the place of a row among keys

#if LENGTHS
    DG_DEVICE Rows(const Problem& whole, int group) {
        const Problem p = whole.of_batch(group / (whole.heads / whole.per_group));
#else
    DG_DEVICE Rows(const Problem& p, int group) {
#endif
        int lane = thread_id() % 32, per = p.heads / p.per_group, batch = group / per, head = group - batch * per;
        int top = p.row_tile * ROWS, end = least(top + ROWS, p.rows);
        least_high = p.high(top / p.per_group);
        most_low = p.low((end - 1) / p.per_group);
#if LENGTHS
        most_high = p.high((end - 1) / p.per_group), least_low = p.low(top / p.per_group);
#endif
        if (Q_SHARED) share_queries(p, batch, head, top, end);
        DG_UNROLL for (int m = 0; m < BLOCKS_M; ++m) {
            DG_UNROLL for (int r = 0; r < 2; ++r) {
                int row = top + m * 16 + r * 8 + lane / 4;
                bool real = row < end;
                int query = real ? row / p.per_group : 0, of = real ? row - query * p.per_group : 0;
                low[m][r] = p.low(query);
                high[m][r] = p.high(query);
                own[m][r] = query + p.shift;
                if (ALIBI) slope[m][r] = load_global<f32>(p.slopes + head * p.per_group + of) * LOG2_E;
                bias[m][r] = !real ? -1 : batch * p.bias_batch + (head * p.per_group + of) * p.bias_head + query * p.bias_row;
                const Number* from = p.q + batch * p.q_batch + (head * p.per_group + of) * p.q_head + query * p.q_row;
                if (!Q_SHARED)
                    DG_UNROLL for (int s = 0; s < STEPS; ++s)
                        DG_UNROLL for (int e = 0; e < 2; ++e) {
                            u32 word = 0;
                            if (real) word = load_global<u32>(from + s * 16 + e * 8 + lane % 4 * 2);
                            q[m][Q_SHARED ? 0 : s][e * 2 + r] = word;
                        }
                most[m][r] = -infinity();
                total[m][r] = 0;
            }
            DG_UNROLL for (int n = 0; n < DV / 8; ++n)
                DG_UNROLL for (int e = 0; e < 4; ++e) sums[m][n][e] = 0;
        }
    }

    // All rows of the block to shared memory, which nobody reads any more.
    static DG_DEVICE void share_queries(const Problem& p, int batch, int head, int top, int end) {
        DG_NO_UNROLL for (int i = thread_id(); i < (int)Q_ROWS * (D / 8); i += THREADS) {
            int row = top + i / (D / 8), chunk = i % (D / 8), query = row / p.per_group, of = row - query * p.per_group;
            Vec<u32, 4> words = {};
            if (row < end)
                words = load_global<Vec<u32, 4>>(p.q + batch * p.q_batch + (head * p.per_group + of) * p.q_head +
                                                 query * p.q_row + chunk * 8);
            store_shared(shared_begin() + AT_QUERIES + i / (D / 8) * K_PITCH + chunk * 16, words);
        }
        barrier();
    }

    DG_DEVICE void take(const Problem& p, u32 stage, int key) {
        f32 scores[BLOCKS_M][KEYS / 8][4];
        multiply_keys(scores, stage);
        weigh(p, scores, key);
        multiply_values(scores, stage + KEYS * K_PITCH);
    }

    DG_DEVICE void multiply_keys(f32 (&scores)[BLOCKS_M][KEYS / 8][4], u32 stage) {
        int lane = thread_id() % 32;
        u32 own = stage + (lane / 16 * 8 + lane % 8) * K_PITCH + lane / 8 % 2 * 16;
        DG_UNROLL for (int m = 0; m < BLOCKS_M; ++m)
            DG_UNROLL for (int n = 0; n < KEYS / 8; ++n)
                DG_UNROLL for (int e = 0; e < 4; ++e) scores[m][n][e] = 0;
        u32 queries = shared_begin() + AT_QUERIES + lane % 16 * K_PITCH + lane / 16 * 16;
        DG_UNROLL for (int s = 0; s < STEPS; ++s) {
            if (Q_SHARED)
                DG_UNROLL for (int m = 0; m < BLOCKS_M; ++m) load_matrices(q[m][0], queries + m * 16 * K_PITCH + s * 32);
            DG_UNROLL for (int n = 0; n < KEYS / 8; n += 2) {
                u32 b[4];
                load_matrices(b, own + n * 8 * K_PITCH + s * 32);
                const u32 even[2] = {b[0], b[1]}, odd[2] = {b[2], b[3]};
                DG_UNROLL for (int m = 0; m < BLOCKS_M; ++m) {
                    product(scores[m][n], q[m][Q_SHARED ? 0 : s], even);
                    product(scores[m][n + 1], q[m][Q_SHARED ? 0 : s], odd);
                }
            }
        }
    }

    // Scores become weights, and what has been added up so far is scaled to the new maximum.
    DG_DEVICE void weigh(const Problem& p, f32 (&scores)[BLOCKS_M][KEYS / 8][4], int key) {
        int column = key + thread_id() % 4 * 2;
        bool whole = key + KEYS <= least_high && (!WINDOW || key >= most_low);
        DG_UNROLL for (int m = 0; m < BLOCKS_M; ++m)
            DG_UNROLL for (int r = 0; r < 2; ++r) {
                f32 largest = -infinity();
                DG_UNROLL for (int n = 0; n < KEYS / 8; ++n)
                    DG_UNROLL for (int e = 0; e < 2; ++e) {
                        f32& score = scores[m][n][r * 2 + e];
                        if (SOFTCAP) score = 1 - 2 * reciprocal(power_of_two(score * p.cap) + 1);
                        score *= p.scale;
                        int at = column + n * 8 + e;
                        if (ALIBI) score -= slope[m][r] * (f32)(at > own[m][r] ? at - own[m][r] : own[m][r] - at);
                        if (BIAS && bias[m][r] >= 0 && at < p.keys) {
                            f32 more;
                            widen(load_global<Number>(p.bias + bias[m][r] + at * p.bias_key), more);
                            score += more * LOG2_E;
                        }
                        if (!whole && (at >= high[m][r] || (WINDOW && at < low[m][r]))) score = -infinity();
                        largest = larger(largest, score);
                    }
                largest = larger(largest, from_lane_across(largest, 1));
                largest = larger(largest, from_lane_across(largest, 2));
                largest = larger(largest, most[m][r]);
                f32 base = largest == -infinity() ? 0 : largest, by = power_of_two(most[m][r] - base), sum = 0;
                most[m][r] = largest;
                DG_UNROLL for (int n = 0; n < KEYS / 8; ++n)
                    DG_UNROLL for (int e = 0; e < 2; ++e) {
                        f32& score = scores[m][n][r * 2 + e];
                        score = power_of_two(score - base);
                        sum += score;
                    }
                total[m][r] = total[m][r] * by + sum;
                DG_UNROLL for (int n = 0; n < DV / 8; ++n)
                    DG_UNROLL for (int e = 0; e < 2; ++e) sums[m][n][r * 2 + e] *= by;
            }
    }

    DG_DEVICE void multiply_values(const f32 (&scores)[BLOCKS_M][KEYS / 8][4], u32 stage) {
        int lane = thread_id() % 32;
        u32 own = stage + lane % 16 * V_PITCH + lane / 16 * 16;
        DG_UNROLL for (int step = 0; step < KEYS / 16; ++step) {
            u32 a[BLOCKS_M][4];
            DG_UNROLL for (int m = 0; m < BLOCKS_M; ++m)
                DG_UNROLL for (int w = 0; w < 4; ++w) {
                    Vec<Number, 2> two;
                    const f32(&from)[4] = scores[m][step * 2 + w / 2];
                    narrow_two(from[w % 2 * 2], from[w % 2 * 2 + 1], two);
                    a[m][w] = bit_cast<u32>(two);
                }
            DG_UNROLL for (int n = 0; n < DV / 8; n += 2) {
                u32 b[4];
                load_matrices_turned(b, own + step * 16 * V_PITCH + n * 16);
                const u32 even[2] = {b[0], b[1]}, odd[2] = {b[2], b[3]};
                DG_UNROLL for (int m = 0; m < BLOCKS_M; ++m) {
                    product(sums[m][n], a[m], even);
                    product(sums[m][n + 1], a[m], odd);
                }
            }
        }
    }

    // To the warp's place in shared memory.
    DG_DEVICE void put() const {
        int lane = thread_id() % 32, warp = thread_id() / 32;
        u32 to = shared_begin() + AT_RESULTS + warp * (ROWS * O_PITCH * 4);
        u32 states = shared_begin() + AT_STATES + warp * (ROWS * 8);
        DG_UNROLL for (int m = 0; m < BLOCKS_M; ++m)
            DG_UNROLL for (int r = 0; r < 2; ++r) {
                int row = m * 16 + r * 8 + lane / 4;
                f32 all = total[m][r] + from_lane_across(total[m][r], 1);
                all += from_lane_across(all, 2);
                if (row < ROWS) {
                    if (lane % 4 == 0) store_shared(states + row * 8, Vec<f32, 2>{{most[m][r], all}});
                    DG_UNROLL for (int n = 0; n < DV / 8; ++n)
                        store_shared(to + (row * O_PITCH + n * 8 + lane % 4 * 2) * 4,
                                     Vec<f32, 2>{{sums[m][n][r * 2], sums[m][n][r * 2 + 1]}});
                }
            }
    }
};

// Parts of a row's result, joined in their order: `state(i)` of part i is its maximum and sum, `four(i)` four sums.
struct Joined {
    f32 most = -infinity(), total = 0, sums[4] = {};
    template <typename State>
    DG_DEVICE void find(int parts, State state) {
        DG_NO_UNROLL for (int i = 0; i < parts; ++i) most = larger(most, state(i).v[0]);
    }
    DG_DEVICE void add(const Vec<f32, 2>& state, const Vec<f32, 4>& four) {
        f32 by = most == -infinity() ? 0 : power_of_two(state.v[0] - most);
        total = multiply_add(by, state.v[1], total);
        DG_UNROLL for (int e = 0; e < 4; ++e) sums[e] = multiply_add(by, four.v[e], sums[e]);
    }
};

// A row's four numbers from `column` on, of head `group` of K.
DG_DEVICE void store(const Problem& p, int group, int line, int column, const Joined& all) {
    int row = p.row_tile * ROWS + line;
    if (row >= p.rows) return;
    int per = p.heads / p.per_group, batch = group / per, query = row / p.per_group;
    int head = (group - batch * per) * p.per_group + row - query * p.per_group;
    f32 by = all.total > LEAST ? reciprocal(all.total) : 0;
    if (SINKS || LSE) {
        // Binary logarithms: of what all weights are a share of.
        f32 whole = all.total > LEAST ? all.most + log_of_two(all.total) : -infinity();
        if (SINKS) {
            f32 sink = load_global<f32>(p.sinks + head) * LOG2_E, top = larger(whole, sink);
            if (top > -infinity()) whole = top + log_of_two(power_of_two(whole - top) + power_of_two(sink - top));
            by = all.total > LEAST ? power_of_two(all.most - whole) : 0;
        }
        if (LSE && column == 0) store_global(p.lse + ((i64)batch * p.heads + head) * p.queries + query, whole / LOG2_E);
    }
    Vec<Vec<Number, 2>, 2> out;
    DG_UNROLL for (int e = 0; e < 2; ++e) narrow_two(all.sums[e * 2] * by, all.sums[e * 2 + 1] * by, out.v[e]);
    store_global(p.o + batch * p.o_batch + head * p.o_head + query * p.o_row + column, out);
}

// What the block has of a head of K: the result if these are all keys, else a part of it.
DG_DEVICE void finish(const Problem& p, const Rows& rows, int group, i64 block, bool later) {
    barrier();  // results of the head before have been read
    rows.put();
    barrier();
    i64 from = (i64)group * p.tiles, first = p.block_of(from), last = p.block_of(from + p.tiles - 1);
    u32 results = shared_begin() + AT_RESULTS, states = shared_begin() + AT_STATES;
    f32* own = p.partial + ((block * p.row_tiles + p.row_tile) * 2 + later) * SLOT;
    DG_NO_UNROLL for (int i = thread_id(); i < ROWS * (DV / 4); i += THREADS) {
        int line = i / (DV / 4), column = i % (DV / 4) * 4;
        Joined all;
        auto state = [&](int w) { return load_shared<Vec<f32, 2>>(states + (w * ROWS + line) * 8); };
        all.find(WARPS, state);
        DG_UNROLL for (int w = 0; w < WARPS; ++w)
            all.add(state(w), load_shared<Vec<f32, 4>>(results + ((w * ROWS + line) * O_PITCH + column) * 4));
        if (first == last) {
            store(p, group, line, column, all);
        } else {
            store_global(own + line * DV + column, Vec<f32, 4>{{all.sums[0], all.sums[1], all.sums[2], all.sums[3]}});
            if (column == 0) store_global(own + ROWS * DV + line * 2, Vec<f32, 2>{{all.most, all.total}});
        }
    }
    if (first == last) return;
    u32* counter = p.arrived + (i64)group * p.row_tiles + p.row_tile;
    if (arrive(counter) != (u32)(last - first)) return;
    // The first block's share may begin in a head before this one, of which it left a part too.
    int odd = p.begin(first) < from;
    auto slot = [&](int i) {
        return p.partial + (((first + i) * p.row_tiles + p.row_tile) * 2 + (i == 0 ? odd : 0)) * SLOT;
    };
    int parts = (int)(last - first) + 1;
    DG_NO_UNROLL for (int i = thread_id(); i < ROWS * (DV / 4); i += THREADS) {
        int line = i / (DV / 4), column = i % (DV / 4) * 4;
        Joined all;
        auto state = [&](int part) { return load_fresh<Vec<f32, 2>>(slot(part) + ROWS * DV + line * 2); };
        all.find(parts, state);
        DG_NO_UNROLL for (int some = 0; some < parts; some += AHEAD) {
            Vec<f32, 2> of[AHEAD];
            Vec<f32, 4> four[AHEAD];
            DG_UNROLL for (int a = 0; a < AHEAD; ++a) {
                int part = least(some + a, parts - 1);
                of[a] = state(part);
                four[a] = load_fresh<Vec<f32, 4>>(slot(part) + line * DV + column);
            }
            DG_UNROLL for (int a = 0; a < AHEAD; ++a)
                if (some + a < parts) all.add(of[a], four[a]);
        }
        store(p, group, line, column, all);
    }
    reset(counter);
}

DG_KERNEL(THREADS, MIN_BLOCKS)
decode(const Number* q, const Number* k, const Number* v, Number* o, f32* partial, u32* arrived, i64 q_row, i64 q_head,
       i64 q_batch, i64 k_row, i64 k_head, i64 k_batch, i64 v_row, i64 v_head, i64 v_batch, i64 o_row, i64 o_head,
       i64 o_batch, i32 batch, i32 heads, i32 per_group, i32 queries, i32 keys, i32 window, f32 scale, f32 cap,
       const Number* bias, i64 bias_batch, i64 bias_head, i64 bias_row, i64 bias_key, const f32* slopes, const f32* sinks,
#if LENGTHS
       f32* lse, const i32* lengths, const i32* pages, i64 pages_row) {
#else
       f32* lse) {
#endif
    Problem p = {q, k, v, o, partial, arrived, q_row, q_head, q_batch, k_row, k_head, k_batch, v_row, v_head, v_batch,
                 o_row, o_head, o_batch, heads, per_group, queries, keys, window,
                 bias, bias_batch, bias_head, bias_row, bias_key, slopes, sinks, lse};
#if LENGTHS
    p.lengths = lengths, p.pages = pages, p.pages_row = pages_row;
#endif
    p.prepare(batch, scale, cap, block_count());
    i64 block = block_id() / p.row_tiles;
    if (block < p.blocks) {
        i64 at = p.begin(block), end = p.begin(block + 1);
        const int begun = (int)(at / p.tiles);
        const u32 own = shared_begin() + NOTE + thread_id() / 32 * (STAGES * STAGE);
        Copies copies(p, at, end, own);
        DG_NO_UNROLL for (int s = 0; s < STAGES - 1; ++s) copies.ask();
        u32 stage = own;
        DG_NO_UNROLL while (at < end) {
            int group = (int)(at / p.tiles), tile = (int)(at - (i64)group * p.tiles);
            int stop = (int)(end - at < p.tiles - tile ? end - at + tile : p.tiles);
            at += stop - tile;
            Rows rows(p, group);
            DG_NO_UNROLL for (; tile < stop; ++tile) {
                copy_wait<STAGES - 2>();
                warp_barrier();  // the stage has come, and the one before it has been read
                copies.ask();
#if LENGTHS
                const int key = (p.first + tile) * TILE + thread_id() / 32 * KEYS;
                if (key < rows.most_high && (!WINDOW || key + KEYS > rows.least_low)) rows.take(p, stage, key);
#else
                rows.take(p, stage, (p.first + tile) * TILE + thread_id() / 32 * KEYS);
#endif
                stage = stage + STAGE == own + STAGES * STAGE ? own : stage + STAGE;
            }
            finish(p, rows, group, block, group > begun);
        }
        copy_wait<0>();
    }
    block_ends();
}
