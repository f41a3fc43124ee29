/* What the measuring worker does in C: prepare and check memory around every run, push cache lines out, tell whether a
 * kernel changed how this thread computes, and leave a note when a kernel kills the process.
 *
 * The note lies in memory shared with the supervisor, so it survives whatever the kernel did to the worker's files.
 * The struct is mirrored in channel.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__linux__)
#include <ucontext.h>
#endif

struct pulse {
    double started, limit;
    int32_t stage, who, calls;
    int32_t signal, code, write, error, exited, status, spare;
    uint64_t address, stack;
};

static struct pulse *pulse;
static char alternate[1 << 16]; /* a handler must run even when the stack is what overflowed */

#if defined(__linux__) && defined(__aarch64__)
/* Whether the fault was a write: bit 6 of the syndrome that Linux leaves among the saved state; -1 where it does not. */
static int wrote(const ucontext_t *at) {
    const unsigned char *record = at->uc_mcontext.__reserved, *end = record + sizeof at->uc_mcontext.__reserved;
    for (const struct _aarch64_ctx *head; (head = (const void *)record)->size && record < end; record += head->size)
        if (head->magic == ESR_MAGIC) return ((const struct esr_context *)head)->esr >> 6 & 1;
    return -1;
}
#endif

static void on_signal(int number, siginfo_t *info, void *context) {
    pulse->signal = number;
    pulse->code = info->si_code;
    pulse->error = errno;
    pulse->address = (uint64_t)(uintptr_t)info->si_addr;
#if defined(__linux__) && defined(__x86_64__)
    const ucontext_t *at = context;
    pulse->stack = (uint64_t)at->uc_mcontext.gregs[REG_RSP];
    pulse->write = (at->uc_mcontext.gregs[REG_ERR] >> 1) & 1; /* bit 1 of the page fault's error code */
#elif defined(__linux__) && defined(__aarch64__)
    const ucontext_t *at = context;
    pulse->stack = at->uc_mcontext.sp;
    pulse->write = wrote(at);
#else
    (void)context;
    pulse->write = -1;
#endif
    raise(number); /* SA_RESETHAND restored the default, so this ends the process as it would have ended */
}

static void on_leave(int status, void *nothing) {
    (void)nothing;
    pulse->exited = 1;
    pulse->status = status;
    _exit(status); /* before destructors of half-finished libraries get a chance to hang */
}

void dg_watch(struct pulse *shared) {
    pulse = shared;
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    sigaltstack(&stack, NULL);
    on_exit(on_leave, NULL);
}

/* How this thread computes, as far as it differs from how every process starts. Mirrored in harness.py. */
enum { ROUNDING = 1, DENORMALS = 2, OTHERWISE = 4 };
static int found; /* since dg_arithmetic was last asked */

#if defined(__x86_64__)
static int arithmetic(void) {
    uint16_t x87;
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    unsigned sse = (__builtin_ia32_stmxcsr() ^ 0x1f80) & ~0x3fu, old = x87 ^ 0x037fu; /* without the status flags */
    return (sse & 0x6000 || old & 0x0c00 ? ROUNDING : 0) | (sse & 0x8040 ? DENORMALS : 0) |
           (sse & ~0xe040u || old & ~0x0c00u ? OTHERWISE : 0);
}

static void compute_as_usual(void) {
    uint16_t x87 = 0x037f;
    __builtin_ia32_ldmxcsr(0x1f80);
    __asm__ volatile("fldcw %0" : : "m"(x87));
}
#elif defined(__aarch64__)
static int arithmetic(void) {
    const uint64_t rounding = 3u << 22, denormals = 1u << 24 | 1u << 19 | 1u;
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return (control & rounding ? ROUNDING : 0) | (control & denormals ? DENORMALS : 0) |
           (control & ~(rounding | denormals) ? OTHERWISE : 0);
}

static void compute_as_usual(void) { __asm__ volatile("msr fpcr, xzr"); }
#else
static int arithmetic(void) { return 0; }
static void compute_as_usual(void) {}
#endif

/* What kernels left changed since this was last asked. */
int dg_arithmetic(void) {
    int changed = found | arithmetic();
    compute_as_usual();
    found = 0;
    return changed;
}

/* Before every call of a kernel: an earlier one, or loading a library, may have changed any of this. */
void dg_begin(void) {
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaction(numbers[i], &action, NULL);
    found |= arithmetic();
    compute_as_usual();
    errno = 0;
}

/* What the clock shows around this is the cost of calling anything at all. */
void dg_nothing(void) {}

#if defined(__x86_64__)
#include <cpuid.h>
/* Builtins: a compiler takes longer to read the header of intrinsics than to compile all of this. */

__attribute__((target("clflushopt"))) static void flush_fast(uintptr_t at, uintptr_t end) {
    for (; at < end; at += 64) __builtin_ia32_clflushopt((void *)at);
}

static void flush_slow(uintptr_t at, uintptr_t end) {
    for (; at < end; at += 64) __builtin_ia32_clflush((void *)at);
}

/* Flushed lines leave the caches of every core; streaming another buffer would clear only this core's own. */
int dg_flush(const void *start, size_t bytes) {
    static int fast = -1;
    if (fast < 0) {
        unsigned a = 0, b = 0, c = 0, d = 0;
        fast = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 23 & 1);
    }
    uintptr_t at = (uintptr_t)start & ~(uintptr_t)63, end = (uintptr_t)start + bytes;
    (fast ? flush_fast : flush_slow)(at, end);
    __builtin_ia32_mfence();
    return 1;
}
#elif defined(__linux__) && defined(__aarch64__)
/* Cleaned and invalidated to the point where all cores see the same; Linux lets processes do it. */
int dg_flush(const void *start, size_t bytes) {
    uint64_t cache_type;
    __asm__("mrs %0, ctr_el0" : "=r"(cache_type));
    uintptr_t line = (uintptr_t)4 << (cache_type >> 16 & 15);
    uintptr_t at = (uintptr_t)start & ~(line - 1), end = (uintptr_t)start + bytes;
    for (; at < end; at += line) __asm__ volatile("dc civac, %0" ::"r"(at) : "memory");
    __asm__ volatile("dsb sy" ::: "memory");
    return 1;
}
#else
int dg_flush(const void *start, size_t bytes) {
    (void)start;
    (void)bytes;
    return 0; /* no instruction for it here: the caller streams a buffer instead */
}
#endif

/* What is done to memory before and after every run, many steps in one call: in Python each takes as long as a short
 * run. Mirrored in harness.py. */
enum { COPY, FILL, PROTECT, FLUSH, INTACT, SAME, FILL_PART, SAME_PART };
enum { BLOCK = 4096, PARTS = 7 };
struct step {
    uint64_t kind, to, from, bytes;
};

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* The first step that failed, or -1. INTACT fails where a byte is another, SAME where memory is. A PART is every seventh
 * block. */
int64_t dg_steps(const struct step *steps, size_t count) {
    for (size_t i = 0; i < count; i++) {
        unsigned char *to = (unsigned char *)(uintptr_t)steps[i].to;
        uint64_t from = steps[i].from, bytes = steps[i].bytes;
        int fine = 1;
        switch (steps[i].kind) {
        case COPY: memcpy(to, (const void *)(uintptr_t)from, bytes); break;
        case FILL: memset(to, (int)from, bytes); break;
        case PROTECT: fine = mprotect(to, bytes, (int)from) == 0; break;
        case FLUSH: dg_flush(to, bytes); break;
        case SAME: fine = memcmp(to, (const void *)(uintptr_t)from, bytes) == 0; break;
        case FILL_PART:
            for (uint64_t at = 0; at < bytes; at += BLOCK * PARTS) memset(to + at, (int)from, least(BLOCK, bytes - at));
            break;
        case SAME_PART:
            for (uint64_t at = 0; fine && at < bytes; at += BLOCK * PARTS)
                fine = memcmp(to + at, (const char *)(uintptr_t)from + at, least(BLOCK, bytes - at)) == 0;
            break;
        default: fine = !bytes || (*to == from && !memcmp(to, to + 1, bytes - 1));
        }
        if (!fine) return (int64_t)i;
    }
    return -1;
}

/* How many of the threads whose files /proc/self/task/N/stat these are compute now. The state follows the name, which
 * is in parentheses and may hold anything. */
int dg_running(const int *files, size_t count) {
    int running = 0;
    for (size_t i = 0; i < count; i++) {
        char text[129];
        ssize_t size = pread(files[i], text, sizeof text - 1, 0);
        if (size <= 0) continue;
        text[size] = 0;
        const char *name = strrchr(text, ')');
        running += name && name[1] && name[2] == 'R';
    }
    return running;
}
