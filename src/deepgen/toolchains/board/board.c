// Runs one kernel on a machine without Python: `kernel FOLDER` reads FOLDER/request and writes FOLDER/answers, a line of
// JSON for each run. A request is lines of words:
//     tensor NAME input|output|inout BYTES ALIGN OFF POISON   its sets of contents are in the files set-NUMBER-NAME
//     workspace NAME BYTES ALIGN plain|zeroed|lasting
//     number VALUE                                         in the order of the calls
//     run SET plain|counted                                one call, on inputs of that set
//     time LEAST MOST NANOSECONDS SETS COLD                timed calls on sets in turn, until they took so long; before
//                                                          each, COLD bytes of other memory are written
//     vectors BITS                                         the kernel needs vector registers of that length
//     limit SECONDS                                        of one call, after which the program ends itself
// Every tensor and workspace lies between pages that nobody may touch, with its end at the upper ones; what the
// alignment leaves free holds a pattern that is looked at after each run. Tensors that are only read are write-protected.
// Results are written to result-RUN-NAME the first time that a set gives them: equal ones are known by their digest.
#include "board.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, PATTERN = 0xC5, GARBAGE = 0xFF, SETS = 4, GUARD = 1 << 21 };

typedef enum { INPUT, OUTPUT, INOUT, PLAIN, ZEROED, LASTING } role;

typedef struct {
    char name[64];
    role role;
    size_t bytes, body;
    int poison;
    unsigned char *low, *start, *end;  // what may be touched, and where the data begin in it
    unsigned char *sets[SETS];
} buffer;

static buffer buffers[2 * MOST];
static int count, answers = -1;
static const char *folder;
static board_number numbers[4 * MOST];
static unsigned limit;
static uint64_t known[SETS];
static int met[SETS];

__attribute__((weak)) const char *deepgen_refusal(void);

// One line, with one write, so that a kernel that dies later cannot tear it.
static void answer(const char *format, ...) {
    char line[512];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(line, sizeof line, format, values);
    va_end(values);
    if (length >= (int)sizeof line) length = sizeof line - 1;
    line[length++] = '\n';
    if (write(answers, line, (size_t)length) != length) _exit(74);
}

static void fail(const char *what, const char *which) {
    answer("{\"failed\": \"%s %s: %s\"}", what, which, strerror(errno));
    _exit(1);
}

static FILE *opened(const char *name, const char *how) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, how);
    if (!file) fail("cannot open", name);
    return file;
}

static void protect(buffer *b, int how) {
    if (mprotect(b->low, b->body, how)) fail("cannot protect", b->name);
}

// Its address is a multiple of `align`, and `off` bytes more.
static buffer *made(const char *name, role role, size_t bytes, size_t align, size_t off) {
    buffer *b = &buffers[count++];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    snprintf(b->name, sizeof b->name, "%s", name);
    b->role = role, b->bytes = bytes;
    b->body = (bytes + align + page - 1) / page * page;
    unsigned char *whole = mmap(0, b->body + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED) fail("no memory for", name);
    b->low = whole + GUARD, b->end = b->low + b->body;
    protect(b, PROT_READ | PROT_WRITE);
    b->start = (unsigned char *)((uintptr_t)(b->end - bytes - off) / align * align + off);
    memset(b->low, PATTERN, b->body);
    return b;
}

static void read_sets(buffer *b) {
    for (int set = 0; set < SETS; set++) {
        char name[128], path[4096];
        snprintf(name, sizeof name, "set-%d-%s", set, b->name);
        snprintf(path, sizeof path, "%s/%s", folder, name);
        if (access(path, R_OK)) continue;
        FILE *file = opened(name, "rb");
        if (!(b->sets[set] = malloc(b->bytes + 1))) fail("no memory for", name);
        if (fread(b->sets[set], 1, b->bytes, file) != b->bytes) fail("too short:", name);
        fclose(file);
    }
}

static buffer *named(const char *name) {
    for (int i = 0; i < count; i++)
        if (!strcmp(buffers[i].name, name)) return &buffers[i];
    errno = ENOENT;
    fail("the request lacks", name);
    return 0;
}

static const char *signal_name(int number) {
    return number == SIGSEGV ? "SIGSEGV" : number == SIGBUS ? "SIGBUS" : number == SIGILL ? "SIGILL" : "SIGFPE";
}

// Says near which buffer a kernel died.
static void died(int number, siginfo_t *info, void *context) {
    (void)context;
    unsigned char *at = info->si_addr;
    for (int i = 0; (number == SIGSEGV || number == SIGBUS) && i < count; i++) {
        buffer *b = &buffers[i];
        if (at < b->low - GUARD || at >= b->end + GUARD) continue;
        const char *where = at < b->start ? "before the start of" : at >= b->start + b->bytes ? "past the end of" : "in";
        answer("{\"died\": \"%s\", \"where\": \"%s\", \"buffer\": \"%s\", \"byte\": %ld, \"bytes\": %zu}",
               signal_name(number), where, b->name, (long)(at - b->start), b->bytes);
        _exit(128 + number);
    }
    answer("{\"died\": \"%s\"}", signal_name(number));
    _exit(128 + number);
}

static void watch(void) {
    static char stack[1 << 16];
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, 0);
    struct sigaction action = {.sa_sigaction = died, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    for (unsigned i = 0; i < sizeof fatal / sizeof *fatal; i++) sigaction(fatal[i], &action, 0);
}

static void damage(void) {
    for (int i = 0; i < count; i++) {
        buffer *b = &buffers[i];
        for (unsigned char *p = b->start; p-- > b->low;)
            if (*p != PATTERN) {
                answer("{\"damaged\": \"before the start of\", \"buffer\": \"%s\", \"byte\": %ld, \"bytes\": %zu}", b->name,
                       (long)(p - b->start), b->bytes);
                _exit(3);
            }
        for (unsigned char *p = b->start + b->bytes; p < b->end; p++)
            if (*p != PATTERN) {
                answer("{\"damaged\": \"past the end of\", \"buffer\": \"%s\", \"byte\": %ld, \"bytes\": %zu}", b->name,
                       (long)(p - b->start), b->bytes);
                _exit(3);
            }
    }
}

// Puts everything into the state that a run expects. `fresh`: these inputs are others than those of the run before.
static void ready(int set, int run, int fresh) {
    for (int i = 0; i < count; i++) {
        buffer *b = &buffers[i];
        if (b->role == OUTPUT) memset(b->start, b->poison < 0 ? (run / 2 % 2 ? 0x55 : 0xAA) : b->poison, b->bytes);
        if (b->role == ZEROED || (b->role == LASTING && run == 0)) memset(b->start, 0, b->bytes);
        if (b->role == PLAIN && fresh) memset(b->start, GARBAGE, b->bytes);
        if ((b->role == INPUT && fresh) || b->role == INOUT) {
            if (!b->sets[set]) errno = ENOENT, fail("no such set of", b->name);
            protect(b, PROT_READ | PROT_WRITE);
            memcpy(b->start, b->sets[set], b->bytes);
            if (b->role == INPUT) protect(b, PROT_READ);
        }
    }
}

static uint64_t digest(void) {
    uint64_t hash = 1469598103934665603u;
    for (int i = 0; i < count; i++)
        if (buffers[i].role == OUTPUT || buffers[i].role == INOUT)
            for (size_t j = 0; j < buffers[i].bytes; j++) hash = (hash ^ buffers[i].start[j]) * 1099511628211u;
    return hash;
}

static void save(int run) {
    for (int i = 0; i < count; i++) {
        buffer *b = &buffers[i];
        if (b->role != OUTPUT && b->role != INOUT) continue;
        char name[128];
        snprintf(name, sizeof name, "result-%d-%s", run, b->name);
        FILE *file = opened(name, "wb");
        if (fwrite(b->start, 1, b->bytes, file) != b->bytes || fclose(file)) fail("cannot write", name);
    }
}

#ifdef __riscv
static uint64_t ticks(void) {
    uint64_t now;
    __asm__ volatile("rdtime %0" : "=r"(now));
    return now;
}
static unsigned rounding(void) {
    unsigned mode;
    __asm__ volatile("frrm %0" : "=r"(mode));
    return mode;
}
static int vector_bits(void) {
    unsigned long bytes;
    __asm__ volatile("csrr %0, vlenb" : "=r"(bytes));
    return (int)(8 * bytes);
}
// Instructions without effect, between which the counting plugin counts.
#define MARK_BEGIN __asm__ volatile("slti x0, x0, 0x123" ::: "memory")
#define MARK_END __asm__ volatile("slti x0, x0, 0x124" ::: "memory")
#else
static uint64_t ticks(void) { return 0; }
static unsigned rounding(void) { return 0; }
static int vector_bits(void) { return 1 << 16; }
#define MARK_BEGIN __asm__ volatile("" ::: "memory")
#define MARK_END __asm__ volatile("" ::: "memory")
#endif

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// Fills the caches with other memory.
static void chill(size_t bytes) {
    static volatile unsigned char *ballast;
    if (!ballast && !(ballast = malloc(bytes))) fail("no memory for", "cold caches");
    for (size_t i = 0; i < bytes; i += 64) ballast[i]++;
}

// The nanoseconds that it took.
static int64_t call(void **tensors, void **workspaces, int run, int set, int counted, int timed, size_t cold) {
    static int last = -1;
    ready(set, run, set != last);
    alarm(limit);
    if (set != last) board_prepare(tensors, workspaces, numbers);
    last = set;
    if (cold) chill(cold);
    unsigned mode = rounding();
    int64_t from = nanoseconds();
    uint64_t tick = ticks();
    if (counted) MARK_BEGIN;
    board_run(tensors, workspaces, numbers);
    if (counted) MARK_END;
    tick = ticks() - tick;
    int64_t taken = nanoseconds() - from;
    alarm(0);
    damage();
    if (rounding() != mode) {
        answer("{\"changed\": \"the rounding mode\"}");
        _exit(3);
    }
    uint64_t now = digest();
    int fresh = !met[set] || known[set] != now;
    if (fresh) save(run);
    met[set] = 1, known[set] = now;
    answer("{\"run\": %d, \"set\": %d, \"nanoseconds\": %ld, \"ticks\": %lu, \"saved\": %s, \"timed\": %s}", run, set,
           (long)taken, (unsigned long)tick, fresh ? "true" : "false", timed ? "true" : "false");
    return taken;
}

static void bind(void **tensors, void **workspaces) {
    for (int i = 0; *board_tensors[i]; i++) tensors[i] = named(board_tensors[i])->start;
    for (int i = 0; *board_workspaces[i]; i++) workspaces[i] = named(board_workspaces[i])->start;
}

static role role_of(const char *word) {
    static const char *const words[] = {"input", "output", "inout", "plain", "zeroed", "lasting"};
    for (int i = 0; i < 6; i++)
        if (!strcmp(word, words[i])) return (role)i;
    errno = EINVAL;
    fail("unknown word", word);
    return PLAIN;
}

int main(int argc, char **argv) {
    if (argc != 2) return 64;
    folder = argv[1];
    char path[4096], word[64], name[64], kind[64];
    snprintf(path, sizeof path, "%s/answers", folder);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) return 73;
    answers = fcntl(file, F_DUPFD_CLOEXEC, 200);  // where a kernel that closes or writes low numbers does no harm
    close(file);
    watch();
    if (deepgen_refusal && deepgen_refusal()) {
        answer("{\"refused\": \"%s\"}", deepgen_refusal());
        return 0;
    }
    FILE *request = opened("request", "r");
    void *tensors[MOST], *workspaces[MOST];
    int told = 0, runs = 0, set, least, most;
    long left;
    while (fscanf(request, "%63s", word) == 1) {
        size_t bytes, align, off;
        int poison;
        if (!strcmp(word, "tensor") &&
            fscanf(request, "%63s %63s %zu %zu %zu %d", name, kind, &bytes, &align, &off, &poison) == 6) {
            buffer *b = made(name, role_of(kind), bytes, align, off);
            b->poison = poison;
            read_sets(b);
        } else if (!strcmp(word, "workspace") && fscanf(request, "%63s %zu %zu %63s", name, &bytes, &align, kind) == 4) {
            made(name, role_of(kind), bytes, align, 0);
        } else if (!strcmp(word, "number") && fscanf(request, "%63s", name) == 1) {
            if (board_numbers[told] == 'i') numbers[told].i = strtoll(name, 0, 10);
            else numbers[told].d = strtod(name, 0);
            told++;
        } else if (!strcmp(word, "run") && fscanf(request, "%d %63s", &set, kind) == 2 && set >= 0 && set < SETS) {
            bind(tensors, workspaces);
            call(tensors, workspaces, runs++, set, !strcmp(kind, "counted"), 0, 0);
        } else if (!strcmp(word, "time") && fscanf(request, "%d %d %ld %d %zu", &least, &most, &left, &set, &bytes) == 5) {
            bind(tensors, workspaces);
            for (int i = 0; i < most && (i < least || left > 0); i++)
                left -= call(tensors, workspaces, runs++, i % set, 0, 1, bytes);
        } else if (!strcmp(word, "vectors") && fscanf(request, "%d", &set) == 1) {
            if (vector_bits() < set) {
                answer("{\"refused\": \"vector registers have %d bits here, and the kernel needs %d\"}", vector_bits(), set);
                return 0;
            }
        } else if (!strcmp(word, "limit") && fscanf(request, "%d", &set) == 1) {
            limit = (unsigned)set;
        } else {
            errno = EINVAL;
            fail("cannot read", word);
        }
        if (count == 2 * MOST || told == 4 * MOST) errno = E2BIG, fail("too many", word);
    }
    answer("{\"done\": %d}", runs);
    return 0;
}
