// The knobs as macros with defaults, and the sizes that follow from them.
#ifndef INPUT  // 0: 8-bit integers, sums in i32; 1: bf16 in pairs; 2: bf16 and 3: f16, widened to f32; sums in f32
#define INPUT 0
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
#ifndef SWAP  // 1: B is the left operand, and C is computed transposed
#define SWAP 0
#endif
#ifndef ALONG  // 1: sums along K, nothing packed (A stored M x K, B stored N x K)
#define ALONG 0
#endif
#ifndef DIRECT  // 1: the right operand, which lies across K, is read where it lies: nothing of it is packed
#define DIRECT 0
#endif
#ifndef MR  // sums in registers: rows
#define MR 6
#endif
#ifndef NR  // and times 16 columns
#define NR 4
#endif
#ifndef MC  // cache block: rows of sums
#define MC 256
#endif
#ifndef NC  // cache block: columns of sums
#define NC 512
#endif
#ifndef KC  // cache block: numbers along K
#define KC 512
#endif
#ifndef PACK_LEFT  // 1: copy panels of the left operand; 0: read them where they lie
#define PACK_LEFT 0
#endif
#ifndef INNER_LEFT  // in a block, 1: a panel of the right operand stays while the left one's pass; 0: the other way round
#define INNER_LEFT 0
#endif
#ifndef PREFETCH  // groups of the right operand's panel to ask for ahead; 0: leave it to the hardware
#define PREFETCH 0
#endif
#ifndef PREFETCH_C  // 1: ask for a tile of C before its product begins
#define PREFETCH_C 0
#endif
#ifndef PACK_AHEAD  // groups of K (across) or lines of a row (along, or read where it lies) to ask for ahead; 0: none
#define PACK_AHEAD 0
#endif
#ifndef PARTITION  // what tasks divide: 0 the left operand, 1 the right one, 2 both, 3 the batch
#define PARTITION 0
#endif
#ifndef TASKS  // tasks for each thread
#define TASKS 1
#endif
#ifndef F16_RESULT  // 1: C is f16, which finish.h does not know: it works on f32 rows that are converted
#define F16_RESULT 0
#endif

#define WIDENED (INPUT >= 2)
#define ES (INPUT == 0 ? 1 : 2)                     // bytes of a number
#define GROUP (INPUT == 0 ? 4 : INPUT == 1 ? 2 : 1)  // numbers along K in a group, which is 4 bytes once packed
#define LINE (16 * GROUP)                            // numbers along K in 16 groups
#define BF16 (INPUT != 0)                            // to finish.h: sums are f32
// 8-bit dot products take unsigned by signed. Where both operands are signed, the right one is packed with 128 added,
// and the sums of each row begin at -128 times the sum of the left operand's row.
#define SHIFTED (INPUT == 0 && LEFT_SIGNED && RIGHT_SIGNED)
#define LEFT_ACROSS (SWAP ? !B_T : A_T)  // whether numbers of one k lie side by side
#define RIGHT_ACROSS (SWAP ? A_T : !B_T)

enum {
    COLS = NR * 16,
    MC_WHOLE = (MC + MR - 1) / MR * MR,
    NC_WHOLE = NC / COLS * COLS,
    KC_WHOLE = (KC + LINE - 1) / LINE * LINE,
    LEFT_ROW = KC_WHOLE / GROUP * 4 + 64,  // bytes; rows a power of two apart would crowd the same sets of L1
    LEFT_BYTES = (MR + 15) / 16 * 16 * LEFT_ROW,
    GROUP_BYTES = COLS * 4,  // of a panel of the right operand
    SUMS_BYTES = MR * COLS * 4,
    TURNED_ROW = (MR + 15) / 16 * 64,
    // a thread's scratch, but for the right operand's block and the sums that wait
    FIXED_BYTES = (MR + 15) / 16 * 16 * GROUP_BYTES + COLS * TURNED_ROW + MC_WHOLE / MR * LEFT_BYTES + (MC_WHOLE + 15) / 16 * 64,
};
