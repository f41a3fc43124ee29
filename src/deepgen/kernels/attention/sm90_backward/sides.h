// What a block of either launch does: whose rows it owns, and which tiles of the other side it goes over.
#pragma once
#include "copies.h"
#include "products.h"

constexpr int ATOMS = (D + 63) / 64, STEPS = (D + 15) / 16;
constexpr int OWN_BYTES = ATOMS * 64 * 128;  // of a tensor, of a warpgroup
constexpr float LOG2_E = 1.4426950408889634f;

// Of each query its log-sum-exp in binary, and the sum of dO * O.
struct alignas(8) Sums {
    float lse, delta;
};
DG_DEVICE Sums load_sums(const Sums* from) {
    const float2 two = load_pair(from);
    return Sums{two.x, two.y};
}

// The run-time arguments. `pitch`: rows of `sums` of a head.
struct Problem {
    const Sums* sums;
    int heads, per_group, queries, keys, window, pitch, shift;
    float scale, cap, factor;  // to binary exponents; with a cap, what its hyperbolic tangent takes; of dQ and dK

    DG_DEVICE Problem(const Sums* sums, int heads, int per_group, int queries, int keys, int window, int pitch,
                      float scale, float cap)
        : sums(sums), heads(heads), per_group(per_group), queries(queries), keys(keys), window(window), pitch(pitch),
          shift(keys - queries), factor(scale) {
        this->scale = SOFTCAP ? cap * LOG2_E : scale * LOG2_E;
        this->cap = SOFTCAP ? 2 * LOG2_E * scale / cap : 0;
    }
};

enum { NONE, SCORES, ALL };  // what OVERLAP may be

// A side as constants: OF_KEYS tells whose rows a block owns, 64 for each of CONSUMERS warpgroups; tiles of the other
// side have WIDE rows, STAGES of them in flight.
template <bool OF_KEYS_, int CONSUMERS_, int WIDE_, int STAGES_, int OVERLAP_>
struct Side {
    static constexpr bool OF_KEYS = OF_KEYS_;
    static constexpr int OVERLAP = OVERLAP_;
    static constexpr int CONSUMERS = CONSUMERS_, WIDE = WIDE_, STAGES = STAGES_, OWN = CONSUMERS * 64;
    static constexpr int TILE = ATOMS * WIDE * 128, SUMS = OF_KEYS ? WIDE * 8 : 0;

    // Of a row those of the other side that see it, or that it sees: from `low` to before `high`.
    static DG_DEVICE int low(const Problem& p, int row) {
        if (OF_KEYS) return CAUSAL ? row - p.shift : WINDOW ? row - p.shift - p.window + 1 : 0;
        return WINDOW ? row + p.shift - p.window + 1 : 0;
    }
    static DG_DEVICE int high(const Problem& p, int row) {
        if (OF_KEYS) return WINDOW ? min(p.queries, row - p.shift + p.window) : p.queries;
        return CAUSAL ? min(p.keys, row + p.shift + 1) : WINDOW ? min(p.keys, row + p.shift + p.window) : p.keys;
    }
};

// The block's part of the problem.
template <class S>
struct Piece {
    int row, head, batch;       // the first row it owns; of a head of K, or of Q
    int first, tiles, heads;    // tiles of the other side from `first` on, of so many heads
    int begun;                  // the first of these heads

    DG_DEVICE Piece(const Problem& p) {
        const int own = S::OF_KEYS ? p.keys : p.queries, parts = (own + S::OWN - 1) / S::OWN;
        const int all = S::OF_KEYS ? p.heads / p.per_group : p.heads, at = blockIdx.x / parts, part = blockIdx.x - at * parts;
        batch = at / all, head = at - batch * all;
        row = (CAUSAL && !S::OF_KEYS ? parts - 1 - part : part) * S::OWN;  // the longest first
        const int low = max(0, S::low(p, row)), high = S::high(p, min(row + S::OWN, own) - 1);
        first = low / S::WIDE;
        tiles = high > low ? (high + S::WIDE - 1) / S::WIDE - first : 0;
        heads = S::OF_KEYS ? p.per_group : 1;
        begun = S::OF_KEYS ? head * p.per_group : head / p.per_group;
    }
};

// The block's shared memory, as addresses.
template <class S>
struct Shared {
    u32 one, two, other_one, other_two, sums, own_full, one_full, two_full, empty;
    DG_DEVICE Shared(char* memory) {
        one = (shared_address(memory) + 1023) & ~1023u;
        two = one + S::CONSUMERS * OWN_BYTES;
        other_one = two + S::CONSUMERS * OWN_BYTES;
        other_two = other_one + S::STAGES * S::TILE;
        sums = other_two + S::STAGES * S::TILE;
        own_full = sums + S::STAGES * S::SUMS;
        one_full = own_full + 8;
        two_full = one_full + S::STAGES * 8;
        empty = two_full + S::STAGES * 8;
    }
};

// Where in a ring of stages someone is.
template <int STAGES>
struct Place {
    int stage = 0;
    u32 phase = 0;
    DG_DEVICE void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};
