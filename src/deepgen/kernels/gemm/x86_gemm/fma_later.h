// What later tiles will need, asked for while others are at work: a line or a few in each turn of the innermost loop.

#define ASKS (NEXT || NEXT_STRIP || NEXT_BLOCK)

// All lines at once: what the hardware would fetch ahead by itself comes a few at a time.
static inline void ask_for(region r) {
    for (; r.rows > 0; r.rows--, r.at += r.ld)
        for (long j = 0; j < r.width; j += 16) __builtin_prefetch(r.at + j);
}

// The lines of a region, in order. Distances are in bytes.
typedef struct {
    const char *at, *end;  // the line that is next, and where its row ends, whole lines from where it begins
    long gap, ld;          // from the end of a row to the next one, and from row to row
    const char *last;      // where the last row ends
} lines;

// A line of the next few, perhaps past the end of a row.
ALWAYS_INLINE void ask_for_line(const lines *l, int i) { __builtin_prefetch(l->at + 64 * i, 0, NEXT == 2 ? 3 : 2); }

// Past them. Without a branch, which would come between the multiply-adds of a turn.
ALWAYS_INLINE void pass(lines *l) {
    l->at += 64 * NEXT_LINES;
    long row_is_done = -(long)(l->at >= l->end);
    l->at += (l->end + l->gap - l->at) & row_is_done;
    l->end += l->ld & row_is_done;
}

// What is asked for in this order: of a batch the next A, B and C; else the next strip of A and the next block of B.
typedef struct {
    lines of[3];  // null where there is nothing to ask for
} coming;

static inline void expect(coming *n, int which, region r) {
    if (r.ld == r.width) r.width *= r.rows, r.rows = 1;  // in one piece
    const char *at = (const char *)r.at;
    long width = ceil_div(r.width, 16) * 64, ld = r.ld * 4;
    n->of[which] = (lines){at, at + width, ld - width, ld, at + (r.rows - 1) * ld + width};
}

// What a tile asks for; at `near`, in vain, when there is nothing left.
static inline lines *to_ask_for(coming *n, const float *near, lines *nothing) {
    for (int i = 0; i < 3; i++)
        if (n->of[i].at && n->of[i].end <= n->of[i].last) return &n->of[i];
    const char *at = (const char *)near;
    *nothing = (lines){at, at, 0, 0, 0};
    return nothing;
}
