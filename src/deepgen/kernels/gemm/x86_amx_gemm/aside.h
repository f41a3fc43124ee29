// What is done between tile products, a little at every step along K: tiles leave the vector and the load units idle.

// Sums on their way into C, where nothing but a conversion is left to do: `rows` of C, whose first are at `from` and `to`.
typedef struct {
    const char *from;
    number *to;
    long ldc, rows;
} finishing;

// Rows and columns of C that a product gives, and how many rows are finished at once: where C is computed transposed,
// four numbers of every row of sums.
enum { C_ROWS = SWAP ? COLS : ROWS, C_COLUMNS = SWAP ? ROWS : COLS, AT_ONCE = SWAP ? 4 : 1 };

#if defined(__AVX512BF16__) && BF16 && C_TYPE == 1
#define SIMPLE 1
#define STEP_NUMBERS 32
#elif defined(__AVX512F__) && (BF16 ? C_TYPE == 0 : C_TYPE == 2)
#define SIMPLE 1
#define STEP_NUMBERS 16
#else
#define SIMPLE 0
#endif

#if SIMPLE
// 16 sums of each of these rows of C.
ALWAYS_INLINE void take_sums(vec x[AT_ONCE], const char *from, int column) {
#if SWAP
    load_four_turned(x, from + column * COLS * 4, COLS * 4);
#else
    x[0] = load((const float *)from + column);
#endif
}

ALWAYS_INLINE void put_result(number *to, line x) {
    if (STORE == 2 && (uintptr_t)to % 64 == 0)
        _mm512_stream_si512((void *)to, x);
    else
        line_put(to, x);
}

ALWAYS_INLINE void finish_some(const char *from, number *to, long ldc) {
    vec x[AT_ONCE];
    int column = 0;
#if STEP_NUMBERS == 32
    UNROLLED for (; column + 32 <= C_COLUMNS; column += 32) {
        vec y[AT_ONCE];
        take_sums(x, from, column), take_sums(y, from, column + 16);
        UNROLLED for (int i = 0; i < AT_ONCE; i++)
            put_result(to + i * ldc + column, (line)_mm512_cvtne2ps_pbh(y[i], x[i]));
    }
    if (column == C_COLUMNS) return;
    take_sums(x, from, column);
    UNROLLED for (int i = 0; i < AT_ONCE; i++)
        _mm256_storeu_si256((__m256i *)(to + i * ldc + column), (__m256i)_mm512_cvtneps_pbh(x[i]));
#else
    UNROLLED for (; column < C_COLUMNS; column += 16) {
        take_sums(x, from, column);
        UNROLLED for (int i = 0; i < AT_ONCE; i++) put_result(to + i * ldc + column, _mm512_castps_si512(x[i]));
    }
#endif
}
#endif

// So many rows of C, or a few more. Fields are copied for the loop: kept in memory, each row would wait for the last one's.
ALWAYS_INLINE void finish_until(finishing *pending, long rows) {
#if SIMPLE
    finishing f = *pending;
    if (rows > f.rows) rows = f.rows;
    for (; rows > 0; rows -= AT_ONCE, f.rows -= AT_ONCE, f.from += SWAP ? 16 : COLS * 4, f.to += AT_ONCE * f.ldc)
        finish_some(f.from, f.to, f.ldc);
    *pending = f;
#else
    (void)pending, (void)rows;
#endif
}

// All that are left.
static __attribute__((noinline)) void finish_rest(finishing *pending) { finish_until(pending, C_ROWS); }

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
