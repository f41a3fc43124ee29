// Helper threads that stay alive between calls, without OpenMP (not every C compiler brings it).
//
// A call opens a round, works on it itself, and closes it again. Helpers that are awake in time join the round; the
// call waits only for those that joined. So a helper that sleeps or is late costs nothing, provided that the work is
// drawn piece by piece from a shared counter.
//
// It is the same in all kernels, and takes a fifth of a small one's compile time. So a toolchain may compile this file
// alone, once, with POOL_ALONE, and link it to kernels that are compiled with POOL_APART.
#include <stdatomic.h>
#include <stdint.h>

typedef struct {
    long from, size;
} pool_range;

// Part t of `parts` nearly equal ones, cut at multiples of `unit`; empty where there are fewer units than parts.
static inline pool_range pool_part(long size, long unit, long parts, long t) {
    long units = (size + unit - 1) / unit;
    long from = units * t / parts * unit, to = units * (t + 1) / parts * unit;
    if (to > size) to = size;
    return (pool_range){from, to > from ? to - from : 0};
}

typedef void (*pool_work)(void *job, int thread);

#if defined(POOL_APART) || defined(POOL_ALONE)
#define POOL_ENTRY __attribute__((visibility("hidden")))
#else
#define POOL_ENTRY static
#endif

// One turn of waiting for another thread: a short while it is surely at work, then it may need this core.
POOL_ENTRY void pool_wait(int spins);

// Calls work(job, thread) on the calling thread and on up to threads - 1 others, which are numbered from 0 on as they
// join. Returns when all are done.
POOL_ENTRY void pool_run(int threads, pool_work work, void *job);

#ifndef POOL_APART
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#define POOL_MAX_HELPERS 254
#define POOL_SPINS 3000  // of the pause instruction before a helper sleeps: about a tenth of a millisecond

// The state of the pool in one word, which is also the futex that helpers sleep on.
#define POOL_JOINED 0xffu  // how many helpers joined this round
#define POOL_OPEN 0x100u   // helpers may join
#define POOL_ROUND 0x200u  // one round more

POOL_ENTRY void pool_wait(int spins) {
    if (spins < POOL_SPINS)
        __builtin_ia32_pause();
    else
        sched_yield();
}

static struct {
    _Alignas(64) _Atomic uint32_t state;
    _Alignas(64) _Atomic uint32_t finished;
    _Alignas(64) _Atomic uint32_t sleeping;
    _Alignas(64) pthread_mutex_t one_caller;
    pool_work work;
    void *job;
    uint32_t limit;  // helpers that this round may use
    int stop;
    uint32_t helpers;
    pid_t owner;
    pthread_t helper[POOL_MAX_HELPERS];
} pool = {.one_caller = PTHREAD_MUTEX_INITIALIZER};

// A host that has threads of its own may lend them: threads of ours beside its would fight for the cores. Its function
// calls `work(job)` on the calling thread and on as many others as it likes, and returns when all are done. It takes two
// numbers more, as OpenMP's GOMP_parallel does: how many threads, where 0 leaves that to the host, and flags.
typedef void (*pool_lender)(void (*work)(void *), void *job, unsigned threads, unsigned flags);
static _Atomic(pool_lender) pool_lent;
void deepgen_set_parallel(pool_lender lender) { atomic_store(&pool_lent, lender); }

typedef struct {
    pool_work work;
    void *job;
    int threads;
    _Atomic int joined;
} pool_loan;

static void pool_on_loan(void *arg) {
    pool_loan *loan = arg;
    int thread = atomic_fetch_add(&loan->joined, 1);
    if (thread < loan->threads) loan->work(loan->job, thread);
}

static uint32_t pool_join(uint32_t last_round, uint32_t *round) {
    for (int spins = 0;; spins++) {
        uint32_t state = atomic_load(&pool.state);
        if ((state & POOL_OPEN) && state / POOL_ROUND != last_round && (state & POOL_JOINED) < pool.limit) {
            if (!atomic_compare_exchange_weak(&pool.state, &state, state + 1)) continue;
            *round = state / POOL_ROUND;
            return (state & POOL_JOINED) + 1;
        }
        if (spins < POOL_SPINS) {
            __builtin_ia32_pause();
        } else {
            atomic_fetch_add(&pool.sleeping, 1);
            syscall(SYS_futex, &pool.state, FUTEX_WAIT_PRIVATE, state, 0, 0, 0);
            atomic_fetch_sub(&pool.sleeping, 1);
            spins = 0;
        }
    }
}

static void *pool_helper(void *unused) {
    uint32_t round = UINT32_MAX;
    for (;;) {
        uint32_t thread = pool_join(round, &round);
        if (pool.stop) return unused;
        pool.work(pool.job, (int)thread);
        atomic_fetch_add(&pool.finished, 1);
    }
}

static void pool_open(uint32_t limit) {
    pool.limit = limit;
    atomic_store(&pool.finished, 0);
    uint32_t round = atomic_load(&pool.state) / POOL_ROUND + 1;
    atomic_store(&pool.state, round * POOL_ROUND + POOL_OPEN);
    if (atomic_load(&pool.sleeping)) syscall(SYS_futex, &pool.state, FUTEX_WAKE_PRIVATE, INT32_MAX, 0, 0, 0);
}

POOL_ENTRY void pool_run(int threads, pool_work work, void *job) {
    if (threads <= 1) {
        work(job, 0);
        return;
    }
    pool_lender lender = atomic_load(&pool_lent);
    if (lender) {
        pool_loan loan = {work, job, threads, 0};
        lender(pool_on_loan, &loan, 0, 0);
        return;
    }
    pthread_mutex_lock(&pool.one_caller);
    uint32_t wanted = threads - 1 < POOL_MAX_HELPERS ? (uint32_t)threads - 1 : POOL_MAX_HELPERS;
    pool.work = work;
    pool.job = job;
    if (pool.helpers < wanted) pool.owner = getpid();
    while (pool.helpers < wanted && !pthread_create(&pool.helper[pool.helpers], 0, pool_helper, 0)) pool.helpers++;
    pool_open(wanted);
    work(job, 0);
    uint32_t joined = atomic_fetch_and(&pool.state, ~POOL_OPEN) & POOL_JOINED;
    for (int spins = 0; atomic_load(&pool.finished) != joined; spins++) pool_wait(spins);
    pthread_mutex_unlock(&pool.one_caller);
}

// A child has one thread, the one that forked. Whoever was in a call or helped does not exist there: the lock is free,
// and helpers are started anew. Calls pay nothing for this.
static void pool_forked(void) {
    pool.one_caller = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    atomic_store(&pool.state, 0);
    atomic_store(&pool.sleeping, 0);
    pool.helpers = 0;
}
__attribute__((constructor)) static void pool_start(void) { pthread_atfork(0, 0, pool_forked); }

// Unloading the library must not leave threads behind that run its code. A forked child has no helpers to wait for.
__attribute__((destructor)) static void pool_stop(void) {
    if (!pool.helpers || pool.owner != getpid()) return;
    pool.stop = 1;
    pool_open(POOL_MAX_HELPERS);
    for (uint32_t i = 0; i < pool.helpers; i++) pthread_join(pool.helper[i], 0);
}
#endif
