// Operands of an epilogue as a thread of a warpgroup has sums: of COUNT chunks, four sums of each, two neighbours in a row
// and two in the row eight below. Neighbours are loaded as one where they lie so.
#pragma once

#if FIXED
constexpr bool ALL_ROWS = SIZE_M % BM == 0, ALL_COLUMNS = SIZE_N % (BN - OVERLAP) == 0 && OVERLAP == 0;
#else
constexpr bool ALL_ROWS = false, ALL_COLUMNS = false;
#endif

DG_DEVICE float widened(u32 pair, bool second, const bf16*) { return __int_as_float(second ? pair & 0xffff0000 : pair << 16); }
DG_DEVICE float widened(u32 pair, bool second, const f16*) {
    return widen(f16{(unsigned short)(second ? pair >> 16 : pair)});
}

// Two neighbours, of which some may not exist: in 16 bits each.
template <class T>
struct Two {
    u32 pair;
    static constexpr u64 APART = 3;
    DG_DEVICE void ask(const T* from, bool whole, bool first, bool second) {
        if (whole) {
            pair = *reinterpret_cast<const u32*>(from);
        } else {
            pair = first ? from[0].bits : 0;
            if (second) pair |= (u32)from[1].bits << 16;
        }
    }
    DG_DEVICE float at(int i) const { return widened(pair, i, (const T*)nullptr); }
};
template <>
struct Two<f32> {
    float a, b;
    static constexpr u64 APART = 7;
    DG_DEVICE void ask(const f32* from, bool whole, bool first, bool second) {
        if (whole) {
            Pair<f32> both = *reinterpret_cast<const Pair<f32>*>(from);
            a = both.a, b = both.b;
        } else {
            a = first ? from[0] : 0.f;
            b = second ? from[1] : 0.f;
        }
    }
    DG_DEVICE float at(int i) const { return i ? b : a; }
};

template <class T, int COUNT>
struct ByColumn {
    Two<T> two[COUNT];
    DG_DEVICE void ask(const T* from, int m, int n, int row, int column) {
        from += column;
        if (((u64)from & Two<T>::APART) == 0 && (ALL_COLUMNS || column + COUNT * 8 <= n)) {
#pragma unroll
            for (int j = 0; j < COUNT; ++j) two[j].ask(from + j * 8, true, true, true);
        } else {
#pragma unroll
            for (int j = 0; j < COUNT; ++j) {
                int c = column + j * 8;
                two[j].ask(from + j * 8, false, c < n, c + 1 < n);
            }
        }
    }
    DG_DEVICE float at(int i) const { return two[i / 4].at(i % 2); }
};

template <class T, int COUNT>
struct ByRow {
    float two[2];
    DG_DEVICE void ask(const T* from, int m, int n, int row, int column) {
        two[0] = row < m ? widen(from[row]) : 0.f;
        two[1] = row + 8 < m ? widen(from[row + 8]) : 0.f;
    }
    DG_DEVICE float at(int i) const { return two[i / 2 % 2]; }
};

template <class T, int COUNT>
struct ByElement {
    Two<T> two[COUNT * 2];
    DG_DEVICE void ask(const T* from, int ld, i64 matrix, int m, int n, int row, int column) {
        const T* first = from + matrix + (i64)row * ld + column;
        const T* second = first + (i64)ld * 8;
        bool together = (((u64)first | (u64)second) & Two<T>::APART) == 0;
        if (together && (ALL_ROWS || row + 8 < m) && (ALL_COLUMNS || column + COUNT * 8 <= n)) {
#pragma unroll
            for (int j = 0; j < COUNT * 2; ++j) two[j].ask((j % 2 ? second : first) + j / 2 * 8, true, true, true);
        } else {
#pragma unroll
            for (int j = 0; j < COUNT * 2; ++j) {
                int c = column + j / 2 * 8;
                bool there = row + j % 2 * 8 < m;
                two[j].ask((j % 2 ? second : first) + j / 2 * 8, false, there && c < n, there && c + 1 < n);
            }
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
