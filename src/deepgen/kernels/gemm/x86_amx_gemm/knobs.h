// The knobs of gemm_amx.c with their defaults, and the sizes that follow from them.
#include <stdint.h>
#include <string.h>

#include "x86_vector.h"

#ifndef BF16  // 1: bf16 with sums in f32; 0: 8-bit integers with sums in i32
#define BF16 1
#endif
#ifndef LEFT_SIGNED  // of 8-bit integers
#define LEFT_SIGNED 1
#endif
#ifndef RIGHT_SIGNED
#define RIGHT_SIGNED 1
#endif
#ifndef A_T  // layouts: 1 when A is stored K x M
#define A_T 0
#endif
#ifndef B_T  // 1 when B is stored N x K
#define B_T 0
#endif
#ifndef SWAP  // 1: B is the left operand
#define SWAP 0
#endif
#ifndef MR  // tiles of 16 rows of sums
#define MR 2
#endif
#ifndef NR  // and of 16 columns
#define NR 2
#endif
#ifndef NC  // cache block: columns of the right operand
#define NC 256
#endif
#ifndef KC  // cache block: numbers along K; below K, sums wait in memory between blocks
#define KC 1024
#endif
#ifndef K_OUTSIDE  // 1: all columns meet a block of K before the next one; 0: all of K meets a block of columns
#define K_OUTSIDE 0
#endif
#ifndef PACK_LEFT  // 1: copy panels of the left operand; 0: read them where they lie
#define PACK_LEFT 0
#endif
#ifndef PACKED  // 1: B, which is the right operand, was packed ahead of time by deepgen_gemm_pack
#define PACKED 0
#endif
#ifndef SNAKE  // 1: every other product goes backwards along K, so that what was used last is used first
#define SNAKE 1
#endif
#ifndef ASIDE  // 1: finish results between the products of the next ones
#define ASIDE 1
#endif
#ifndef AHEAD  // what is fetched into L2 between products: 1 the left operand's next panel, 2 a batch's next operands
#define AHEAD 1
#endif
#ifndef AHEAD_RESULT  // 1: with it, the lines of C that will be written next
#define AHEAD_RESULT 1
#endif
#ifndef GATHER  // panels of the right operand that are packed at a time, as K goes by
#define GATHER 8
#endif
#ifndef PACK_AHEAD  // lines (across: of K; along: of a row) ahead while packing; 0: leave it to the hardware
#define PACK_AHEAD 16
#endif
#ifndef PASSING  // which operand's tiles are loaded past L1: 0 none, 1 the left one's, 2 the right one's
#define PASSING 2
#endif
#ifndef STORE  // whole results: 0 from tiles where the dtype allows, 1 by way of L1, 2 the same and past the caches
#define STORE 0
#endif
#ifndef PARTITION  // what tasks divide: 0 the left operand, 1 the right one, 2 both, 3 the batch, 4 K
#define PARTITION 0
#endif
#ifndef TASKS  // tasks for each thread
#define TASKS 1
#endif
#ifndef CURVE  // 1: where both operands are divided, tasks are drawn along a curve through C
#define CURVE 0
#endif
#ifndef HUGE_PAGES  // 1: the scratch, and a B that was packed ahead of time, lie in pages of 2 MB
#define HUGE_PAGES 0
#endif

#if BF16
#define ES 2
#else
#define ES 1
#endif
#define SLICED (PARTITION == 4)
#define LEFT_ACROSS (SWAP ? !B_T : A_T)   // whether numbers of one k lie side by side
#define RIGHT_ACROSS (SWAP ? A_T : !B_T)

enum {
    ROWS = MR * 16,
    COLS = NR * 16,
    NC_WHOLE = NC / COLS * COLS,
    SUMS_BYTES = ROWS * COLS * 4,
};
