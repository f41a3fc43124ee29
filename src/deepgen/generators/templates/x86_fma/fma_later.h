// What later tiles will need, asked for while others are at work: a line or a few in each turn of the innermost loop.

// Not with clang (19): it brings the loads of a whole turn forward then, runs out of registers and takes twice as long.
#if defined(__clang__)
#define ASKS 0
#else
#define ASKS (NEXT || NEXT_STRIP || NEXT_BLOCK)
#endif

// The lines of some rows of a matrix, in order.
typedef struct {
    const float *at, *end;  // the line that is next, and where its row ends, whole lines from where it begins
    long gap, ld;           // from the end of a row to the next one, and from row to row
    const float *last;      // where the last row ends
} lines;

// Without a branch, which would come between the multiply-adds of a turn.
ALWAYS_INLINE void ask_for_line(lines *l) {
    __builtin_prefetch(l->at, 0, NEXT == 2 ? 3 : 2);
    l->at += 16;
    long row_is_done = -(long)(l->at == l->end);
    l->at += l->gap & row_is_done;
    l->end += l->ld & row_is_done;
}

// What is asked for in this order: of a batch the next A, B and C; else the next strip of A and the next block of B.
typedef struct {
    lines of[3];  // null where there is nothing to ask for
} coming;

static inline void expect(coming *n, int which, const float *at, long ld, long rows, long width) {
    if (ld == width) width *= rows, rows = 1;  // in one piece
    width = ceil_div(width, 16) * 16;
    n->of[which] = (lines){at, at + width, ld - width, ld, at + (rows - 1) * ld + width};
}

// What a tile asks for; at `near`, in vain, when there is nothing left.
static inline lines *to_ask_for(coming *n, const float *near, lines *nothing) {
    for (int i = 0; i < 3; i++)
        if (n->of[i].at && n->of[i].end <= n->of[i].last) return &n->of[i];
    *nothing = (lines){near, near + 16, -16, 0, 0};
    return nothing;
}
