// How a GEMM is cut into tasks: PARTITION says what they divide.
typedef struct {
    long p, q, batch;  // parts of the left operand, of the right one, of the batch
} parts;

static parts cut(long tasks, long P, long Q, long batch) {
    if (PARTITION == 0) return (parts){tasks, 1, 1};
    if (PARTITION == 1) return (parts){1, tasks, 1};
    if (PARTITION == 3) return (parts){1, 1, least(tasks, batch)};
    parts best = {1, tasks, 1};
    for (long p = 2; p <= tasks; p++)  // the cut that reads least
        if (tasks % p == 0 && p * Q + tasks / p * P < best.p * Q + best.q * P) best = (parts){p, tasks / p, 1};
    return best;
}
