// What is done between tile products, a little at every step along K: tiles leave the vector and the load units idle.

// Rows of sums on their way into C, where nothing but a conversion is left to do.
typedef struct {
    const char *from;
    number *to;
    long ldc, rows;
} finishing;

#if defined(__AVX512BF16__) && BF16 && C_TYPE == 1
#define SIMPLE 1
#define STEP_NUMBERS 32
ALWAYS_INLINE line finished(const char *from) {
    const float *s = (const float *)from;
    return (line)_mm512_cvtne2ps_pbh(load(s + 16), load(s));
}
#elif defined(__AVX512F__) && (BF16 ? C_TYPE == 0 : C_TYPE == 2)
#define SIMPLE 1
#define STEP_NUMBERS 16
ALWAYS_INLINE line finished(const char *from) { return line_whole(from); }
#else
#define SIMPLE 0
#endif

// Fields are copied for the loop: kept in memory, each row would wait for the last one's.
ALWAYS_INLINE void finish_until(finishing *pending, long rows) {
#if SIMPLE
    finishing f = *pending;
    if (rows > f.rows) rows = f.rows;
    f.rows -= rows;
    for (; rows > 0; rows--, f.from += COLS * 4, f.to += f.ldc) {
        int v = 0;
        UNROLLED for (; v + STEP_NUMBERS <= COLS; v += STEP_NUMBERS) {
            line x = finished(f.from + v * 4);
            if (STORE == 2 && (uintptr_t)(f.to + v) % 64 == 0)
                _mm512_stream_si512((void *)(f.to + v), x);
            else
                line_put(f.to + v, x);
        }
#if STEP_NUMBERS == 32
        if (COLS % 32)
            _mm256_storeu_si256((__m256i *)(f.to + v), (__m256i)_mm512_cvtneps_pbh(load((const float *)f.from + v)));
#endif
    }
    *pending = f;
#else
    (void)pending, (void)rows;
#endif
}

// Lines that are fetched into L2 before they are needed, row after row.
typedef struct {
    const char *at;
    long ld, lines, rows, line, each;
} walk;

static inline walk walk_of(const char *at, long ld, long rows, long bytes) {
    long before = (long)((uintptr_t)at % 64);
    return (walk){at - before, ld, ceil_div(before + bytes, 64), rows, 0, 0};
}

// So many of them at each step that all are fetched after so many steps.
static inline walk paced(walk w, long steps) {
    w.each = ceil_div(w.lines * w.rows, steps);
    return w;
}

// Lines that will be written are fetched in the same way: fetched for writing they would go into L1, where rows of C that
// lie whole pages apart push each other out.
ALWAYS_INLINE void walk_on(walk *at) {
    walk w = *at;
    for (long n = w.each; n > 0 && w.rows > 0; n--) {
        __builtin_prefetch(w.at + w.line * 64, 0, 2);
        if (++w.line == w.lines) w.line = 0, w.at += w.ld, w.rows--;
    }
    *at = w;
}

typedef struct {
    finishing finish;
    long finish_each;
    walk left, right, result;
} aside;

ALWAYS_INLINE void step_aside(aside *x) {
    if (ASIDE && x->finish.rows) finish_until(&x->finish, x->finish_each);
    if (AHEAD && x->left.rows) walk_on(&x->left);
    if (AHEAD == 2 && x->right.rows) walk_on(&x->right);
    if (AHEAD_RESULT && x->result.rows) walk_on(&x->result);
}
