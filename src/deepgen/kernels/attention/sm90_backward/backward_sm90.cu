// dQ, dK and dV of attention on Hopper's tensor cores, in three launches.
//
//   sums      of each query: delta = rowsum(dO * O), and its log-sum-exp in binary
//   keys      a block owns rows of K and V, and goes over the queries that see them, of all heads that share them:
//             dV += P^T dO and dK += dS^T Q
//   queries   a block owns rows of Q and dO, and goes over the keys that they see: dQ += dS K
//
// Scores and their gradients are computed in both of the last two. So each sum has one owner, which adds in a fixed order
// and keeps it in registers: nothing is added in memory, and results do not depend on timing.
//
// Both are one text. One thread has the copy engine fetch the block's own rows once, and tiles of the other side into a
// ring of STAGES buffers. Each consuming warpgroup has 64 own rows: their products with a tile (S and dP, or their
// transposes) stay in registers, become P and dS there, and are first operands of the products that are added up.
//
// OVERLAP   what runs beside a tile's exponentials: nothing of its warpgroup (NONE), the sums of the tile before
//           (SCORES), or these and its own dP (ALL), which needs most registers
//
// Launches overlap: blocks of each begin where those of the one before leave room. `keys` waits for `sums`, before it lets
// `queries` begin; that waits for `keys` last of all, so that what follows it finds all three done.
//
// The knobs are macros; `__init__.py` gives them all.
#include "sides.h"

template <int ROWS>
DG_DEVICE void get_tile(u32 to, const TensorMap* map, u32 barrier, int row, int head, int batch) {
#pragma unroll
    for (int i = 0; i < ATOMS; ++i) fetch_rows(to + i * (ROWS * 128), map, barrier, i * 64, row, head, batch);
}

struct Maps {
    const TensorMap *one, *two, *other_one, *other_two;
};

template <class S>
DG_DEVICE void produce(const Problem& p, const Piece<S>& w, const Shared<S>& s, const Maps& maps) {
    barrier_expect(s.own_full, 2 * S::CONSUMERS * OWN_BYTES);
#pragma unroll
    for (int c = 0; c < S::CONSUMERS; ++c) {
        get_tile<64>(s.one + c * OWN_BYTES, maps.one, s.own_full, w.row + c * 64, w.head, w.batch);
        get_tile<64>(s.two + c * OWN_BYTES, maps.two, s.own_full, w.row + c * 64, w.head, w.batch);
    }
    Place<S::STAGES> at;
    for (int head = w.begun; head < w.begun + w.heads; ++head)
#pragma unroll 1
        for (int j = w.first; j < w.first + w.tiles; ++j) {
            const u32 one = s.one_full + at.stage * 8, two = s.two_full + at.stage * 8;
            barrier_wait(s.empty + at.stage * 8, at.phase ^ 1);
            barrier_expect(one, S::TILE + S::SUMS);
            get_tile<S::WIDE>(s.other_one + at.stage * S::TILE, maps.other_one, one, j * S::WIDE, head, w.batch);
            if (S::OF_KEYS)
                fetch_bytes(s.sums + at.stage * S::SUMS,
                            p.sums + ((i64)w.batch * p.heads + head) * p.pitch + j * S::WIDE, S::SUMS, one);
            barrier_expect(two, S::TILE);
            get_tile<S::WIDE>(s.other_two + at.stage * S::TILE, maps.other_two, two, j * S::WIDE, head, w.batch);
            at.advance();
        }
}

// What a warpgroup computes with. Of a thread: rows `row` and `row + 8`, of each eight columns two.
template <class S>
struct Consumer {
    static constexpr int WIDE = S::WIDE;
    const Problem& p;
    const Piece<S>& w;
    const Shared<S>& s;
    int top, row, column;
    u64 one, two, other_one, other_two, transposed_one, transposed_two;  // descriptors; `transposed`: rows are what is summed over
    Place<S::STAGES> at;
    int before = 0;                                 // the stage of the tile before
    Sums own[2];                                    // of own queries
    float dv[S::OF_KEYS ? D / 2 : 1], sums[D / 2];  // sums of dV; of dK or dQ
    float scores[WIDE / 2], gradients[WIDE / 2];
    u32 weights[S::OF_KEYS ? WIDE / 4 : 1], changes[WIDE / 4];  // P and dS as operands

    DG_DEVICE Consumer(const Problem& p, const Piece<S>& w, const Shared<S>& s, int group) : p(p), w(w), s(s) {
        top = w.row + group * 64;
        row = top + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
        column = threadIdx.x % 4 * 2;
        one = operand<128>(s.one + group * OWN_BYTES, 16, 1024);
        two = operand<128>(s.two + group * OWN_BYTES, 16, 1024);
        other_one = operand<128>(s.other_one, 16, 1024);
        other_two = operand<128>(s.other_two, 16, 1024);
        transposed_one = operand<128>(s.other_one, WIDE * 128, 1024);
        transposed_two = operand<128>(s.other_two, WIDE * 128, 1024);
        if (!S::OF_KEYS)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                own[r] = Sums{infinity(), 0};
                if (row + 8 * r < p.queries)
                    own[r] = load_sums(p.sums + ((i64)w.batch * p.heads + w.head) * p.pitch + row + 8 * r);
            }
#pragma unroll
        for (int i = 0; i < D / 2; ++i) sums[i] = 0;
        if (S::OF_KEYS)
#pragma unroll
            for (int i = 0; i < D / 2; ++i) dv[S::OF_KEYS ? i : 0] = 0;
    }

    // Own rows times rows of a tile are put in line.
    DG_DEVICE void multiply(float (&d)[WIDE / 2], u64 own_rows, u64 others) {
        products_begin();
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            const u64 a = own_rows + ((i / 4 * (64 * 128) + i % 4 * 32) >> 4);
            const u64 b = others + ((i / 4 * (WIDE * 128) + i % 4 * 32) >> 4);
            if constexpr (S::OF_KEYS)
                product_with_queries(d, a, b, i > 0);
            else
                product_with_keys(d, a, b, i > 0);
        }
        products_commit();
    }
    DG_DEVICE void multiply_scores() {
        barrier_wait(s.one_full + at.stage * 8, at.phase);
        multiply(scores, one, other_one + ((u32)(at.stage * S::TILE) >> 4));
    }
    DG_DEVICE void multiply_gradients() {
        barrier_wait(s.two_full + at.stage * 8, at.phase);
        multiply(gradients, two, other_two + ((u32)(at.stage * S::TILE) >> 4));
    }
    static DG_DEVICE void add(float* d, const u32* factors, u64 tile) {
        products_begin();
#pragma unroll
        for (int i = 0; i < WIDE / 16; ++i) product_values(d, factors + i * 4, tile + (i * 2048 >> 4));
        products_commit();
    }
    // Sums of a stage are put in line.
    DG_DEVICE void add_all(int stage) {
        const u32 shift = (u32)(stage * S::TILE) >> 4;
        if (S::OF_KEYS) add(dv, weights, transposed_two + shift);
        add(sums, changes, transposed_one + shift);
    }
    // A stage's products are done.
    DG_DEVICE void added(int stage) {
        if (threadIdx.x % 32 == 0) barrier_arrive(s.empty + stage * 8);
#pragma unroll
        for (int i = 0; i < D / 2; ++i) pin(sums[i]);
        if (S::OF_KEYS)
#pragma unroll
            for (int i = 0; i < D / 2; ++i) pin(dv[S::OF_KEYS ? i : 0]);
    }
    static DG_DEVICE void done(float (&d)[WIDE / 2]) {
#pragma unroll
        for (int i = 0; i < WIDE / 2; ++i) pin(d[i]);
    }

    // Of two queries, which are columns, their log-sum-exps and deltas.
    DG_DEVICE uint4 sums_of(int i, int stage) const {
        return S::OF_KEYS ? load_chunk(s.sums + stage * S::SUMS + (i * 8 + column) * 8) : uint4{};
    }

    // Scores become weights; with a cap, gradients are to be multiplied by `1 - share^2`, which `slopes` keeps.
    DG_DEVICE void weigh(int stage, int j, float (&slopes)[SOFTCAP ? WIDE / 2 : 1]) {
        if (SOFTCAP) {
#pragma unroll
            for (int i = 0; i < WIDE / 2; ++i) {
                scores[i] = 1 - 2 * reciprocal(exponential(scores[i] * p.cap) + 1);
                slopes[SOFTCAP ? i : 0] = 1 - scores[i] * scores[i];
            }
        }
        if ((j + 1) * WIDE > S::high(p, top) || j * WIDE < S::low(p, top + 63)) mask(j);
#pragma unroll
        for (int i = 0; i < WIDE / 8; ++i) {
            const uint4 two = sums_of(i, stage);
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const float lse = S::OF_KEYS ? __int_as_float(n % 2 ? two.z : two.x) : own[n / 2].lse;
                scores[i * 4 + n] = exponential(scores[i * 4 + n] * p.scale - lse);
            }
        }
    }
    DG_DEVICE bool any_below_zero() const {
        int signs = 0;
#pragma unroll
        for (int i = 0; i < WIDE / 2; ++i) signs |= __float_as_int(scores[i]);
        return __any_sync(~0u, signs < 0);
    }
    DG_DEVICE void mask(int j) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int low = S::low(p, row + 8 * r) - j * WIDE - column, high = S::high(p, row + 8 * r) - j * WIDE - column;
#pragma unroll
            for (int i = 0; i < WIDE / 8; ++i)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    if (i * 8 + e >= high || i * 8 + e < low) scores[i * 4 + r * 2 + e] = -infinity();
        }
    }
    // Gradients of weights become those of scores; both are operands then.
    DG_DEVICE void pack(int stage, const float (&slopes)[SOFTCAP ? WIDE / 2 : 1]) {
#pragma unroll
        for (int i = 0; i < WIDE / 8; ++i) {
            const uint4 two = sums_of(i, stage);
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const float delta = S::OF_KEYS ? __int_as_float(n % 2 ? two.w : two.y) : own[n / 2].delta;
                float& gradient = gradients[i * 4 + n];
                gradient = scores[i * 4 + n] * (gradient - delta);
                if (SOFTCAP) gradient *= slopes[SOFTCAP ? i * 4 + n : 0];
            }
        }
#pragma unroll
        for (int i = 0; i < WIDE / 4; ++i) {
            changes[i] = Pair<TYPE>(gradients[2 * i], gradients[2 * i + 1]).bits;
            if (S::OF_KEYS) weights[S::OF_KEYS ? i : 0] = Pair<TYPE>(scores[2 * i], scores[2 * i + 1]).bits;
        }
    }

    // Gradients of a tile are done: both operands of its sums follow, and the next tile.
    DG_DEVICE void finish(const float (&slopes)[SOFTCAP ? WIDE / 2 : 1]) {
        products_wait<0>();
        done(gradients);
        pack(at.stage, slopes);
        before = at.stage;
        at.advance();
    }

    // A tile's products, and the sums of the tile before.
    DG_DEVICE void take(int j, bool first) {
        constexpr int SUMMED = S::OF_KEYS ? 2 : 1;  // groups of products that are sums
        float slopes[SOFTCAP ? WIDE / 2 : 1];
        if (!first && S::OVERLAP == NONE) {
            add_all(before);
            products_wait<0>();
            added(before);
        }
        multiply_scores();
        if (!first && S::OVERLAP != NONE) add_all(before);
        if (first || S::OVERLAP != SCORES) multiply_gradients();
        if (first || S::OVERLAP == NONE)
            products_wait<1>();
        else
            products_wait<S::OVERLAP == ALL ? SUMMED + 1 : SUMMED>();
        done(scores);
        weigh(at.stage, j, slopes);
        if (!first && S::OVERLAP != NONE) {
            // A compiler moves the wait up to the last branch, before all that it is to run beside. So here is one that
            // depends on all weights, of which none is ever less than zero.
            if (any_below_zero()) {
                products_wait<0>();
                added(before);
#pragma unroll
                for (int i = 0; i < WIDE / 2; ++i)
                    if (scores[i] < 0) scores[i] = 0;
            } else {
                products_wait<0>();
                added(before);
            }
        }
        if (!first && S::OVERLAP == SCORES) multiply_gradients();
        finish(slopes);
    }

    DG_DEVICE void run() {
        const int all = w.tiles * w.heads;
        barrier_wait(s.own_full, 0);
        if (all == 0) return;
        int j = w.first;
        take(j, true);
#pragma unroll 1
        for (int n = 1; n < all; ++n) {
            if (++j == w.first + w.tiles) j = w.first;
            take(j, false);
        }
        add_all(before);
        products_wait<0>();
        added(before);
    }

    DG_DEVICE void store(const float* from, TYPE* to, i64 of_row, i64 of_head, i64 of_batch, float by) const {
        const int limit = S::OF_KEYS ? p.keys : p.queries;
        to += w.batch * of_batch + w.head * of_head + column;
#pragma unroll
        for (int r = 0; r < 2; ++r)
            if (row + 8 * r < limit)
#pragma unroll
                for (int i = 0; i < D / 8; ++i)
                    *reinterpret_cast<u32*>(to + (row + 8 * r) * of_row + i * 8) =
                        Pair<TYPE>(from[i * 4 + r * 2] * by, from[i * 4 + r * 2 + 1] * by).bits;
    }
};

template <class S>
DG_DEVICE void prepare(const Shared<S>& s, const Maps& maps) {
    if (threadIdx.x == S::CONSUMERS * 128) {
        prefetch_map(maps.one), prefetch_map(maps.two), prefetch_map(maps.other_one), prefetch_map(maps.other_two);
        barrier_init(s.own_full, 1);
#pragma unroll
        for (int i = 0; i < S::STAGES; ++i) {
            barrier_init(s.one_full + i * 8, 1), barrier_init(s.two_full + i * 8, 1);
            barrier_init(s.empty + i * 8, S::CONSUMERS * 4);
        }
        barriers_ready();
    }
    __syncthreads();
}

#define PARAMETERS                                                                                                     \
    const Sums *of_queries, int heads, int per_group, int queries, int keys, int window, int pitch, float scale, float cap
#define PROBLEM of_queries, heads, per_group, queries, keys, window, pitch, scale, cap
#define RESULT(name) TYPE *name, i64 name##_row, i64 name##_head, i64 name##_batch
#define STRIDES(name) name##_row, name##_head, name##_batch

typedef Side<true, KEYS_CONSUMERS, KEYS_WIDE, KEYS_STAGES, KEYS_OVERLAP> OfKeys;
typedef Side<false, QUERIES_CONSUMERS, QUERIES_WIDE, QUERIES_STAGES, QUERIES_OVERLAP> OfQueries;

extern "C" __global__ void __launch_bounds__((KEYS_CONSUMERS + 1) * 128, KEYS_BLOCKS) keys(
    const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap q,
    const __grid_constant__ TensorMap dout, PARAMETERS, RESULT(dk), RESULT(dv)
) {
    extern __shared__ char memory[];
    const Problem p(PROBLEM);
    const Piece<OfKeys> w(p);
    const Shared<OfKeys> s(memory);
    const Maps maps{&k, &v, &q, &dout};
    prepare(s, maps);
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp >= KEYS_CONSUMERS * 4) {
        registers_down<KEYS_DOWN>();
        if (threadIdx.x == KEYS_CONSUMERS * 128) {
            wait_for_launch_before();
            next_may_begin();
            produce(p, w, s, maps);
        }
    } else {
        registers_up<KEYS_REGISTERS>();
        Consumer<OfKeys> consumer(p, w, s, warp / 4);
        consumer.run();
        consumer.store(consumer.dv, dv, STRIDES(dv), 1);
        consumer.store(consumer.sums, dk, STRIDES(dk), p.factor);
    }
}

extern "C" __global__ void __launch_bounds__((QUERIES_CONSUMERS + 1) * 128, QUERIES_BLOCKS) queries(
    const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap dout, const __grid_constant__ TensorMap k,
    const __grid_constant__ TensorMap v, PARAMETERS, RESULT(dq)
) {
    extern __shared__ char memory[];
    const Problem p(PROBLEM);
    const Piece<OfQueries> w(p);
    const Shared<OfQueries> s(memory);
    const Maps maps{&q, &dout, &k, &v};
    prepare(s, maps);
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp >= QUERIES_CONSUMERS * 4) {
        registers_down<QUERIES_DOWN>();
        if (threadIdx.x == QUERIES_CONSUMERS * 128) {
            produce(p, w, s, maps);
            wait_for_launch_before();
        }
    } else {
        registers_up<QUERIES_REGISTERS>();
        Consumer<OfQueries> consumer(p, w, s, warp / 4);
        consumer.run();
        consumer.store(consumer.sums, dq, STRIDES(dq), p.factor);
    }
}

// Eight lanes a query, of `pitch` in each head. Of one that there is not, or that sees no key, weights are to be zero.
extern "C" __global__ void __launch_bounds__(256, 4) sums(
    const TYPE* out, i64 out_row, i64 out_head, i64 out_batch, const TYPE* dout, i64 dout_row, i64 dout_head,
    i64 dout_batch, const float* lse, Sums* to, int batch, int heads, int queries, int pitch
) {
    next_may_begin();
    const i64 at = (i64)blockIdx.x * 32 + threadIdx.x / 8;
    if (at - threadIdx.x / 8 % 4 >= (i64)batch * heads * pitch) return;  // a whole warp
    const i64 of = at / pitch, query = at - of * pitch, b = of / heads, h = of - b * heads;
    const bool real = of < (i64)batch * heads && query < queries;
    float sum = 0;
    if (real) {
        const TYPE* one = out + b * out_batch + h * out_head + query * out_row;
        const TYPE* two = dout + b * dout_batch + h * dout_head + query * dout_row;
#pragma unroll
        for (int i = 0; i < (D / 8 + 7) / 8; ++i) {
            const int chunk = i * 8 + threadIdx.x % 8;
            if (chunk >= D / 8) continue;
            struct alignas(16) Eight {
                TYPE v[8];
            };
            const Eight a = *reinterpret_cast<const Eight*>(one + chunk * 8), c = *reinterpret_cast<const Eight*>(two + chunk * 8);
#pragma unroll
            for (int e = 0; e < 8; ++e) sum += widen(a.v[e]) * widen(c.v[e]);
        }
    }
#pragma unroll
    for (int bit = 1; bit < 8; bit *= 2) sum += __shfl_xor_sync(~0u, sum, bit);
    if (of < (i64)batch * heads && threadIdx.x % 8 == 0) {
        const float own = real ? lse[of * queries + query] : infinity();
        to[at] = Sums{own == -infinity() ? infinity() : own * LOG2_E, sum};
    }
}
