// The knobs of the f32 GEMM, each with a default, and the sizes that follow from them.
//
// With SWAP the product is computed as C^T = op(B)^T op(A)^T: what is called A, B, M and N here and in the other files
// is then B, A, N and M of the caller, and tiles are transposed in registers on their way to C.

#ifndef A_T  // layouts, after SWAP: 1 when A is stored K x M
#define A_T 0
#endif
#ifndef B_T  // 1 when B is stored N x K
#define B_T 0
#endif
#ifndef SWAP  // 1: the caller's A and B change places
#define SWAP 0
#endif
#ifndef DOT  // 1: for few rows of C, sums run along K in vectors (B must be stored N x K)
#define DOT 0
#endif
#ifndef THIN  // 1: for few rows of C, UNROLL rows of B at a time from end to end (B must be stored K x N)
#define THIN 0
#endif
#ifndef MR  // register tile: rows
#define MR 12
#endif
#ifndef NR  // register tile: vectors in a row; with DOT rows of B
#define NR 2
#endif
#ifndef TAIL  // vectors in the last tile of a row where N leaves a part of one: unrolled like whole tiles
#define TAIL 0
#endif
#ifndef MC  // cache block: rows of C (at least MR)
#define MC 240
#endif
#ifndef NC  // cache block: columns of C (at least one tile)
#define NC 512
#endif
#ifndef KC  // cache block: steps of K
#define KC 384
#endif
#ifndef PACK_A  // 0: read in place; 1: copied row by row; 2: transposed to K x MR panels
#define PACK_A 1
#endif
// 0: read in place (B must be stored K x N); 1: a block at a time; 2: a panel at a time; 3: ahead of time; 4: by the
// first strip of A, which reads B in place
#ifndef PACK_B
#define PACK_B 1
#endif
#ifndef OUTER_A  // 0: a block of B stays while blocks of A pass; 1: a block of A stays while blocks of B pass
#define OUTER_A 0
#endif
#ifndef INNER_A  // in a block, 1: a panel of B stays in L1 while A passes; 0: a strip of A stays while B passes
#define INNER_A 1
#endif
#ifndef UNROLL  // K steps in one turn of the innermost loop
#define UNROLL 4
#endif
#ifndef PREFETCH  // how many vectors of B ahead to prefetch, in its own row; 0: leave it to the hardware
#define PREFETCH 0
#endif
#ifndef PREFETCH_A  // how many steps of K ahead to prefetch in the rows of A; 0: leave it to the hardware
#define PREFETCH_A 0
#endif
#ifndef NEXT_STRIP  // 1: while a strip of A stays, ask for the next one, into L2
#define NEXT_STRIP 0
#endif
#ifndef NEXT_BLOCK  // 1: while a block of B is at work, ask for the next one, into L2
#define NEXT_BLOCK 0
#endif
#ifndef AHEAD  // 1: ask for all of A and B before the work begins, where they are small
#define AHEAD 0
#endif
#ifndef PACK_FETCH  // 1: while rows of B are packed, ask for those that follow
#define PACK_FETCH 0
#endif
#ifndef NEXT  // while one matrix of a batch is computed, ask for the next, 1: into L2, 2: into L1
#define NEXT 0
#endif
#ifndef NEXT_LINES  // of what comes next, asked for in a turn of the innermost loop
#define NEXT_LINES 1
#endif
#ifndef NEXT_C  // 1: while a tile is at work, ask for the next one's part of C: a short loop has no time for its own
#define NEXT_C 0
#endif
#ifndef PARTITION  // what tasks divide: 0 M, 1 N, 2 both, 3 K, 4 the batch
#define PARTITION 0
#endif
#ifndef TASKS  // tasks for each thread: more balance better, fewer repeat less packing
#define TASKS 1
#endif
#ifndef CURVE  // 1: tasks that divide M and N follow a space-filling curve, so that neighbours in time share an operand
#define CURVE 0
#endif
#ifndef HELP  // 1: a thread that finds no task left computes strips of the others' blocks
#define HELP 0
#endif
#ifndef STREAM_C  // 1: write C past the caches where one K block gives the whole result
#define STREAM_C 0
#endif
#ifndef HUGE_PAGES  // 1: packed operands lie in huge pages
#define HUGE_PAGES 0
#endif
#ifndef BIAS  // 1: a number for each column is added
#define BIAS 0
#endif
#ifndef ACTIVATION  // 0 none, 1 relu, 2 gelu (in its tanh form), 3 silu
#define ACTIVATION 0
#endif

#if B_T && (!PACK_B || PACK_B == 4) && !DOT
#error "B stored N x K has no vectors along N to read in place"
#endif
#if A_T && PACK_A == 1
#error "rows of A do not lie in one piece when A is stored K x M"
#endif
#if PACK_B == 2 && !INNER_A
#error "one panel of B at a time is packed where it stays while A passes"
#endif
#if NEXT_STRIP && (INNER_A || PACK_A || A_T)
#error "the next strip is asked for where one stays while B passes, in rows that run along K"
#endif
#if NEXT_BLOCK && OUTER_A
#error "the next block of B is asked for where one stays while A passes"
#endif
#if NEXT && (NEXT_STRIP || NEXT_BLOCK)
#error "either what this matrix needs next is asked for, or the next matrix"
#endif
#if HELP && (INNER_A || DOT || THIN)
#error "others can help where strips of A pass over a block of B"
#endif
#if DOT && !B_T
#error "sums along K need rows of B that run along K"
#endif
#if THIN && B_T
#error "rows of B from end to end need a B that is stored K x N"
#endif

enum {
    COLS = NR * VL,                    // of a tile
    MC_WHOLE = MC / MR * MR,           // blocks are whole tiles
    NC_WHOLE = NC / COLS * COLS,
    A_ROW = KC + 16,                   // of a packed row; the odd cache line keeps rows out of each other's sets
    A_STRIP = MR * A_ROW,              // MR rows of A, packed
    B_PANEL = KC * COLS,               // one panel of B, packed
    A_TILES = (PACK_A ? MC_WHOLE / MR : 1) * A_STRIP + VL,  // in place, the last rows still need a strip
    B_TILES = !PACK_B || PACK_B == 3 ? 0 : (PACK_B == 2 ? 1 : NC_WHOLE / COLS) * B_PANEL,
    SUMS_ROW = NC + 16,                // of sums that wait
    A_FLOATS = THIN ? 2 * MR * SUMS_ROW : DOT ? (A_T ? 2 * A_STRIP : 0) : A_TILES,
    B_FLOATS = DOT || THIN ? 0 : B_TILES,
    SLOT_FLOATS = (A_FLOATS + B_FLOATS + 15) / 16 * 16,  // scratch of one thread
};

#define ROWS_AHEAD 24            // rows of B in place that a tile asks for ahead: as long as the last-level cache takes
#define WORTH_HELP 4             // strips left: a helper's first one takes longer, B is in the caches of another core
#define AHEAD_BYTES (256 << 10)  // operands up to this size are asked for at once
#define WORTH_A_THREAD (64 << 10)  // numbers to add: waking another thread takes as long
