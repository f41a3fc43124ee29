// Softmax of each row: y[r, c] = exp(x[r, c] - max_r) / sum_r, any rows and columns: CUDA, HIP and CPU emulation.
//
// TEAM threads share a row, ROWS rows a block; a thread takes WIDTH neighbours at a time, every TEAM * WIDTH columns.
// KEEP    0, memory: a row is read anew for each pass
//         1, shared: a thread keeps its columns in shared memory, in the format of sums
//         2, registers: it keeps ITEMS times WIDTH of them in registers
// ONLINE  0: the maximum, then the sum; 1: both at once, where what a thread has added up so far shrinks when its maximum
//         grows: one reduction over the team instead of two, and a second exponential of each element
#include "dialect.h"
#include "exponential.h"
#include "team.h"

typedef TYPE_ACC Num;
typedef Vec<Num, WIDTH> Few;
typedef Vec<Num, 2> Both;  // maximum and sum

struct Row {
    const TYPE* x;
    TYPE* y;
    int cols;  // none where the last block has fewer rows than teams; such a team still meets the others at barriers
};

DG_DEVICE Num larger(Num x, Num most) { return x > most ? x : most; }  // a NaN in x spoils the sum instead

// Calls use(i, c) for each of a thread's packs of columns: its number and its first column.
template <typename Use>
DG_DEVICE void each_pack(const Row& row, Use use) {
    const int first = thread_id() % TEAM * WIDTH;
#if KEEP == 2
    DG_UNROLL for (int i = 0; i < ITEMS; ++i)
        if (first + i * (TEAM * WIDTH) < row.cols) use(i, first + i * (TEAM * WIDTH));
#else
    int i = 0;
    DG_NO_UNROLL for (int c = first; c < row.cols; c += TEAM * WIDTH) use(i++, c);
#endif
}

DG_DEVICE Few load(const Row& row, int c) {
    Vec<TYPE, WIDTH> stored = load_global<Vec<TYPE, WIDTH>>(row.x + c);
    Few out;
    DG_UNROLL for (int e = 0; e < WIDTH; ++e) widen(stored.v[e], out.v[e]);
    return out;
}

// What a thread keeps of its row between passes.
struct Kept {
#if KEEP == 2
    Few packs[ITEMS];
    DG_DEVICE void put(int i, const Few& values) { packs[i] = values; }
    DG_DEVICE Few get(const Row&, int i, int) const { return packs[i]; }
#elif KEEP == 1
    // Neighbouring threads' numbers are neighbours.
    DG_DEVICE static u32 place(int i, int e) {
        return shared_begin() + TEAM_BYTES + ((i * WIDTH + e) * THREADS + thread_id()) * sizeof(Num);
    }
    DG_DEVICE void put(int i, const Few& values) {
        DG_UNROLL for (int e = 0; e < WIDTH; ++e) store_shared(place(i, e), values.v[e]);
    }
    DG_DEVICE Few get(const Row&, int i, int) const {
        Few out;
        DG_UNROLL for (int e = 0; e < WIDTH; ++e) out.v[e] = load_shared<Num>(place(i, e));
        return out;
    }
#else
    DG_DEVICE void put(int, const Few&) {}
    DG_DEVICE Few get(const Row& row, int, int c) const { return load(row, c); }
#endif
};

// Maximum and sum of the row. Afterwards `kept` has exponentials, where it keeps anything and ONLINE is 0.
DG_DEVICE Both total(const Row& row, Kept& kept) {
    Num most = lowest(Num()), sum = 0;
#if ONLINE
    each_pack(row, [&](int i, int c) {
        Few x = load(row, c);
        kept.put(i, x);
        Num next = most;
        DG_UNROLL for (int e = 0; e < WIDTH; ++e) next = larger(x.v[e], next);
        sum *= exponential(most - next);
        DG_UNROLL for (int e = 0; e < WIDTH; ++e) sum += exponential(x.v[e] - next);
        most = next;
    });
    return over_team(Both{{most, sum}}, [](const Both& a, const Both& b) {
        Num next = larger(a.v[0], b.v[0]);
        return Both{{next, a.v[1] * exponential(a.v[0] - next) + b.v[1] * exponential(b.v[0] - next)}};
    });
#else
    each_pack(row, [&](int i, int c) {
        Few x = load(row, c);
        kept.put(i, x);
        DG_UNROLL for (int e = 0; e < WIDTH; ++e) most = larger(x.v[e], most);
    });
    most = over_team(most, [](Num a, Num b) { return larger(a, b); });
    each_pack(row, [&](int i, int c) {
        Few x = kept.get(row, i, c);
        DG_UNROLL for (int e = 0; e < WIDTH; ++e) {
            x.v[e] = exponential(x.v[e] - most);
            sum += x.v[e];
        }
        kept.put(i, x);
    });
    return Both{{most, over_team(sum, [](Num a, Num b) { return a + b; })}};
#endif
}

DG_KERNEL(TEAM * ROWS, 1)
#if TOTALS
softmax(const TYPE* x, TYPE* y, i64 rows, int cols, i64 stride_x, i64 stride_y, Num* totals) {
#else
softmax(const TYPE* x, TYPE* y, i64 rows, int cols, i64 stride_x, i64 stride_y) {
#endif
    const i64 number = (i64)block_id() * ROWS + thread_id() / TEAM;
    const Row row = {x + number * stride_x, y + number * stride_y, number < rows ? cols : 0};
    Kept kept;
    const Both all = total(row, kept);
#if TOTALS
    const Num scale = 1;  // whoever reads the row divides
    if (number < rows && thread_id() % TEAM == 0) store_global(totals + number, all.v[1]);
#else
    const Num scale = 1 / all.v[1];
#endif
    each_pack(row, [&](int i, int c) {
        Few values = kept.get(row, i, c);
        Vec<TYPE, WIDTH> out;
        DG_UNROLL for (int e = 0; e < WIDTH; ++e) {
            constexpr bool FINISHED = KEEP != 0 && !ONLINE;
            Num term = FINISHED ? values.v[e] : exponential(values.v[e] - all.v[0]);
            narrow(term * scale, out.v[e]);
        }
        store_global(row.y + c, out);
    });
}
