// The order in which parts of C are drawn: along a curve, neighbours share an operand with each other.

// Place t on a Hilbert curve through a square of side 2^order: neighbours on the curve are neighbours in the square.
static inline void on_curve(long order, long t, long *x, long *y) {
    *x = *y = 0;
    for (long s = 1; s < 1 << order; s *= 2, t /= 4) {
        long rx = t / 2 & 1, ry = (t ^ rx) & 1;
        if (!ry) {
            if (rx) *x = s - 1 - *x, *y = s - 1 - *y;
            long turned = *x;
            *x = *y, *y = turned;
        }
        *x += s * rx, *y += s * ry;
    }
}
