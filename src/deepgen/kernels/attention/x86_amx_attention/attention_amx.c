// O = softmax(scale * Q K^T) V for each head of each batch, in bf16 on AMX tiles. Threads draw tiles of queries.
//
// A part is up to 32 queries of one head, and a tile has up to PARTS parts of the heads that share a head of K. A tile
// iterates over the keys in blocks of KEYS, and a step is a part beside a block: its scores are a product of AMX tiles,
// vectors compute weights from them, rounded to bf16, and a second product of AMX tiles adds the weighted rows of V to
// the part's sums. Maxima and sums of weights are updated online.
//
// PACK     when blocks of K and V are packed. 0: for each tile, into three buffers in turn. 1: by each thread for a
//          head of K, of which it then takes all tiles or an equal share. 2: all of them, before the first tile
// OVERLAP  1: while vectors compute the weights of a step, AMX tiles compute sums of the step before, and scores of the
//          next one
#include "attention_rooms.h"
#include "attention_pack.h"
#include "attention_products.h"
#include "attention_weights.h"

// Where the parts of a tile are, counted over all heads that share a head of K.
typedef struct {
    long batch, group, first, parts;  // the same 32 queries of all these heads are neighbours
} place;

static inline long chunks_of(const job *j) { return (j->queries + ROWS - 1) / ROWS; }
static inline long tiles_of(const job *j) { return (chunks_of(j) * j->per_group + PARTS - 1) / PARTS; }
static inline long groups_of(const job *j) { return j->heads / j->per_group; }
static inline long blocks_of(const job *j) { return (j->keys + KEYS - 1) / KEYS; }

static place place_of(const job *j, long number) {
    long tiles = tiles_of(j), of = number / tiles, at = number % tiles, all = chunks_of(j) * j->per_group;
    long first = (CAUSAL ? tiles - 1 - at : at) * PARTS;  // the longest come first
    return (place){of / groups_of(j), of % groups_of(j), first, least(PARTS, all - first)};
}

// Blocks that outlast a tile: a head's for each thread, or those of all heads.
static inline block *packed_of(const job *j) { return (block *)((room *)j->memory + j->threads); }

// Into so many parts the tiles of a head are divided, where a thread packs it for all that it takes: as few as keep the
// threads about equally busy.
static long shares_of(const job *j) {
    long heads = j->batch * groups_of(j), tiles = tiles_of(j), n = 1;
    if (PACK != 1) return tiles;
    while (n < tiles && (heads * n + j->threads - 1) / j->threads * j->threads * 10 > heads * n * 11) n++;
    return n;
}

// A block of keys of a head of K, of which those from `end` on are not needed.
static void pack_block(const job *j, block *to, long batch, long group, long number, long end) {
    long first = number * KEYS, count = least(KEYS, end - first);
    pack_keys(to, j->k + batch * j->k_batch + group * j->k_head + first * j->k_row, j->k_row, count);
    pack_values(to, j->v + batch * j->v_batch + group * j->v_head + first * j->v_row, j->v_row, count);
}

// A part's own queries, and nothing yet of its sums.
static void take(const job *j, const place *at, part *own, long number) {
    own->head = at->group * j->per_group + number % j->per_group;
    own->query = number / j->per_group * ROWS;
    own->rows = least(ROWS, j->queries - own->query);
    own->low = low(j, own->query), own->high = high(j, own->query + own->rows - 1);
    const stored *q = j->q + at->batch * j->q_batch + own->head * j->q_head + own->query * j->q_row;
    EACH(2, half) pack_queries(own->q[half][0], q + half * 16 * j->q_row, j->q_row, own->rows - half * 16);
    memset(own->sums, 0, sizeof own->sums);
    memset(own->total, 0, sizeof own->total);
    EACH(2, half) put(own->most[half], fill(LOWEST));
}

static void finish(const job *j, part *own, long batch) {
    for (long row = 0; row < own->rows; row++) {
        long half = row / 16, e = row % 16, query = own->query + row;
        num most = own->most[half][e] * LN2, total = sum_of(get(own->total[half][e]));
        num by = settled(j, most, total, batch, own->head, query);
        stored *to = j->o + batch * j->o_batch + own->head * j->o_head + query * j->o_row;
        for (long c = 0; c < DV; c += 16) store_part(to + c, get(own->sums[half][c / 16] + e * 16) * by, DV - c);
    }
}

// Iterates over the steps of a tile.
typedef struct {
    const job *j;
    room *r;
    const place *at;
    long end, block, part;  // keys that some part sees end there
    long packed, last;      // how many blocks have been packed for this tile, and the last one of them
    int thread, turn;
} course;

static int sees(const course *c) {
    const part *own = &c->r->parts[c->part];
    return own->low < (c->block + 1) * KEYS && own->high > c->block * KEYS;
}

static const block *block_there(course *c) {
    const job *j = c->j;
    long of = c->at->batch * groups_of(j) + c->at->group;
    if (PACK == 2) return packed_of(j) + of * blocks_of(j) + c->block;
    if (PACK == 1) {
        block *own = packed_of(j) + c->thread * blocks_of(j) + c->block;
        if (own->of != of) pack_block(j, own, c->at->batch, c->at->group, c->block, j->keys);
        own->of = of;
        return own;
    }
    if (c->last != c->block) {
        pack_block(j, &c->r->blocks[++c->packed % BLOCKS], c->at->batch, c->at->group, c->block, c->end);
        c->last = c->block;
    }
    return &c->r->blocks[c->packed % BLOCKS];
}

// The next step; 0 where there is none.
static int next_step(course *c, step *s) {
    for (; c->block * KEYS < c->end; c->block++, c->part = 0)
        for (; c->part < c->at->parts; c->part++) {
            if (!sees(c)) continue;
            part *own = &c->r->parts[c->part];
            long first = c->block * KEYS, count = least(KEYS, own->high - first);
            *s = (step){block_there(c), own, &c->r->stages[c->turn], first, (count + 31) / 32, own->rows > 16};
            c->turn ^= 1, c->part++;
            return 1;
        }
    return 0;
}

// With OVERLAP, products run ahead of the weights by a step, and behind them.
static void all_steps(course *c) {
    step steps[3];  // the one before, this one and the next, in turn
    int more = next_step(c, &steps[0]), n = 0;
    beside ends = {0};
    if (OVERLAP && more) ends.scores = (walk){&steps[0]}, all_products(&ends);
    for (; more; n++) {
        step *now = &steps[n % 3], *next = &steps[(n + 1) % 3];
        beside b = {0};
        if (!OVERLAP) b.scores = (walk){now}, all_products(&b);
        more = next_step(c, next);
        if (OVERLAP && n) b.values = (walk){&steps[(n + 2) % 3]};
        if (OVERLAP && more) b.scores = (walk){next};
        weigh(c->j, now, c->at->batch, &b);
        if (!OVERLAP) b.values = (walk){now}, all_products(&b);
    }
    if (OVERLAP && n) ends.values = (walk){&steps[(n + 2) % 3]}, all_products(&ends);
}

static void tile(const job *j, room *r, int thread, long number) {
    place at = place_of(j, number);
    course c = {.j = j, .r = r, .at = &at, .last = -1, .thread = thread};
    long begin = j->keys;
    for (long p = 0; p < at.parts; p++) {
        take(j, &at, &r->parts[p], at.first + p);
        begin = least(begin, r->parts[p].low), c.end = most_of(c.end, r->parts[p].high);
    }
    c.block = begin / KEYS;
    all_steps(&c);
    for (long p = 0; p < at.parts; p++) finish(j, &r->parts[p], at.batch);
}

static void draw(void *arg, int thread) {
    job *j = arg;
    room *r = (room *)j->memory + thread;
    long tiles = tiles_of(j), shares = shares_of(j), all = shares * j->batch * groups_of(j), blocks = blocks_of(j);
    if (PACK == 1)
        for (long b = 0; b < blocks; b++) packed_of(j)[thread * blocks + b].of = -1;
    begin_thread();
    for (long n; (n = atomic_fetch_add(&j->next, 1)) < all;)
        for (long t = n % shares; t < tiles; t += shares) tile(j, r, thread, n / shares * tiles + t);
    end_thread();
}

static void pack_all(void *arg, int thread) {
    job *j = arg;
    (void)thread;
    long blocks = blocks_of(j), all = blocks * j->batch * groups_of(j);
    for (long n; (n = atomic_fetch_add(&j->joined, 1)) < all;) {
        long of = n / blocks;
        pack_block(j, packed_of(j) + n, of / groups_of(j), of % groups_of(j), n % blocks, j->keys);
    }
}

void deepgen_attention(PARAMETERS) {
    job j = JOB;
    if (PACK == 2) pool_run(threads, pack_all, &j);
    pool_run(threads, draw, &j);
}
