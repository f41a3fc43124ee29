// Factors of blocks of A and B: one for BLOCK_A rows of A, or BLOCK_B columns of B, and 128 steps of K.
//
// Warps copy those of their rows and of their tile's columns to a ring in shared memory, blocks of K ahead, so that they
// may come from memory as late as tiles do. While a block's products run, it reads that block's factors and asks for
// those of a later one. The first of a tile are asked for before the tile before it is stored.
#pragma once

// Where the factors are. Distances are in numbers, of any sign and order.
struct BlockScales {
    const float *a, *b;
    i64 a_matrix, a_row, a_step, b_matrix, b_row, b_step;
};

constexpr int STEPS_OF_FACTOR = 128;
DG_DEVICE constexpr int largest_divisor(int n) {  // that it has in common with 128; of `a | b`, that both have
    int d = 128;
    while (n % d) d /= 2;
    return d;
}

// A thread's copies to shared memory, and those it has asked for since the last `numbers_commit` as a group.
DG_DEVICE void copy_number(u32 to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
DG_DEVICE void numbers_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until all but the latest groups have come: of a full ring, the oldest.
DG_DEVICE void numbers_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(FACTOR_RING - 2) : "memory");
}
DG_DEVICE float load_number(u32 from) { return __int_as_float((int)load_shared<u32>(from)); }

struct Factors {
    // Who shares copies: a warp, or, of single columns, of which there are many, a warpgroup.
    static constexpr int SHARE = BLOCK_B == 1 ? 128 : 32;
    static constexpr int HIGH = TILE_M / 64, OF_A = BLOCK_A == 1 ? SHARE / 2 * HIGH : HIGH, ROWS = HIGH * (BLOCK_A == 1 ? 2 : 1);
    static constexpr int SAME = largest_divisor(STEP_N | BN);  // columns that always lie in one block of B
    static constexpr int WIDE = BLOCK_B == 1 ? BN : (128 - SAME + BN + 127) / 128;
    static constexpr int GROUP_WIDE = BLOCK_B == 1 ? 8 : SAME, GROUPS = BLOCK_B == 1 ? 1 : BN / SAME;
    // A block's factors: of A, then, from B_AT on, of B.
    static constexpr int B_AT = FACTORS - (BLOCK_B == 1 ? BN : 4), COPIES = (B_AT + WIDE + SHARE - 1) / SHARE;
    static_assert(OF_A <= B_AT && B_AT + WIDE <= FACTORS, "factors fit in their places");
    static constexpr int MOST_GROUPS = 12;  // that are selected while products run: registers hold no more
    const float* from[COPIES];
    float a[ROWS], b[GROUPS];  // of this thread's rows; of groups of columns
    i64 a_step, b_step;
    u32 ring;         // of this warp or warpgroup
    u32 at = 0;       // where in the ring the next block's are
    int left, more;   // blocks that are not asked for yet: of this piece, and of K
    int start;        // the tile's first column in its block of B

    DG_DEVICE static int own_row() { return threadIdx.x / 32 % 4 * 16; }  // of a warp in 64
    DG_DEVICE static u32 place(u32 block) { return block % FACTOR_RING * (FACTORS * 4); }

    DG_DEVICE Factors(u32 ring) : ring(ring + threadIdx.x / SHARE * (FACTOR_RING * FACTORS * 4)) {}
    DG_DEVICE void begin(const Problem& p, const BlockScales& f, const Piece& w, int row) {
        int lane = threadIdx.x % SHARE, block = w.first * ATOMS;
        const float* first_a = f.a + w.batch * f.a_matrix + block * f.a_step;
        const float* first_b = f.b + w.batch * f.b_matrix + block * f.b_step;
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {  // rows and columns that do not exist have the last one's
            int v = i * SHARE + lane, c = v - B_AT;
            int r = w.m + row + (SHARE == 128 ? v - own_row() : BLOCK_A == 1 ? v / 16 * 64 + v % 16 : v * 64);
            c = BLOCK_B == 1 ? w.n + c : w.n / BLOCK_B + c;
            from[i] = v < B_AT ? first_a + min(r, p.m - 1) / BLOCK_A * f.a_row
                               : first_b + min(c, (p.n - 1) / BLOCK_B) * f.b_row;
        }
        a_step = f.a_step, b_step = f.b_step;
        left = w.steps * ATOMS;
        more = (p.k + STEPS_OF_FACTOR - 1) / STEPS_OF_FACTOR - block - 1;
        start = w.n % 128;
#pragma unroll
        for (int i = 0; i < FACTOR_RING - 1; ++i) ask(i);  // the other place is of the block that was read last
    }
    // For the factors of a block, which come `ahead` blocks after the next one's. Behind the last one, where all products
    // are zero, they are its own.
    DG_DEVICE void ask(int ahead) {
        if (left-- > 0) {
            u32 to = ring + place(at + ahead);
            bool on = ATOMS == 1 || more-- > 0;
#pragma unroll
            for (int i = 0; i < COPIES; ++i) {
                int v = i * SHARE + threadIdx.x % SHARE;
                if (v < OF_A || v >= B_AT && v < B_AT + WIDE) copy_number(to + v * 4, from[i]);
                if (on) from[i] += v < B_AT ? a_step : b_step;
            }
        }
        numbers_commit();
    }
    // Reads the next block's factors: those that others need stay where they are until `add`.
    DG_DEVICE u32 next() {
        numbers_wait();
        if (SHARE == 32)
            __syncwarp();
        else
            meet(1 + threadIdx.x / 128, 128);
        // All threads' have come, and all have used those of the block before, whose place is free.
        u32 mine = ring + place(at);
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
            a[i] = load_number(mine + (BLOCK_A > 1 ? i : i / 2 * (SHARE / 2) + (SHARE == 128 ? own_row() : 0) + i % 2 * 8 + lane / 4) * 4);
        if (BLOCK_B > 1) {
            float all[WIDE];
#pragma unroll
            for (int i = 0; i < WIDE; ++i) all[i] = load_number(mine + (B_AT + i) * 4);
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                b[g] = all[0];
#pragma unroll
                for (int i = 1; i < WIDE; ++i)
                    if (start + g * GROUP_WIDE >= i * 128) b[g] = all[i];
                if (GROUPS <= MOST_GROUPS) pin(b[g]);
            }
        }
        ask(FACTOR_RING - 1);
        at = (at + 1) % FACTOR_RING;
        return mine;
    }
    // Adds a block's products, times its factors.
    DG_DEVICE void add(acc_t (&sums)[CHUNKS * 4], acc_t (&some)[CHUNKS * 4], u32 mine) {
#pragma unroll
        for (int k = 0; k < CHUNKS * 4; ++k) pin(some[k]);
#pragma unroll
        for (int column = 0; column < BN; column += GROUP_WIDE) {
            float f = BLOCK_B == 1 ? 1.0f : b[BLOCK_B == 1 ? 0 : column / GROUP_WIDE], even = 1.0f, odd = 1.0f;
            if (BLOCK_B == 1) {
                u64 both = load_shared<u64>(mine + (B_AT + column + threadIdx.x % 4 * 2) * 4);
                even = __int_as_float((int)both), odd = __int_as_float((int)(both >> 32));
            }
#pragma unroll
            for (int t = 0; t < HIGH; ++t) {
                float upper = BLOCK_A == 1 ? a[2 * t] : a[t], lower = BLOCK_A == 1 ? a[2 * t + 1] : a[t];
                float* sum = &sums[t * (BN / 2) + column / 2];
                const float* more = &some[t * (BN / 2) + column / 2];
                if (BLOCK_B == 1) {
                    sum[0] += more[0] * (upper * even), sum[1] += more[1] * (upper * odd);
                    sum[2] += more[2] * (lower * even), sum[3] += more[3] * (lower * odd);
                } else {
                    upper *= f, lower *= f;
#pragma unroll
                    for (int i = 0; i < GROUP_WIDE / 2; ++i)
                        sum[i] += more[i] * (i / 2 % 2 ? lower : upper);
                }
            }
        }
    }
};
