// From sums to C: parts of K are added up, then alpha, scale, beta, bias and activation, rounding and storing.
//
// A warpgroup holds 64 rows of sums at a time. Thread t has, of every eight columns (a chunk), two neighbours in row
// 16 * (t / 32) + t % 32 / 4 and two in the row eight below.
#pragma once
#include "schedule.h"

typedef TYPE_ACC acc_t;

constexpr int CHUNKS = TILE_M / 64 * (BN / 8);   // of a thread
constexpr int OWN_CHUNKS = CHUNKS / CLUSTER_K;   // that are left to a block after its cluster has added up
constexpr int WORKERS = CONSUMERS * 128;

#define NONE 0
#define RELU 1
#define GELU 2
#define SILU 3
#define TENSOR 1
#define ROW 2
#define COLUMN 3

DG_DEVICE float activate(float x) {
    if (ACTIVATION == RELU) return x < 0.f ? 0.f : x;
    if (ACTIVATION == GELU) return x / (1.f + __expf(-1.5957691216f * (x + 0.044715f * x * x * x)));
    if (ACTIVATION == SILU) return x / (1.f + __expf(-x));
    return x;
}
DG_DEVICE int activate(int x) { return x; }

#if EPILOGUE
#if PAIRED
// What `pair_up` gives is rounded as it is.
template <int COUNT>
struct Finish {
    DG_DEVICE Finish(const Problem& p, i64 matrix, int row, int column) {}
    DG_DEVICE acc_t operator()(const Problem& p, int i, acc_t sum) const { return sum; }
};
#else
// What becomes of some chunks of sums before they are rounded.
template <int COUNT>
struct Finish {
    Operated<COUNT> operated;

    DG_DEVICE Finish() {}
    DG_DEVICE Finish(const Problem& p, i64 matrix, int row, int column) {
        operated.ask(p.operands, p.batch > 1 ? (int)(matrix / p.stride_c) : 0, p.m, p.n, row, column);
    }
    DG_DEVICE acc_t operator()(const Problem& p, int i, acc_t sum) const { return operated(i, p.alpha * sum); }
};
#endif
#else
// What becomes of some chunks of sums before they are rounded. All that is read from memory is asked for first, so that
// one wait serves them all.
template <int COUNT>
struct Finish {
    static constexpr bool READS = BETA || BIAS || SCALES;
    acc_t more[BETA || BIAS ? COUNT * 4 : 1];        // beta * C + bias
    float factor[SCALES == COLUMN ? COUNT * 2 : 2];  // alpha * scale

    // `row` and `column`: of the first sum. The chunks lie in one line of them.
    DG_DEVICE Finish(const Problem& p, i64 matrix, int row, int column) {
        factor[0] = factor[1] = 0.f;
#if BETA || BIAS
#pragma unroll
        for (int i = 0; i < COUNT * 4; ++i) {
            int r = row + i / 2 % 2 * 8, c = column + i / 4 * 8 + i % 2;
            more[i] = 0;
#if BETA
            if (r < p.m && c < p.n) more[i] += p.beta * widen(p.c[matrix + (i64)r * p.ldc + c]);
#endif
#if BIAS
            if (c < p.n) more[i] += widen(p.bias[c]);
#endif
        }
#endif
#if SCALES == TENSOR
        factor[0] = factor[1] = p.scale[0];
#elif SCALES == ROW
        if (row < p.m) factor[0] = p.scale[row];
        if (row + 8 < p.m) factor[1] = p.scale[row + 8];
#elif SCALES == COLUMN
#pragma unroll
        for (int i = 0; i < COUNT * 2; ++i) {
            int c = column + i / 2 * 8 + i % 2;
            factor[i] = c < p.n ? p.scale[c] : 0.f;
        }
#endif
    }

    // Sum i of the chunks, 0 to 4 * COUNT - 1.
    DG_DEVICE acc_t operator()(const Problem& p, int i, acc_t sum) const {
        acc_t x = p.alpha * sum;
#if SCALES
        x *= factor[SCALES == COLUMN ? i / 4 * 2 + i % 2 : i / 2 % 2];
#endif
#if BETA || BIAS
        x += more[i];
#endif
        return activate(x);
    }
};
#endif

// Two neighbours straight to memory, or the one that exists.
DG_DEVICE void store_two(const Problem& p, i64 matrix, int row, int column, acc_t a, acc_t b) {
    if (row >= p.m || column >= p.n) return;
    i64 place = matrix + (i64)row * p.ldc + column;
    bool both = column + 1 < p.n;
    Pair<TYPE_C> pair(a, b);
    if (both && ((p.ldc | (int)p.stride_c) & 1) == 0) {
        *reinterpret_cast<Pair<TYPE_C>*>(p.c + place) = pair;
    } else {
        p.c[place] = pair.first();
        if (both) p.c[place + 1] = pair.second();
    }
}

// Chunks `begin` and on of a thread's sums, straight to memory.
template <int COUNT>
DG_DEVICE void store_straight(const Problem& p, const Piece& w, int row, const acc_t (&sums)[COUNT * 4], int begin) {
    // Those of a group lie in one line: a line has a multiple of them.
    constexpr int ALL = BN / 8, GROUP_OF = COUNT % 4 == 0 && ALL % 4 == 0 ? 4 : COUNT % 2 == 0 && ALL % 2 == 0 ? 2 : 1;
    int lane = threadIdx.x % 32;
    i64 matrix = w.batch * p.stride_c;
    row += w.m + lane / 4;
#pragma unroll
    for (int j = 0; j < COUNT; j += GROUP_OF) {
        int chunk = begin + j, r = row + chunk / ALL * 64, column = w.n + chunk % ALL * 8 + lane % 4 * 2;
        Finish<GROUP_OF> finish(p, matrix, r, column);
#pragma unroll
        for (int i = 0; i < GROUP_OF * 4; i += 2) {
            acc_t a = finish(p, i, sums[4 * j + i]), b = finish(p, i + 1, sums[4 * j + i + 1]);
            store_two(p, matrix, r + i / 2 % 2 * 8, column + i / 4 * 8, a, b);
        }
    }
}

#if STORE_TMA || STORE_LINES
// The copy engine takes sixteen rows of C_LINE bytes at a time, which a warp has written to a buffer: swizzled, unless
// lines are an odd number of 16 bytes, which fall on different banks as they are. Where rows of C begin anywhere, the
// warp itself stores them from there.
constexpr int PIECE = C_LINE / (8 * (int)sizeof(TYPE_C));     // chunks
constexpr int PIECES = CHUNKS / PIECE;                        // of a warp
constexpr int PIECE_BYTES = 16 * C_PITCH;
constexpr int WORDS = PIECE * (int)sizeof(TYPE_C);            // of a thread, in a piece
constexpr int SLOTS = REUSE ? PIECES : EPILOGUE_BUFFERS;      // buffers of a warp
static_assert(BN / 8 % PIECE == 0, "a piece lies in one line of chunks");

#if EARLY
// What a tile's epilogue reads. The operands of EARLY_PIECES pieces are on their way before the tile's last products: a
// wait for memory would be seen where no other products run beside it. Each piece asks for those of one that comes later.
struct Early {
    Finish<PIECE> of[PIECES];

    DG_DEVICE void ask(const Problem& p, const Piece& w, int row, int s) {
        if (s >= PIECES) return;
        int lane = threadIdx.x % 32, chunk = s * PIECE, r = w.m + row + chunk / (BN / 8) * 64 + lane / 4;
        of[s] = Finish<PIECE>(p, w.batch * p.stride_c, r, w.n + chunk % (BN / 8) * 8 + lane % 4 * 2);
    }
    DG_DEVICE void begin(const Problem& p, const Piece& w, int row) {
#pragma unroll
        for (int s = 0; s < EARLY_PIECES; ++s) ask(p, w, row, s);
    }
};

#endif
// A thread's share of piece `s` as it is to lie in memory.
#if EARLY
DG_DEVICE void pack(const Problem& p, const Finish<PIECE>& finish, int s, const acc_t* sums, u32* words) {
    int chunk = s * PIECE;
#else
DG_DEVICE void pack(const Problem& p, const Piece& w, int row, int s, const acc_t* sums, u32* words) {
    int lane = threadIdx.x % 32, chunk = s * PIECE;
    int r = w.m + row + chunk / (BN / 8) * 64 + lane / 4, column = w.n + chunk % (BN / 8) * 8 + lane % 4 * 2;
    Finish<PIECE> finish(p, w.batch * p.stride_c, r, column);
#endif
#pragma unroll
    for (int i = 0; i < PIECE * 4; i += 2) {
        acc_t a = finish(p, i, sums[chunk * 4 + i]), b = finish(p, i + 1, sums[chunk * 4 + i + 1]);
#if C_BYTES == 2
        words[i / 2] = Pair<TYPE_C>(a, b).bits;
#else
        words[i] = bits(a), words[i + 1] = bits(b);
#endif
    }
}

#if STORE_TMA
DG_DEVICE u32 swizzled(u32 offset) { return C_LINE / 16 % 2 ? offset : offset ^ (offset >> 3 & (C_LINE - 16)); }

// A warp's piece to a buffer.
DG_DEVICE void fill(u32 buffer, const u32* words) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int q = 0; q < C_LINE / 32; ++q) {
#if C_BYTES == 2
        // A square of 16 x 16: this lane gives the address of one of its rows, in one of its two chunks.
        u32 place = lane % 16 * C_LINE + q * 32 + lane / 16 * 16;
        store_matrices(buffer + swizzled(place), words[q * 4], words[q * 4 + 1], words[q * 4 + 2], words[q * 4 + 3]);
#else
        u32 place = lane / 4 * C_LINE + q * 32 + lane % 4 * 8;
        store_shared(buffer + swizzled(place), words[q * 4], words[q * 4 + 1]);
        store_shared(buffer + swizzled(place + 8 * C_LINE), words[q * 4 + 2], words[q * 4 + 3]);
#endif
    }
    if (C_LINE % 32) store_matrices(buffer + lane % 16 * C_LINE + C_LINE - 16, words[WORDS - 2], words[WORDS - 1]);
}

// Sends piece `s` on its way, through the buffer whose turn it is.
DG_DEVICE void send(const TensorMap* map, const Piece& w, int row, int s, const u32* words, u32 buffers, int& turn) {
    int lane = threadIdx.x % 32, chunk = s * PIECE;
    u32 buffer = buffers + (REUSE ? s : turn) * PIECE_BYTES;
    turn = turn + 1 == SLOTS ? 0 : turn + 1;
    if (!REUSE && lane == 0) puts_read<SLOTS - 1>();
    __syncwarp();
    fill(buffer, words);
    writes_ready();
    __syncwarp();
    if (lane == 0)
        put<CACHE_C>(map, buffer, w.n + chunk % (BN / 8) * 8, w.m + row + chunk / (BN / 8) * 64, w.batch);
}

DG_DEVICE void store_copied(
    const Problem& p, const TensorMap* map, const Piece& w, int row, const acc_t (&sums)[CHUNKS * 4], u32 buffers,
    int& turn
#if EARLY
    , Early& early
#endif
) {
#pragma unroll
    for (int s = 0; s < PIECES; ++s) {
        u32 words[WORDS];
#if EARLY
        early.ask(p, w, row, s + EARLY_PIECES);
        pack(p, early.of[s], s, sums, words);
#else
        pack(p, w, row, s, sums, words);
#endif
        send(map, w, row, s, words, buffers, turn);
    }
}
#endif
#endif

#if FIXUP != WHOLE
// Adds COUNT chunks of someone else's sums. A few loads are under way at a time: all of them would take more registers
// than there are.
template <int COUNT>
DG_DEVICE void add_from(acc_t (&sums)[COUNT * 4], const float4* theirs) {
    constexpr int AT_ONCE = LOADS;
#pragma unroll
    for (int j = 0; j < COUNT; j += AT_ONCE) {
        float4 v[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
            if (j + i < COUNT) v[i] = load_l2(theirs + (j + i) * WORKERS);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
            if (j + i < COUNT) add(&sums[4 * (j + i)], v[i]);
#pragma unroll
        for (int i = 0; i < AT_ONCE * 4; ++i)
            if (j * 4 + i < COUNT * 4) pin(sums[j * 4 + i]);
    }
}
#endif

#if FIXUP == SPLIT && CLUSTER_K > 1
// Adds up what a cluster's blocks have: each gives its sums to the others and takes a share of the chunks.
DG_DEVICE void add_cluster(const acc_t (&sums)[CHUNKS * 4], acc_t (&own)[OWN_CHUNKS * 4], u32 space, int rank) {
    u32 mine = space + threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i)
        store_shared(mine + i * WORKERS * 16, words(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
    cluster_share();
#pragma unroll
    for (int i = 0; i < OWN_CHUNKS * 4; ++i) own[i] = 0;
#pragma unroll
    for (int q = 0; q < CLUSTER_K; ++q)
#pragma unroll
        for (int j = 0; j < OWN_CHUNKS; ++j)
            add(&own[4 * j], load_from_block(mine + (rank * OWN_CHUNKS + j) * WORKERS * 16, q));
    cluster_done();
}
#endif

#if EXCHANGE
// Of a thread's chunks, how many each of PARTS blocks finishes: a divisor, and some blocks may have none.
DG_DEVICE constexpr int share_of(int chunks, int parts) {
    int share = (chunks + parts - 1) / parts;
    while (chunks % share) ++share;
    return share;
}
constexpr int SHARE = share_of(CHUNKS, PARTS);

// Adds up what PARTS blocks have of a tile, a share in each block, always in the same order. The blocks run at the same
// time and wait for each other. The counter goes round and round: it is never cleared. `tile`: among those in parts.
DG_DEVICE bool exchange(
    const Problem& p, const Piece& w, const acc_t (&sums)[CHUNKS * 4], acc_t (&own)[SHARE * 4], int tile,
    int group
) {
    constexpr i64 PLACE = (i64)CHUNKS * WORKERS;
    constexpr u32 TURN = (1u << 30) / PARTS * PARTS;
    float4* all = p.partial + (i64)tile * PARTS * PLACE + threadIdx.x;
    float4* mine = all + w.part * PLACE;
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i)
        mine[i * WORKERS] = words(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
    __threadfence();
    meet(1 + group, 128);
    bool finishes = w.part * SHARE < CHUNKS;
    if (threadIdx.x % 128 == 0) {
        u32* counter = &p.arrived[tile * CONSUMERS + group];
        u32 round = add_and_publish(counter, TURN - 1) / PARTS;
        while (finishes && published(counter) / PARTS == round) {
        }
    }
    if (!finishes) return false;
    meet(1 + group, 128);
    __threadfence();
#pragma unroll
    for (int i = 0; i < SHARE * 4; ++i) own[i] = 0;
    const float4* share = all + w.part * SHARE * WORKERS;
    constexpr int AT_ONCE = SHARE >= LOADS ? 1 : LOADS / SHARE;  // parts whose loads are under way
#pragma unroll AT_ONCE
    for (int q = 0; q < PARTS; ++q)
#pragma unroll
        for (int j = 0; j < SHARE; ++j) add(&own[4 * j], load_l2(share + q * PLACE + j * WORKERS));
    return true;
}
#endif

#if FIXUP == SPLIT && !EXCHANGE
// Adds up what PARTS blocks have in the same chunks of the same tile, always in the same order. Whoever comes last
// does it; true for that one.
DG_DEVICE bool add_parts(
    const Problem& p, const Piece& w, acc_t (&own)[OWN_CHUNKS * 4], int rank, int group, u32* flag
) {
    constexpr i64 PLACE = (i64)OWN_CHUNKS * WORKERS;
    int tile = w.tile * CLUSTER + rank;  // or a share of one, where the cluster lies along K
    i64 first = (i64)tile * PARTS;
    float4* mine = p.partial + (first + w.part) * PLACE + threadIdx.x;
#pragma unroll
    for (int j = 0; j < OWN_CHUNKS; ++j)
        mine[j * WORKERS] = words(own[4 * j], own[4 * j + 1], own[4 * j + 2], own[4 * j + 3]);
    __threadfence();
    meet(1 + group, 128);
    if (threadIdx.x % 128 == 0)
        *flag = add_and_publish(&p.arrived[tile * CONSUMERS + group], PARTS - 1) == PARTS - 1;
    meet(1 + group, 128);
    if (!*reinterpret_cast<volatile u32*>(flag)) return false;
    __threadfence();
#pragma unroll
    for (int i = 0; i < OWN_CHUNKS * 4; ++i) own[i] = 0;
    const float4* all = p.partial + first * PLACE + threadIdx.x;
#pragma unroll 1
    for (int q = 0; q < PARTS; ++q) add_from<OWN_CHUNKS>(own, all + q * PLACE);
    return true;
}
#endif

#if FIXUP == STREAM
// The block that has a tile's first steps finishes it. The others leave their sums for it, each in a place of its own:
// a block leaves a tile unfinished at its front at most once.
DG_DEVICE bool add_stream(const Problem& p, const Schedule& s, const Piece& w, acc_t (&sums)[CHUNKS * 4], int group) {
    if (w.steps == s.steps) return true;
    constexpr i64 PLACE = (i64)CHUNKS * WORKERS;
    if (w.first > 0) {
        float4* mine = p.partial + blockIdx.x * PLACE + threadIdx.x;
#pragma unroll
        for (int i = 0; i < CHUNKS; ++i)
            mine[i * WORKERS] = words(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
        __threadfence();
        meet(1 + group, 128);
        if (threadIdx.x % 128 == 0) publish(&p.arrived[blockIdx.x * CONSUMERS + group], 1);
        return false;
    }
    i64 over = (i64)(w.tile + 1) * s.steps;
    for (int q = blockIdx.x + 1; q < gridDim.x && s.share(p, q) < over; ++q) {
        if (s.share(p, q) == s.share(p, q + 1)) continue;
        u32* flag = &p.arrived[q * CONSUMERS + group];
        if (threadIdx.x % 128 == 0) {
            while (published(flag) == 0) {
            }
            publish(flag, 0);
        }
        meet(1 + group, 128);
        __threadfence();
        add_from<CHUNKS>(sums, p.partial + q * PLACE + threadIdx.x);
    }
    return true;
}
#endif
