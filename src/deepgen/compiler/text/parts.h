// The turns of a parallel loop in parts, one for each thread. A thread does its own part first, which is the same in
// every call: what it reads and writes there may still be in its cache. Then it helps those that began late.
typedef struct {
    _Alignas(64) _Atomic i64 next;
    i64 end;
} loop_part;

static inline void loop_parts(loop_part *parts, int threads, i64 turns) {
    for (int t = 0; t < threads; t++) {
        atomic_init(&parts[t].next, turns * t / threads);
        parts[t].end = turns * (t + 1) / threads;
    }
}
