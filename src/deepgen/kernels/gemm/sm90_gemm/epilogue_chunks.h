// Operands of an epilogue as a thread of a warpgroup has sums: of COUNT chunks, four sums of each, two neighbours in a row
// and two in the row eight below. Neighbours are loaded as one where they lie so. Where a tile goes beyond the matrix, what
// does not exist has the last row's or column's operands: loads behind branches would each be waited for.
#pragma once

#if FIXED
// Whether all tiles lie in the matrix: those of whole clusters.
constexpr bool ALL_ROWS = SIZE_M % (BM * CLUSTER_M) == 0, ALL_COLUMNS = SIZE_N % (BN * CLUSTER_N) == 0 && OVERLAP == 0;
#else
constexpr bool ALL_ROWS = false, ALL_COLUMNS = false;
#endif

DG_DEVICE float widened(u32 pair, bool second, const bf16*) { return __int_as_float(second ? pair & 0xffff0000 : pair << 16); }
DG_DEVICE float widened(u32 pair, bool second, const f16*) {
    return widen(f16{(unsigned short)(second ? pair >> 16 : pair)});
}

// Two neighbours in 16 bits each, as one or each from its place.
template <class T>
struct Two {
    u32 pair;
    static constexpr u64 APART = 3;
    DG_DEVICE void ask(const T* from) { pair = *reinterpret_cast<const u32*>(from); }
    DG_DEVICE void ask(const T* from, int i, int j) { pair = from[i].bits | (u32)from[j].bits << 16; }
    DG_DEVICE float at(int i) const { return widened(pair, i, (const T*)nullptr); }
};
template <>
struct Two<f32> {
    float a, b;
    static constexpr u64 APART = 7;
    DG_DEVICE void ask(const f32* from) {
        Pair<f32> both = *reinterpret_cast<const Pair<f32>*>(from);
        a = both.a, b = both.b;
    }
    DG_DEVICE void ask(const f32* from, int i, int j) { a = from[i], b = from[j]; }
    DG_DEVICE float at(int i) const { return i ? b : a; }
};

template <class T, int COUNT>
struct ByColumn {
    Two<T> two[COUNT];
    DG_DEVICE void ask(const T* from, int m, int n, int row, int column) {
        from += column;
        if (((u64)from & Two<T>::APART) == 0 && (ALL_COLUMNS || column + COUNT * 8 <= n)) {
#pragma unroll
            for (int j = 0; j < COUNT; ++j) two[j].ask(from + j * 8);
        } else {
            int last = n - 1 - column;
#pragma unroll
            for (int j = 0; j < COUNT; ++j) two[j].ask(from, min(j * 8, last), min(j * 8 + 1, last));
        }
    }
    DG_DEVICE float at(int i) const { return two[i / 4].at(i % 2); }
};

template <class T, int COUNT>
struct ByRow {
    float two[2];
    DG_DEVICE void ask(const T* from, int m, int n, int row, int column) {
        two[0] = widen(from[min(row, m - 1)]);
        two[1] = widen(from[min(row + 8, m - 1)]);
    }
    DG_DEVICE float at(int i) const { return two[i / 2 % 2]; }
};

template <class T, int COUNT>
struct ByElement {
    Two<T> two[COUNT * 2];
    DG_DEVICE void ask(const T* from, int ld, i64 matrix, int m, int n, int row, int column) {
        from += matrix + column;
        const T* first = from + (i64)(ALL_ROWS ? row : min(row, m - 1)) * ld;
        const T* second = from + (i64)(ALL_ROWS ? row + 8 : min(row + 8, m - 1)) * ld;
        bool together = (((u64)first | (u64)second) & Two<T>::APART) == 0;
        if (together && (ALL_COLUMNS || column + COUNT * 8 <= n)) {
#pragma unroll
            for (int j = 0; j < COUNT * 2; ++j) two[j].ask((j % 2 ? second : first) + j / 2 * 8);
        } else {
            int last = n - 1 - column;
#pragma unroll
            for (int j = 0; j < COUNT * 2; ++j)
                two[j].ask(j % 2 ? second : first, min(j / 2 * 8, last), min(j / 2 * 8 + 1, last));
        }
    }
    DG_DEVICE float at(int i) const { return two[i / 2].at(i % 2); }
};

template <class T, int COUNT>
struct One {
    float value;
    DG_DEVICE void ask(const T* from, int m, int n, int row, int column) { value = widen(from[0]); }
    DG_DEVICE float at(int i) const { return value; }
};
