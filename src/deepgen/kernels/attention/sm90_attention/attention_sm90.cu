// O = softmax(scale * Q K^T) V on Hopper's tensor cores, for each head of each batch.
//
// A block computes CONSUMERS * 64 rows of a head's result, BN keys at a time. One thread has the copy engine fetch the
// rows of Q once and tiles of K and V into two rings of STAGES buffers. Each consuming warpgroup has 64 rows: their
// products with K stay in registers, become weights there, and are the first operand of the product with V. Maxima and
// sums of rows run along (online softmax); results are divided by the sums at the end.
//
// OVERLAP    the next tile's product with K runs beside this one's with V, while weights are computed
// PING_PONG  warpgroups put their products in line in turns, so that one computes weights while the other multiplies
// DYNAMIC    blocks draw tiles of rows, longest first; else they are dealt in that order
// SLACK      a row's maximum stays, as binary exponents go, until it is exceeded by more than this: results are scaled
//            rarely
// SELDOM     maxima are not looked for, unless sums of weights tell that some may have grown too large: scores are then
//            computed again
// OFFSET     of the maximum's weight, as binary exponents go
// EIGHT      numbers have 8 bits: an earlier launch has transposed tiles of V, see `values.h`
//
// A barrier `full` tells that bytes have come, `empty` that all have used them. The knobs are macros; `lower.py` gives
// them all.
#include "values.h"

// Where in a ring of stages someone is.
struct Place {
    int stage = 0;
    u32 phase = 0;
    DG_DEVICE void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

// The block's shared memory, as addresses.
struct Shared {
    u32 q, k, v, q_full, q_empty, k_full, k_empty, v_full, v_empty;
    volatile Piece* piece;  // of each consumer: what it is to do next
    DG_DEVICE Shared(char* memory) {
        u32 start = shared_address(memory);
        q = (start + 1023) & ~1023u;
        k = q + CONSUMERS * Q_BYTES;
        v = k + STAGES * K_BYTES;
        q_full = v + STAGES * V_BYTES;
        q_empty = q_full + CONSUMERS * 8;
        k_full = q_empty + CONSUMERS * 8;
        k_empty = k_full + STAGES * 8;
        v_full = k_empty + STAGES * 8;
        v_empty = v_full + STAGES * 8;
        piece = reinterpret_cast<volatile Piece*>(memory + (v_empty + STAGES * 8 - start));
    }
};

template <int ATOMS, int ROWS>
DG_DEVICE void get_tile(u32 to, const TensorMap* map, u32 barrier, int row, int head, int batch) {
#pragma unroll
    for (int i = 0; i < ATOMS; ++i) fetch_rows(to + i * (ROWS * 128), map, barrier, i * ATOM, row, head, batch);
}
DG_DEVICE void get_values(u32 to, const TensorMap* map, u32 barrier, int tile, const Piece& w, const Problem&) {
    get_tile<V_ATOMS, BN>(to, map, barrier, tile * BN, w.group, w.batch);
}
DG_DEVICE void get_values(u32 to, const char* transposed, u32 barrier, int tile, const Piece& w, const Problem& p) {
    const i64 head = (i64)w.batch * (p.heads / p.per_group) + w.group;
    fetch_bytes(to, transposed + (head * ((p.keys + BN - 1) / BN) + tile) * V_BYTES, V_BYTES, barrier);
}

template <class Values>
DG_DEVICE void produce(const Problem& p, const Shared& s, const TensorMap* q, const TensorMap* k, Values v) {
    Place of_k, of_v;
    u32 phase = 1;
    int tile = blockIdx.x;
    for (;;) {
        bool any = tile < p.tiles;
        // Asked for early: the answer takes as long as a tile of K does.
        int next = !any ? 0 : DYNAMIC ? gridDim.x + add_and_publish(p.drawn, p.tiles - 1) : tile + gridDim.x;
        Piece w(p, any ? tile : 0);
#pragma unroll
        for (int c = 0; c < CONSUMERS; ++c) {
            barrier_wait(s.q_empty + c * 8, phase);
            s.piece[c].row = any ? w.row : -1;
            if (any) {
                s.piece[c].head = w.head, s.piece[c].batch = w.batch;
                s.piece[c].first = w.first, s.piece[c].end = w.end;
                barrier_expect(s.q_full + c * 8, Q_BYTES);
                get_tile<ATOMS, 64>(s.q + c * Q_BYTES, q, s.q_full + c * 8, w.row + c * 64, w.head, w.batch);
            } else {
                barrier_arrive(s.q_full + c * 8);
            }
        }
        if (!any) return;
        phase ^= 1;
#pragma unroll 1
        for (int j = w.end - 1; j >= w.first - 1; --j) {
            if (j >= w.first) {
                u32 full = s.k_full + of_k.stage * 8;
                barrier_wait(s.k_empty + of_k.stage * 8, of_k.phase ^ 1);
                barrier_expect(full, K_BYTES);
                get_tile<ATOMS, BN>(s.k + of_k.stage * K_BYTES, k, full, j * BN, w.group, w.batch);
                of_k.advance();
            }
            if (j < w.end - 1) {
                u32 full = s.v_full + of_v.stage * 8;
                barrier_wait(s.v_empty + of_v.stage * 8, of_v.phase ^ 1);
                barrier_expect(full, V_BYTES);
                get_values(s.v + of_v.stage * V_BYTES, v, full, j + 1, w, p);
                of_v.advance();
            }
        }
        tile = next;
    }
}

DG_DEVICE void release(u32 empty) {
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}

// What a warpgroup computes with: its place in the rings, and its numbers.
struct Consumer {
    const Problem& p;
    const Shared& s;
    int group;
    u64 q, k, v;  // descriptors
    Place of_k, of_v;
    u32 phase;
    float sums[DV / 2];       // of the result
    float scores[BN / 2];
    u32 weights[BN * SIZE / 8];
    u32 queries[Q_REGISTERS ? D_STEPS * 4 : 1];

    DG_DEVICE Consumer(const Problem& p, const Shared& s, int group) : p(p), s(s), group(group), phase(0) {
        q = operand<128>(s.q + group * Q_BYTES, 16, 1024);
        k = operand<128>(s.k, 16, 1024);
        v = EIGHT ? operand<V_LINE>(s.v, 16, 8 * V_LINE) : operand<128>(s.v, BN * 128, 1024);
    }

    // The rows of Q as operands in registers: its buffer is free for the next.
    DG_DEVICE void load_queries() {
        int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 16, half = threadIdx.x % 32 / 16;
        u32 from = s.q + group * Q_BYTES + row * 128;
#pragma unroll
        for (int i = 0; i < D_STEPS; ++i)
            load_matrices(from + i / 4 * (64 * 128) + (((i % 4 * 2 + half) ^ (row & 7)) << 4), &queries[i * 4]);
        release(s.q_empty + group * 8);
    }

    // The products with a tile of K are put in line.
    DG_DEVICE void multiply_keys() {
        u64 tile = k + ((u32)(of_k.stage * K_BYTES) >> 4);
        barrier_wait(s.k_full + of_k.stage * 8, of_k.phase);
        products_begin();
#pragma unroll
        for (int i = 0; i < D_STEPS; ++i) {
            u64 keys = tile + ((i / 4 * (BN * 128) + i % 4 * 32) >> 4);
#if Q_REGISTERS
            product_keys(scores, &queries[i * 4], keys, i > 0);
#else
            product_keys(scores, q + ((i / 4 * (64 * 128) + i % 4 * 32) >> 4), keys, i > 0);
#endif
        }
        products_commit();
    }
    // Those of the weights with a tile of V. The turn ends before the last ones of them: the next has its own in line
    // when they are done.
    DG_DEVICE void multiply_values(bool last = false) {
        u64 tile = v + ((u32)(of_v.stage * V_BYTES) >> 4);
        barrier_wait(s.v_full + of_v.stage * 8, of_v.phase);
        products_begin();
#pragma unroll
        for (int i = 0; i < V_STEPS; ++i) {
            if (EARLY && i == max(V_STEPS - EARLY, 0) && !last && OVERLAP) turn_ends();
            product_values(sums, &weights[i * 4], tile + ((EIGHT ? values_step(i) : i * 2048) >> 4));
        }
        products_commit();
    }
#if SELDOM
    // Scores of a tile whose products are done, once more, by a warp alone.
    DG_DEVICE void multiply_again() {
        const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
        const u32 keys = s.k + of_k.stage * K_BYTES + lane / 4 * 128 + lane % 4 * 4, rows = s.q + group * Q_BYTES + row * 128;
#pragma unroll
        for (int n = 0; n < BN / 2; ++n) scores[n] = 0;
#pragma unroll
        for (int i = 0; i < D_STEPS; ++i) {
            u32 q[4];
            if (Q_REGISTERS)
#pragma unroll
                for (int e = 0; e < 4; ++e) q[e] = queries[Q_REGISTERS ? i * 4 + e : 0];
            else
                load_matrices(rows + i / 4 * (64 * 128) + (((i % 4 * 2 + lane / 16) ^ (row & 7)) << 4), q);
#pragma unroll
            for (int n = 0; n < BN / 8; ++n) {
                const u32 from = keys + i / 4 * (BN * 128) + n * 1024;
                const int chunk = i % 4 * 2, other = lane / 4;  // of the key's line, and how it is swizzled
                product_again(&scores[n * 4], q, load_shared<u32>(from + ((chunk ^ other) << 4)),
                              load_shared<u32>(from + (((chunk + 1) ^ other) << 4)));
            }
        }
    }
#endif
    // Values after a batch's last key may be anything, infinite too. Weights of zero make nothing of them as zeros.
    // Every warpgroup writes the same zeros before it multiplies.
    DG_DEVICE void clear_values(int keys) {
        barrier_wait(s.v_full + of_v.stage * 8, of_v.phase);
        u32 tile = s.v + of_v.stage * V_BYTES;
#pragma unroll
        for (int atom = 0; atom < V_ATOMS; ++atom)
            for (int at = keys * 128 + threadIdx.x % 128 * 16; at < BN * 128; at += 128 * 16)
                store_shared(tile + atom * (BN * 128) + at, uint4{0, 0, 0, 0});
        writes_ready();
        meet(1 + CONSUMERS + group, 128);
    }
    DG_DEVICE void keys_done() {
        scores_done();
        keys_used();
    }
    DG_DEVICE void keys_used() {
        release(s.k_empty + of_k.stage * 8);
        of_k.advance();
    }
    DG_DEVICE void scores_done() {
#pragma unroll
        for (int i = 0; i < BN / 2; ++i) pin(scores[i]);
    }
    DG_DEVICE void values_done() {
        release(s.v_empty + of_v.stage * 8);
        of_v.advance();
#pragma unroll
        for (int i = 0; i < DV / 2; ++i) pin(sums[i]);
    }
    DG_DEVICE void turn_begins() {
        if (PING_PONG) meet(1 + group, 256);
    }
    DG_DEVICE void turn_ends() {
        if (PING_PONG) notify(1 + (group + 1 == CONSUMERS ? 0 : group + 1), 256);
    }
    DG_DEVICE void pack() {
#if EIGHT
#pragma unroll
        for (int i = 0; i < BN / 8; ++i) {  // of two neighbouring eights of keys, a row's
            const float* of = scores + i / 2 * 8 + i % 2 * 2;
            weights[i] = four_numbers(of[0], of[1], of[4], of[5]);
        }
#else
#pragma unroll
        for (int i = 0; i < BN / 4; ++i) weights[i] = Pair<TYPE>(scores[2 * i], scores[2 * i + 1]).bits;
#endif
    }

    DG_DEVICE void run() {
        if (PING_PONG && group == CONSUMERS - 1) turn_ends();  // the first warpgroup begins
        for (;;) {
            barrier_wait(s.q_full + group * 8, phase);
            phase ^= 1;
            Piece w;
            w.row = s.piece[group].row;
            if (w.row < 0) return;
            w.head = s.piece[group].head, w.batch = s.piece[group].batch;
            w.first = s.piece[group].first, w.end = s.piece[group].end;
            if (Q_REGISTERS) load_queries();
#if EIGHT
            const Problem own = p.of_head(w.batch, w.head);
#else
            const Problem& own = p.of_batch(w.batch);
#endif
            Rows rows(own, w, w.row + group * 64);
#pragma unroll
            for (int i = 0; i < DV / 2; ++i) sums[i] = 0;
            if (w.first < w.end) {
                int j = w.end - 1;
                multiply_keys();
                products_wait<0>();
                keys_done();
                rows.weigh(own, scores, j);
                pack();
                if (LENGTHS && !EIGHT && own.keys < w.end * BN) clear_values(own.keys - j * BN);
#pragma unroll 1
                while (!SINGLE && --j >= w.first) {
                    if (OVERLAP) {
                        turn_begins();
                        multiply_keys();
                        multiply_values();
                        if (!EARLY) turn_ends();
                        products_wait<1>();
#if SELDOM
                        scores_done();
                        // The wait is on both sides, as below.
                        if (rows.weigh_as_before(own, scores, j)) {
                            products_wait<0>();
                            values_done();
                        } else {
                            products_wait<0>();
                            values_done();
                            multiply_again();
                            float scales[2];
                            if (rows.weigh(own, scores, j, scales)) rows.scale(sums, scales);
                        }
                        keys_used();
                        pack();
#else
                        keys_done();
                        float scales[2];
                        // The wait is on both sides: a compiler moves it up to the last branch, before all that it
                        // is to run beside.
                        if (rows.weigh(own, scores, j, scales)) {
                            products_wait<0>();
                            values_done();
                            rows.scale(sums, scales);
                        } else {
                            products_wait<0>();
                            values_done();
                        }
                        pack();
#endif
                    } else {
                        turn_begins();
                        multiply_values();
                        multiply_keys();
                        turn_ends();
                        products_wait<0>();
                        values_done();
                        keys_done();
                        float scales[2];
                        if (rows.weigh(own, scores, j, scales)) rows.scale(sums, scales);
                        pack();
                    }
                }
                if (!Q_REGISTERS) release(s.q_empty + group * 8);
                multiply_values(true);
                products_wait<0>();
                values_done();
            } else if (!Q_REGISTERS) {
                release(s.q_empty + group * 8);
            }
            rows.store(own, w, sums);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) attention(
    const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
#if EIGHT
    const char* v,
#else
    const __grid_constant__ TensorMap v,
#endif
    RESULT* o, u32* drawn, i64 o_row, i64 o_head, i64 o_batch, int batch, int heads, int per_group, int rows, int keys,
    int together, int window, float scale, float cap, const RESULT* bias, i64 bias_batch, i64 bias_head, i64 bias_row,
    i64 bias_key, const float* slopes, const float* sinks, float* lse, const int* lengths
#if EIGHT
    , const float* q_scales, i64 q_scales_batch, i64 q_scales_head, const float* k_scales, i64 k_scales_batch,
    i64 k_scales_head, const float* v_scales, i64 v_scales_batch, i64 v_scales_head
#endif
) {
    extern __shared__ char memory[];
    Problem p(o, drawn, o_row, o_head, o_batch, batch, heads, per_group, rows, keys, together, window, scale, cap,
                    Options{bias, bias_batch, bias_head, bias_row, bias_key, slopes, sinks, lse, lengths});
#if EIGHT
    p.of_q = Scales{q_scales, q_scales_batch, q_scales_head};
    p.of_k = Scales{k_scales, k_scales_batch, k_scales_head};
    p.of_v = Scales{v_scales, v_scales_batch, v_scales_head};
    const char* of_v = v;
#else
    const TensorMap* of_v = &v;
#endif
    const Shared s(memory);
    int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (threadIdx.x == CONSUMERS * 128) {
        prefetch_map(&q);
        prefetch_map(&k);
        if (!EIGHT) prefetch_map((const TensorMap*)of_v);
#pragma unroll
        for (int i = 0; i < CONSUMERS; ++i) barrier_init(s.q_full + i * 8, 1), barrier_init(s.q_empty + i * 8, 4);
#pragma unroll
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(s.k_full + i * 8, 1), barrier_init(s.k_empty + i * 8, CONSUMERS * 4);
            barrier_init(s.v_full + i * 8, 1), barrier_init(s.v_empty + i * 8, CONSUMERS * 4);
        }
        barriers_ready();
    }
    __syncthreads();
    if (warp >= CONSUMERS * 4) {
        registers_down<REGISTERS_DOWN>();
        if (threadIdx.x == CONSUMERS * 128) {
            if (EIGHT) wait_for_launch_before();
            produce(p, s, &q, &k, of_v);
        }
    } else {
        registers_up<REGISTERS>();
        Consumer consumer(p, s, warp / 4);
        consumer.run();
    }
}
