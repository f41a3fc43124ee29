// What a block does in one go, and what a thread knows of its two rows: maxima, sums, which keys they see.
#pragma once
#include "instructions.h"
#include "products.h"

constexpr int BM = CONSUMERS * 64, THREADS = (CONSUMERS + 1) * 128;
constexpr int SIZE = EIGHT ? 1 : 2, ATOM = 128 / SIZE;  // bytes of a number, and how many of them a line has
constexpr int ATOMS = (D + ATOM - 1) / ATOM, V_ATOMS = (DV + 63) / 64, D_STEPS = (D * SIZE + 31) / 32;
constexpr int Q_BYTES = ATOMS * 64 * 128, K_BYTES = ATOMS * BN * 128;  // Q: a warpgroup's
constexpr int V_BYTES = EIGHT ? BN * DV : V_ATOMS * BN * 128;
constexpr int V_STEPS = BN * SIZE / 32;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LEAST = 1e-30f;  // sums of weights are larger, but for rows that see no key
constexpr float C1 = 0.69328293f, C2 = 0.24221106f, C3 = 0.05500897f;  // of 2^f, |f| <= 1 / 2

// The same by a polynomial, up to 1e-4 of it, on the units that multiply: there are eight times as many of these.
DG_DEVICE float exponential_by_products(float x) {
    x = fmaxf(x, -127);  // which gives zero
    float nearest = x + 12582912.0f, f = x - (nearest - 12582912.0f);
    float y = ((C3 * f + C2) * f + C1) * f + 1;
    return __int_as_float(__float_as_int(y) + (__float_as_int(nearest) << 23));
}

// What is added to scores, and to their sums; where the logarithms of these go.
struct Options {
    const RESULT* bias;
    i64 bias_batch, bias_head, bias_row, bias_key;
    const float *slopes, *sinks;
    float* lse;
    const int* lengths;
};

// What numbers of 8 bits are multiplied by, for each head of each batch; or 1.
struct Scales {
    const float* at = nullptr;
    i64 batch = 0, head = 0;
    DG_DEVICE float of(int b, int h) const { return at ? at[b * batch + h * head] : 1.0f; }
};

// The run-time arguments, and what follows from them.
struct Problem {
    Options options;
    RESULT* o;
    u32* drawn;  // how many tiles blocks have drawn: zero before and after every run
    i64 o_row, o_head, o_batch;
    int heads, all_heads, per_group, rows, keys, together, window;
    int row_tiles, tiles, shift;  // shift: of a row's own place among keys
    float scale, cap;             // to binary exponents; with a cap, what its hyperbolic tangent takes comes first
    Scales of_q, of_k, of_v;

    DG_DEVICE Problem(RESULT* o, u32* drawn, i64 o_row, i64 o_head, i64 o_batch, int batch, int heads, int per_group,
                      int rows, int keys, int together, int window, float scale, float cap, const Options& options)
        : options(options), o(o), drawn(drawn), o_row(o_row), o_head(o_head), o_batch(o_batch), heads(heads), all_heads(batch * heads),
          per_group(per_group), rows(rows), keys(keys), together(together), window(window) {
        row_tiles = (rows + BM - 1) / BM;
        tiles = row_tiles * all_heads;
        shift = keys - rows;
        this->scale = SOFTCAP ? cap * LOG2_E : scale * LOG2_E;
        this->cap = SOFTCAP ? 2 * LOG2_E * scale / cap : 0;
    }
#if LENGTHS
    // With as many keys as a batch has.
    DG_DEVICE Problem of_batch(int batch) const {
        Problem own = *this;
        own.keys = min(max(options.lengths[batch], 0), keys);
        own.shift = own.keys - rows;
        return own;
    }
#else
    DG_DEVICE const Problem& of_batch(int) const { return *this; }
#endif
    // With a head's own scale of scores.
    DG_DEVICE Problem of_head(int batch, int head) const {
        Problem own = of_batch(batch);
        const float by = of_q.of(batch, head) * of_k.of(batch, head / per_group);
        if (SOFTCAP)
            own.cap *= by;
        else  // never zero: hidden scores are minus infinity, which zero times is no number
            own.scale = fmaxf(own.scale * by, LEAST);
        return own;
    }
    // The keys that a row sees: from `low` to before `high`.
    DG_DEVICE int low(int row) const { return WINDOW ? max(0, row + shift - window + 1) : 0; }
    DG_DEVICE int high(int row) const {
        return CAUSAL ? min(keys, row + shift + 1) : WINDOW ? min(keys, row + shift + window) : keys;
    }
};

// A tile of rows, and the tiles of keys that they see. Some heads at a time, `together`, go through their rows from the
// longest, so that what they share stays in the L2 cache.
struct Piece {
    int row, head, batch, group, first, end;
    Piece() = default;
    DG_DEVICE Piece(const Problem& p, int tile) {
        int round = p.together * p.row_tiles, begun = tile / round * p.together, left = tile - tile / round * round;
        int width = min(p.together, p.all_heads - begun), at = left / width, of = begun + left - at * width;
        row = (CAUSAL ? p.row_tiles - 1 - at : at) * BM;
        batch = of / p.heads;
        head = of - batch * p.heads;
        group = head / p.per_group;
        const Problem& own = p.of_batch(batch);
        first = own.low(row) / BN;
        end = (max(0, own.high(min(row + BM, p.rows) - 1)) + BN - 1) / BN;
    }
};

// Of a thread: rows `row` and `row + 8` of a warpgroup's 64, of each eight columns two.
struct Rows {
    int row, column, top;
    float most[2], total[2];
    float slope, by;     // as scores are before they are scaled; what that takes
    const RESULT* bias;  // of the head

    DG_DEVICE Rows(const Problem& p, const Piece& w, int top) : top(top) {
        int lane = threadIdx.x % 32;
        row = top + threadIdx.x / 32 % 4 * 16 + lane / 4;
        column = lane % 4 * 2;
        most[0] = most[1] = -infinity();
        total[0] = total[1] = 0;
        if (ALIBI || BIAS) by = LOG2_E / p.scale;
        if (ALIBI) slope = p.options.slopes[w.head] * by;
        if (BIAS) bias = p.options.bias + w.batch * p.options.bias_batch + w.head * p.options.bias_head;
    }

    DG_DEVICE void add(const Problem& p, float (&scores)[BN / 2], int j) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int i = 0; i < BN / 4; ++i) {
                float& score = scores[i / 2 * 4 + r * 2 + i % 2];
                int key = j * BN + i / 2 * 8 + column + i % 2, line = row + 8 * r;
                if (ALIBI) score -= slope * (float)abs(line + p.shift - key);
                if (BIAS && key < p.keys && line < p.rows)
                    score += widen(bias[line * p.options.bias_row + key * p.options.bias_key]) * by;
            }
    }

    DG_DEVICE void mask(const Problem& p, float (&scores)[BN / 2], int j) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            int low = p.low(row + 8 * r) - j * BN - column, high = p.high(row + 8 * r) - j * BN - column;
#pragma unroll
            for (int i = 0; i < BN / 8; ++i)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    if (i * 8 + e >= high || (WINDOW && i * 8 + e < low)) scores[i * 4 + r * 2 + e] = -infinity();
        }
    }

    // What comes before maxima.
    DG_DEVICE void settle(const Problem& p, float (&scores)[BN / 2], int j) {
        if (SOFTCAP) {
#pragma unroll
            for (int i = 0; i < BN / 2; ++i)
                scores[i] = 1 - 2 * reciprocal(exponential(scores[i] * p.cap) + 1);
        }
        if (ALIBI || BIAS) add(p, scores, j);
        if ((j + 1) * BN > p.high(top) || (WINDOW && j * BN < p.low(top + 63))) mask(p, scores, j);
    }
    // A row's maximum. What has been added up so far is to be scaled, if it grows.
    DG_DEVICE bool raise(const Problem& p, const float (&scores)[BN / 2], int r, float& scale) {
        float largest = scores[r * 2], other = scores[r * 2 + 1];  // of even columns, of odd ones
#pragma unroll
        for (int i = 1; i < BN / 8; ++i) {
            largest = fmaxf(largest, scores[i * 4 + r * 2]);
            other = fmaxf(other, scores[i * 4 + r * 2 + 1]);
        }
        largest = fmaxf(largest, other);
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        float before = most[r];
        // Of a row that sees nothing so far the maximum is below all numbers.
        bool grows = SLACK ? (largest - before) * p.scale > SLACK : largest > before;
        if (grows) most[r] = largest;
        scale = grows ? exponential((before - largest) * p.scale) : 1.0f;
        return grows;
    }
    // A row's scores become weights; their sum.
    DG_DEVICE float exponentials(const Problem& p, float (&scores)[BN / 2], int r, float base) {
        float sum[2] = {};
#pragma unroll
        for (int i = 0; i < BN / 4; ++i) {
            float& score = scores[i / 2 * 4 + r * 2 + i % 2];
            float exponent = score * p.scale - base;
            score = i * POLYNOMIALS % 16 < POLYNOMIALS ? exponential_by_products(exponent) : exponential(exponent);
            sum[i % 2] += score;
        }
        return sum[0] + sum[1];
    }

    // Scores of a tile of keys become weights. What has been added up so far is to be scaled, if any row's is.
    DG_DEVICE bool weigh(const Problem& p, float (&scores)[BN / 2], int j, float (&scales)[2]) {
        settle(p, scores, j);
        bool any = false;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            any |= raise(p, scores, r, scales[r]);
            float base = most[r] == -infinity() ? 0 : most[r] * p.scale - OFFSET;
            total[r] = total[r] * scales[r] + exponentials(p, scores, r, base);
        }
        // Never less than 0, but so the answer comes after all weights.
        return __any_sync(~0u, any || total[0] + total[1] < 0);
    }
    // The same by maxima as they are. False, and nothing is added up, where weights may be larger than LARGEST, or where
    // a row has seen nothing: its maximum makes them infinite, or no numbers.
    DG_DEVICE bool weigh_as_before(const Problem& p, float (&scores)[BN / 2], int j) {
        settle(p, scores, j);
        float sums[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) sums[r] = exponentials(p, scores, r, most[r] * p.scale - OFFSET);
        if (__any_sync(~0u, !(sums[0] <= LARGEST && sums[1] <= LARGEST))) return false;
#pragma unroll
        for (int r = 0; r < 2; ++r) total[r] += sums[r];
        return true;
    }
    DG_DEVICE void weigh(const Problem& p, float (&scores)[BN / 2], int j) {
        float scales[2];
        weigh(p, scores, j, scales);
    }

    static DG_DEVICE void scale(float (&sums)[DV / 2], const float (&scales)[2]) {
#pragma unroll
        for (int i = 0; i < DV / 2; ++i) sums[i] *= scales[i / 2 % 2];
    }

    // Lanes of a row exchange pairs, so that each has eight columns in a row: 16 bytes.
    DG_DEVICE void store(const Problem& p, const Piece& w, const float (&sums)[DV / 2]) {
        int lane = threadIdx.x % 4;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float all = total[r] + __shfl_xor_sync(~0u, total[r], 1);
            all += __shfl_xor_sync(~0u, all, 2);
            float by = all > LEAST ? reciprocal(all) : 0;
            if (SINKS || LSE) {
                // Binary logarithms: of what all weights are a share of.
                float base = all > LEAST ? most[r] * p.scale - OFFSET : 0, whole = all > LEAST ? base + logarithm(all) : -infinity();
                if (SINKS) {
                    float sink = p.options.sinks[w.head] * LOG2_E, top = fmaxf(whole, sink);
                    if (top > -infinity()) whole = top + logarithm(exponential(whole - top) + exponential(sink - top));
                    by = all > LEAST ? exponential(base - whole) : 0;
                }
                if (LSE && lane == 0 && row + 8 * r < p.rows)
                    p.options.lse[((i64)w.batch * p.heads + w.head) * p.rows + row + 8 * r] = whole / LOG2_E;
            }
            if (EIGHT) by *= p.of_v.of(w.batch, w.head / p.per_group);
            RESULT* to = p.o + w.batch * p.o_batch + w.head * p.o_head + (row + 8 * r) * p.o_row;
#pragma unroll
            for (int i = 0; i < DV / 8; i += 4) {
                u32 v[4];
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    int from = min(i + c, DV / 8 - 1) * 4 + r * 2;
                    v[c] = Pair<RESULT>(sums[from] * by, sums[from + 1] * by).bits;
                }
#pragma unroll
                for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
                    for (int c = 0; c < 4; ++c)
                        if (!(c & bit)) {
                            bool odd = lane & bit;
                            u32 come = __shfl_xor_sync(~0u, odd ? v[c] : v[c | bit], bit);
                            if (odd)
                                v[c] = come;
                            else
                                v[c | bit] = come;
                        }
                if (row + 8 * r < p.rows && i + lane < DV / 8)
                    *reinterpret_cast<uint4*>(to + (i + lane) * 8) = uint4{v[0], v[1], v[2], v[3]};
            }
        }
    }
};
