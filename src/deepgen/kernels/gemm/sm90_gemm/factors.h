// Factors of blocks of A and B: one for BLOCK_A rows of A, or BLOCK_B columns of B, and 128 steps of K.
//
// A thread holds those of its rows and of its tile's columns. When a block's products are added, it asks for the factors
// of the block after the next: they have a whole step to arrive, so products never wait for them. The first two of a tile
// are asked for before the tile before it is stored.
#pragma once

// Where the factors are. Distances are in numbers, of any sign and order.
struct BlockScales {
    const float *a, *b;
    i64 a_matrix, a_row, a_step, b_matrix, b_row, b_step;
};

constexpr int STEPS_OF_FACTOR = 128;
DG_DEVICE constexpr int largest_divisor(int n) {  // that it has in common with 128
    int d = 128;
    while (n % d) d /= 2;
    return d;
}

struct Factors {
    static constexpr int HIGH = TILE_M / 64, ROWS = HIGH * (BLOCK_A == 1 ? 2 : 1);
    static constexpr int SAME = largest_divisor(STEP_N);  // columns that always lie in one block of B
    static constexpr int WIDE = BLOCK_B == 1 ? (BN + 31) / 32 : (128 - SAME + BN + 127) / 128;
    const float *from_a[ROWS], *from_b[WIDE];
    float a[ROWS], b[WIDE], next_a[ROWS], next_b[WIDE];  // of single columns each lane holds every 32nd
    i64 a_step, b_step;
    int left, start;  // blocks of K that are to come; the tile's first column in its block of B

    DG_DEVICE void begin(const Problem& p, const BlockScales& f, const Piece& w, int row) {
        int lane = threadIdx.x % 32, block = w.first * ATOMS;
        const float* first = f.a + w.batch * f.a_matrix + block * f.a_step;
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {  // rows that do not exist have the last one's
            int r = w.m + row + lane / 4 + (BLOCK_A == 1 ? i / 2 * 64 + i % 2 * 8 : i * 64);
            from_a[i] = first + min(r, p.m - 1) / BLOCK_A * f.a_row;
        }
        first = f.b + w.batch * f.b_matrix + block * f.b_step;
#pragma unroll
        for (int i = 0; i < WIDE; ++i) {
            int c = BLOCK_B == 1 ? w.n + i * 32 + lane : w.n / BLOCK_B + i;
            from_b[i] = first + min(c, (p.n - 1) / BLOCK_B) * f.b_row;
        }
        a_step = f.a_step, b_step = f.b_step;
        left = (p.k + STEPS_OF_FACTOR - 1) / STEPS_OF_FACTOR - block;
        start = w.n % 128;
        next();
        next();
    }
    // Goes on to the next block. Behind the last one, where all products are zero, factors stay as they are.
    DG_DEVICE void next() {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) a[i] = next_a[i];
#pragma unroll
        for (int i = 0; i < WIDE; ++i) b[i] = next_b[i];
        if (left-- <= 0) return;
#pragma unroll
        for (int i = 0; i < ROWS; ++i) next_a[i] = *from_a[i], from_a[i] += a_step;
#pragma unroll
        for (int i = 0; i < WIDE; ++i) next_b[i] = *from_b[i], from_b[i] += b_step;
    }
    // Adds a block's products, times its factors.
    DG_DEVICE void add(acc_t (&sums)[CHUNKS * 4], acc_t (&some)[CHUNKS * 4]) {
#pragma unroll
        for (int k = 0; k < CHUNKS * 4; ++k) pin(some[k]);
#pragma unroll
        for (int t = 0; t < HIGH; ++t)
#pragma unroll
            for (int column = 0; column < BN; column += BLOCK_B == 1 ? 8 : SAME < BN ? SAME : BN) {
                float upper = BLOCK_A == 1 ? a[2 * t] : a[t], lower = BLOCK_A == 1 ? a[2 * t + 1] : a[t];
                float* sum = &sums[t * (BN / 2) + column / 2];
                const float* more = &some[t * (BN / 2) + column / 2];
                if (BLOCK_B == 1) {
                    int from = column % 32 + threadIdx.x % 4 * 2;
                    float even = __shfl_sync(~0u, b[column / 32], from);
                    float odd = __shfl_sync(~0u, b[column / 32], from + 1);
                    sum[0] += more[0] * (upper * even), sum[1] += more[1] * (upper * odd);
                    sum[2] += more[2] * (lower * even), sum[3] += more[3] * (lower * odd);
                } else {
                    float f = b[0];
#pragma unroll
                    for (int i = 1; i < WIDE; ++i)
                        if (start + column >= i * 128) f = b[i];
                    upper *= f, lower *= f;
#pragma unroll
                    for (int i = 0; i < (SAME < BN ? SAME : BN) / 2; ++i)
                        sum[i] += more[i] * (i / 2 % 2 ? lower : upper);
                }
            }
    }
};
