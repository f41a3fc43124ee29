// C = A * B in f32, with the parameters that gemm.T1.json tunes.
//
// All three matrices are stored by columns of C's rows: A is K x M and B is K x N, each row contiguous, and C is N x M.
// A block of MDIMC x NDIMC threads computes MWG x NWG elements of C, KWG terms at a time. SA and SB stage A and B in
// shared memory, by threads in rows of MDIMA and NDIMB. Elements are moved VWM and VWN at a time; STRM and STRN spread a
// thread's vectors over the tile instead of giving it neighbouring ones.

#if PRECISION != 32
#error "only PRECISION 32 is written"
#endif

#define MWI (MWG / MDIMC)
#define NWI (NWG / NDIMC)
#define THREADS (MDIMC * NDIMC)
#define KDIMA (THREADS / MDIMA)
#define KDIMB (THREADS / NDIMB)

// The place of a thread's element in the tile: its w-th one, in vectors of V, where the tile has D threads side by side.
#define PLACE(w, thread, D, W, V, SPREAD) \
    ((SPREAD) ? ((w) / (V) * (D) + (thread)) * (V) + (w) % (V) : (thread) * (W) + (w))

template <int V>
struct alignas(4 * V > 16 ? 16 : 4 * V) Vector {
    float value[V];
};

// Registers have no address: they are filled element by element.
template <int V>
__device__ inline void load(float* registers, const float* from) {
    const Vector<V> read = *reinterpret_cast<const Vector<V>*>(from);
#pragma unroll
    for (int i = 0; i < V; i++) registers[i] = read.value[i];
}

template <int V>
__device__ inline void store(float* to, const float* registers) {
    Vector<V> written;
#pragma unroll
    for (int i = 0; i < V; i++) written.value[i] = registers[i];
    *reinterpret_cast<Vector<V>*>(to) = written;
}

// A tile of KWG rows by `TILE` columns from a matrix whose rows have `columns`.
template <int TILE, int DIM, int ROWS, int V>
__device__ inline void stage(float* to, const float* from, int columns, int thread) {
    const int x = thread % DIM, y = thread / DIM;
#pragma unroll
    for (int k = y; k < KWG; k += ROWS)
#pragma unroll
        for (int i = x * V; i < TILE; i += DIM * V) {
            float moved[V];
            load<V>(moved, from + (long long)k * columns + i);
            store<V>(to + k * TILE + i, moved);
        }
}

extern "C" __global__ void __launch_bounds__(MDIMC * NDIMC)
    Xgemm(int m, int n, int k, const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c) {
#if SA
    __shared__ __align__(16) float staged_a[KWG * MWG];
#endif
#if SB
    __shared__ __align__(16) float staged_b[KWG * NWG];
#endif
    const int row = blockIdx.x * MWG, column = blockIdx.y * NWG;
#if SA || SB
    const int thread = threadIdx.y * MDIMC + threadIdx.x;
#endif
    float sum[NWI][MWI] = {};

    for (int from = 0; from < k; from += KWG) {
        const float* tile_a = a + (long long)from * m + row;
        const float* tile_b = b + (long long)from * n + column;
#if SA
        stage<MWG, MDIMA, KDIMA, VWM>(staged_a, tile_a, m, thread);
#endif
#if SB
        stage<NWG, NDIMB, KDIMB, VWN>(staged_b, tile_b, n, thread);
#endif
#if SA || SB
        __syncthreads();
#endif
#pragma unroll KWI
        for (int term = 0; term < KWG; term++) {
            float of_a[MWI], of_b[NWI];
#pragma unroll
            for (int w = 0; w < MWI; w += VWM) {
                const int place = PLACE(w, threadIdx.x, MDIMC, MWI, VWM, STRM);
#if SA
                load<VWM>(of_a + w, staged_a + term * MWG + place);
#else
                load<VWM>(of_a + w, tile_a + (long long)term * m + place);
#endif
            }
#pragma unroll
            for (int w = 0; w < NWI; w += VWN) {
                const int place = PLACE(w, threadIdx.y, NDIMC, NWI, VWN, STRN);
#if SB
                load<VWN>(of_b + w, staged_b + term * NWG + place);
#else
                load<VWN>(of_b + w, tile_b + (long long)term * n + place);
#endif
            }
#pragma unroll
            for (int j = 0; j < NWI; j++)
#pragma unroll
                for (int i = 0; i < MWI; i++) sum[j][i] += of_a[i] * of_b[j];
        }
#if SA || SB
        __syncthreads();
#endif
    }

#pragma unroll
    for (int j = 0; j < NWI; j++) {
        const long long line = column + PLACE(j, threadIdx.y, NDIMC, NWI, VWN, STRN);
#pragma unroll
        for (int w = 0; w < MWI; w += VWM)
            store<VWM>(c + line * m + row + PLACE(w, threadIdx.x, MDIMC, MWI, VWM, STRM), sum[j] + w);
    }
}
