// AMX tiles in plain C, for processors without them: what the instructions do, a number at a time.
#include <string.h>

typedef struct {
    tile_shapes shapes;
    unsigned char at[8][16][64];
} emulated_tiles;

static _Thread_local emulated_tiles tiles;

static inline void tile_configure(const tile_shapes *shapes) {
    memset(&tiles, 0, sizeof tiles);
    tiles.shapes = *shapes;
}
static inline void tile_release(void) { memset(&tiles, 0, sizeof tiles); }
static inline void tile_zero(int t) { memset(tiles.at[t], 0, sizeof tiles.at[t]); }
static inline void tile_load(int t, const void *from, long stride) {
    tile_zero(t);
    for (int i = 0; i < tiles.shapes.rows[t]; i++)
        memcpy(tiles.at[t][i], (const char *)from + i * stride, tiles.shapes.row_bytes[t]);
}
static inline void tile_stream(int t, const void *from, long stride) { tile_load(t, from, stride); }
static inline void tile_store(int t, void *to, long stride) {
    for (int i = 0; i < tiles.shapes.rows[t]; i++)
        memcpy((char *)to + i * stride, tiles.at[t][i], tiles.shapes.row_bytes[t]);
}

#if BF16
static inline float emulated_bf16(const unsigned char *p) {
    uint32_t bits = (uint32_t)p[1] << 24 | (uint32_t)p[0] << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline void emulated_group(unsigned char *sum, const unsigned char *l, const unsigned char *r) {
    float x;
    memcpy(&x, sum, 4);
    x += emulated_bf16(l) * emulated_bf16(r);
    x += emulated_bf16(l + 2) * emulated_bf16(r + 2);
    memcpy(sum, &x, 4);
}
#else
static inline void emulated_group(unsigned char *sum, const unsigned char *l, const unsigned char *r) {
    int32_t x;
    memcpy(&x, sum, 4);
    for (int e = 0; e < 4; e++)
        x += (LEFT_SIGNED ? (int8_t)l[e] : l[e]) * (RIGHT_SIGNED ? (int8_t)r[e] : r[e]);
    memcpy(sum, &x, 4);
}
#endif

static inline void tile_dot(int to, int left, int right) {
    for (int i = 0; i < tiles.shapes.rows[to]; i++)
        for (int g = 0; g < tiles.shapes.row_bytes[left] / 4; g++)
            for (int j = 0; j < tiles.shapes.row_bytes[to] / 4; j++)
                emulated_group(&tiles.at[to][i][4 * j], &tiles.at[left][i][4 * g], &tiles.at[right][g][4 * j]);
}
