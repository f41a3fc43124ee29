// 2-D convolution for any processor, any sizes, both layouts. The knobs are macros:
//     cc -O3 -std=gnu11 -shared -fPIC -pthread -DTYPE_X=f32 -DTYPE_ACC=f32 -DTYPE_Y=f32 -DVECTOR_BYTES=16 -DTW=6 -DNV=4
//         -DCI_BLOCK=64 -DCHANNELS_OUTSIDE=0 -I.. conv2d.c -o conv2d.so
//
// A tile is TW neighbouring outputs of a row by NV vectors of output channels; its sums stay in registers while the
// filter's taps and the input channels go by. Each input is widened and multiplied by whole vectors of filters, which
// are packed in the order in which a tile reads them. Layouts differ in their strides alone.
#include "numbers.h"
#include "cpu_pool.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define WIDEN JOIN(widen_, TYPE_X)
#define NARROW JOIN(narrow_, TYPE_Y)
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("GCC unroll 64")
#endif

typedef TYPE_ACC vec __attribute__((vector_size(VECTOR_BYTES)));
#define LANES ((long)(VECTOR_BYTES / sizeof(TYPE_ACC)))
#define PANEL (NV * LANES)  // output channels of a tile

typedef struct {
    int64_t image, row, column, channel;
} image_strides;

typedef struct {
    int64_t row, column, in, out;
} filter_strides;

typedef struct {
    const TYPE_X *x, *weight;
    TYPE_Y *y;
    vec *packed;  // NV vectors for each tap and input channel, panel by panel
    int64_t n, h, w, ci, co, k, stride, pad, out_h, out_w;
    image_strides from, to;
    filter_strides filter;
    _Atomic long next;  // the task to draw
} job;

static inline long least(long a, long b) { return a < b ? a : b; }
static inline long panels(const job *g) { return (g->co + PANEL - 1) / PANEL; }
static inline long panel_vectors(const job *g) { return g->ci * g->k * g->k * NV; }

// --- packing ----------------------------------------------------------------------------------------------------------

static void pack_panel(const job *g, long panel) {
    TYPE_ACC *to = (TYPE_ACC *)(g->packed + panel * panel_vectors(g));
    long first = panel * PANEL;
    for (long block = 0; block < g->ci; block += CI_BLOCK)
        for (long row = 0; row < g->k; row++)
            for (long column = 0; column < g->k; column++)
                for (long in = block; in < least(block + CI_BLOCK, g->ci); in++, to += PANEL) {
                    const TYPE_X *from =
                        g->weight + row * g->filter.row + column * g->filter.column + in * g->filter.in;
                    for (long lane = 0; lane < PANEL; lane++)
                        to[lane] = first + lane < g->co ? WIDEN(from[(first + lane) * g->filter.out]) : 0;
                }
}

static void draw_panels(void *arg, int thread) {
    job *g = arg;
    (void)thread;
    for (long panel; (panel = atomic_fetch_add(&g->next, 1)) < panels(g);) pack_panel(g, panel);
}

// --- multiplying ------------------------------------------------------------------------------------------------------

// One tap of the filter, over `channels` input channels. `real`: which of the TW inputs lie in the image and belong to an
// output; 0 where all do.
ALWAYS_INLINE void one_tap(vec sums[TW][NV], const job *g, long at, long channels, const vec *packed, const _Bool *real) {
    long apart = g->stride * g->from.column;
    for (long channel = 0; channel < channels; channel++, at += g->from.channel, packed += NV) {
        UNROLLED for (int t = 0; t < TW; t++) {
            TYPE_ACC input = !real || real[t] ? WIDEN(g->x[at + t * apart]) : 0;
            UNROLLED for (int v = 0; v < NV; v++) sums[t][v] += input * packed[v];
        }
    }
}

static void one_tile(const job *g, long image, long p, long q, long panel) {
    vec sums[TW][NV] = {0};
    const vec *packed = g->packed + panel * panel_vectors(g);
    for (long block = 0; block < g->ci; block += CI_BLOCK) {
        long channels = least(CI_BLOCK, g->ci - block);
        for (long i = 0; i < g->k; i++)
            for (long j = 0; j < g->k; j++, packed += channels * NV) {
                long row = p * g->stride - g->pad + i, column = q * g->stride - g->pad + j;
                if (row < 0 || row >= g->h) continue;
                long at = image * g->from.image + row * g->from.row + column * g->from.column + block * g->from.channel;
                _Bool real[TW], all = 1;
                UNROLLED for (int t = 0; t < TW; t++) {
                    long place = column + t * g->stride;
                    real[t] = q + t < g->out_w && place >= 0 && place < g->w;
                    all = all && real[t];
                }
                if (all)
                    one_tap(sums, g, at, channels, packed, 0);
                else
                    one_tap(sums, g, at, channels, packed, real);
            }
    }
    vec done[TW][NV];  // a copy to pick lanes from: what is indexed at run time cannot stay in registers
    UNROLLED for (int t = 0; t < TW; t++)
        UNROLLED for (int v = 0; v < NV; v++) done[t][v] = sums[t][v];
    TYPE_Y *to = g->y + image * g->to.image + p * g->to.row + q * g->to.column + panel * PANEL * g->to.channel;
    long width = least(TW, g->out_w - q), height = least(PANEL, g->co - panel * PANEL);
    for (long t = 0; t < width; t++)
        for (long lane = 0; lane < height; lane++)
            to[t * g->to.column + lane * g->to.channel] = NARROW(done[t][lane / LANES][lane % LANES]);
}

// A task is a row of outputs by a panel of output channels.
static void draw_rows(void *arg, int thread) {
    job *g = arg;
    (void)thread;
    long rows = g->n * g->out_h, tasks = rows * panels(g);
    for (long task; (task = atomic_fetch_add(&g->next, 1)) < tasks;) {
        long row = CHANNELS_OUTSIDE ? task % rows : task / panels(g);
        long panel = CHANNELS_OUTSIDE ? task / rows : task % panels(g);
        for (long q = 0; q < g->out_w; q += TW) one_tile(g, row / g->out_h, row % g->out_h, q, panel);
    }
}

// Strides count elements, in the order of the members above; `packed` holds panels(g) * panel_vectors(g) vectors.
void deepgen_conv2d(const TYPE_X *x, const TYPE_X *weight, TYPE_Y *y, void *packed, int64_t n, int64_t h, int64_t w,
                    int64_t ci, int64_t co, int64_t k, int64_t stride, int64_t pad, int64_t out_h, int64_t out_w,
                    int64_t x_image, int64_t x_row, int64_t x_column, int64_t x_channel, int64_t filter_row,
                    int64_t filter_column, int64_t filter_in, int64_t filter_out, int64_t y_image, int64_t y_row,
                    int64_t y_column, int64_t y_channel, int32_t threads) {
    job g = {.x = x, .weight = weight, .y = y, .packed = packed, .n = n, .h = h, .w = w, .ci = ci, .co = co, .k = k,
             .stride = stride, .pad = pad, .out_h = out_h, .out_w = out_w,
             .from = {x_image, x_row, x_column, x_channel}, .to = {y_image, y_row, y_column, y_channel},
             .filter = {filter_row, filter_column, filter_in, filter_out}};
    pool_run(threads, draw_panels, &g);
    g.next = 0;
    pool_run(threads, draw_rows, &g);
}
