// The register tile: MR rows x NR vectors of C; a K step loads NR vectors of B and broadcasts MR numbers of A. The loops
// are in fma_loops.h, which tile.py writes.

// What a loop works on, field by field as tile.py knows them.
typedef struct {
    union {
        mask last;  // the lanes of the last vector, where it is not whole
        long room[4];
    };
    const float *a;
    long lda;  // bytes, as all distances here
    const float *b;
    long ldb;
    float *copy;  // where B is packed meanwhile, if it is
    long turns, rest, rows_left, rows;
    float *c, *to;
    long ldc;
    const char *at, *end;  // of the lines that other tiles will need
    long gap, ld;
    long far;  // from the row of B that is packed to the one that is asked for
    long how;  // what becomes of the sums
    float *sums;
    float alpha, beta;
} tile_work;

enum { PLAIN, ADDED, STREAMED, LEFT };

#define LOOP(name) __attribute__((visibility("hidden"))) void name(tile_work *)
LOOP(whole_loop);
#if TAIL
LOOP(tail_loop);
#endif
#if TAIL != 1
LOOP(narrow_loop);
#endif
#if PACK_B == 4
LOOP(packing_loop);
LOOP(packing_tail_loop);
#endif
#include "fma_loops.h"
