/* One sweep of Jacobi's method on a grid with a border: each inner point becomes the mean of its four neighbours. */
#ifdef _OPENMP
#include <omp.h>
#endif

void jacobi(float *next, const float *grid, int rows, int cols) {
    for (int c = 0; c < cols; c++) {
        next[c] = grid[c];
        next[(rows - 1) * cols + c] = grid[(rows - 1) * cols + c];
    }
#pragma omp parallel for num_threads(THREADS) schedule(static)
    for (int first = 1; first < rows - 1; first += ROWS) {
        const int last = first + ROWS < rows - 1 ? first + ROWS : rows - 1;
        for (int left = 1; left < cols - 1; left += COLS) {
            const int right = left + COLS < cols - 1 ? left + COLS : cols - 1;
            for (int r = first; r < last; r++) {
                const float *at = grid + (long)r * cols;
                for (int c = left; c < right; c++)
                    next[(long)r * cols + c] = 0.25f * (at[c - 1] + at[c + 1] + at[c - cols] + at[c + cols]);
            }
        }
        for (int r = first; r < last; r++) {
            next[(long)r * cols] = grid[(long)r * cols];
            next[(long)r * cols + cols - 1] = grid[(long)r * cols + cols - 1];
        }
    }
}
