// Products of which only a band of diagonals counts: where a row's number less a column's is from `least` to `most`.
// BAND  1: of C, outside of which it is zero: tiles that do not meet the band have no steps
//       2: of A, which is zero outside: steps of K that a tile's rows do not meet are left out
#pragma once

DG_DEVICE bool in_band(const Problem& p, int row, int column) {
    return row - column >= p.least && row - column <= p.most;
}

// The part of a piece of work that counts, for a tile that begins at this row and column.
DG_DEVICE Work of_band(const Problem& p, const Work& whole, int row, int column) {
    Work w = whole;
    int last = (row + BM < p.m ? row + BM : p.m) - 1;
#if BAND == 1
    if (last - column < p.least || row - ((column + BN < p.n ? column + BN : p.n) - 1) > p.most) w.steps = 0;
#else
    int from = row - p.most, end = last - p.least + 1, begin = w.k / BK, to = begin + w.steps;
    from = from > 0 ? from / BK : 0;
    end = end > 0 ? (end + BK - 1) / BK : 0;
    if (from > begin) begin = from;
    if (end < to) to = end;
    w.k = begin * BK;
    w.steps = to > begin ? to - begin : 0;
#endif
    return w;
}
