/* Manhattan distances between two sets of points: d[i][j] is the sum over k of |x[i][k] - y[k][j]|. The loops compute a
   tile of ROWS x COLS distances, STEPS values of k at a time. The best tile depends on the processor's registers and
   caches, and on what the compiler makes of the loops. */
#include <math.h>

/* A tile at an edge: rows x cols distances from (i, j) on. */
static inline void tile(float *restrict d, const float *restrict x, const float *restrict y, int n, int dims, int i,
                        int j, int rows, int cols) {
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) {
            float sum = 0.0f;
            for (int k = 0; k < dims; k++) sum += fabsf(x[(long)(i + r) * dims + k] - y[(long)k * n + j + c]);
            d[(long)(i + r) * n + j + c] = sum;
        }
}

void distances(float *restrict d, const float *restrict x, const float *restrict y, int m, int n, int dims) {
    for (int i = 0; i < m; i += ROWS)
        for (int j = 0; j < n; j += COLS) {
            if (i + ROWS > m || j + COLS > n) {
                tile(d, x, y, n, dims, i, j, i + ROWS > m ? m - i : ROWS, j + COLS > n ? n - j : COLS);
                continue;
            }
            float sums[ROWS][COLS];
            for (int r = 0; r < ROWS; r++)
                for (int c = 0; c < COLS; c++) sums[r][c] = 0.0f;
            int k = 0;
            for (; k + STEPS <= dims; k += STEPS)
                for (int s = 0; s < STEPS; s++)
                    for (int r = 0; r < ROWS; r++)
                        for (int c = 0; c < COLS; c++)
                            sums[r][c] += fabsf(x[(long)(i + r) * dims + k + s] - y[(long)(k + s) * n + j + c]);
            for (; k < dims; k++)
                for (int r = 0; r < ROWS; r++)
                    for (int c = 0; c < COLS; c++)
                        sums[r][c] += fabsf(x[(long)(i + r) * dims + k] - y[(long)k * n + j + c]);
            for (int r = 0; r < ROWS; r++)
                for (int c = 0; c < COLS; c++) d[(long)(i + r) * n + j + c] = sums[r][c];
        }
}
