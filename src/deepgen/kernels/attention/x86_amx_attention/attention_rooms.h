// What lies where: squares of 16 lines of 64 bytes are what a tile register holds, and all memory is made of them.
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include "on_processors.h"
#define ALWAYS_INLINE ALWAYS
#include "tiles.h"

enum {
    ROWS = 32,                    // queries of a part: two tiles of rows
    DEPTHS = (D + 31) / 32,       // squares along a row of Q or K
    COLUMNS = (DV + 31) / 32 * 2,  // squares beside each other in a row of sums
    PAIRS = KEYS / 32,            // squares along a row of weights: two of scores each
    SUMS = 256,                   // numbers of a square in f32, and in bf16
    HALVES = 512,
    BLOCKS = 3,  // in turn: of the step before, this one and the next
};

// Keys and values, packed as right operands: pairs of numbers of 16 columns side by side. A column is a key in `k`, and
// a column of V in `v`. `of`: the head that it was packed for.
typedef struct {
    stored k[2 * PAIRS][DEPTHS][HALVES], v[COLUMNS][PAIRS][HALVES];
    long of;
} __attribute__((aligned(64))) block;

// Up to 32 queries of a head: they see keys from `low` up to `high`. Maxima are in units of log2.
typedef struct {
    stored q[2][DEPTHS][HALVES];
    num sums[2][COLUMNS][SUMS], total[2][16][16], most[2][16];
    long head, query, rows, low, high;
} __attribute__((aligned(64))) part;

typedef struct {
    num scores[2][2 * PAIRS][SUMS];
    stored weights[2][PAIRS][HALVES];
} stage;

typedef struct {
    part parts[PARTS];
    stage stages[2];
    block blocks[PACK ? 0 : BLOCKS];
} __attribute__((aligned(64))) room;

// A part beside a block of keys, from `first` on; so many pairs of squares of 16 keys. `two`: both tiles of rows.
typedef struct {
    const block *at;
    part *own;
    stage *to;
    long first, pairs;
    int two;
} step;
