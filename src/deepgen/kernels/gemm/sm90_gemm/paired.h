// A pair of products of the same A: a tile of BN columns of results has BN of each, side by side, from both B. A thread
// has the sums of both for its results, which the epilogue makes one of: nothing else is exchanged.
//
// From here on BN and CHUNKS are those of the products.
#pragma once

constexpr int RESULT_N = BN, RESULT_CHUNKS = CHUNKS, PRODUCT_N = 2 * BN, PRODUCT_CHUNKS = 2 * CHUNKS;
#undef BN
#define BN PRODUCT_N
#define CHUNKS PRODUCT_CHUNKS

DG_DEVICE void pair_up(
    const Problem& p, const Piece& w, int row, const acc_t (&sums)[CHUNKS * 4], acc_t (&results)[RESULT_CHUNKS * 4]
) {
    constexpr int ALL = RESULT_N / 8, GROUP_OF = ALL % 4 == 0 ? 4 : ALL % 2 == 0 ? 2 : 1;
    int lane = threadIdx.x % 32, column = w.n + lane % 4 * 2;
    row += w.m + lane / 4;
#pragma unroll
    for (int t = 0; t < TILE_M / 64; ++t)
#pragma unroll
        for (int j = 0; j < ALL; j += GROUP_OF) {
            Operated<GROUP_OF> operated;
            operated.ask(p.operands, 0, p.m, p.n, row + t * 64, column + j * 8);
#pragma unroll
            for (int i = 0; i < GROUP_OF * 4; ++i) {
                int first = (t * 2 * ALL + j) * 4 + i;
                results[(t * ALL + j) * 4 + i] = operated(i, p.alpha * sums[first], p.alpha * sums[first + ALL * 4]);
            }
        }
}
