/* A wall clock that can be set for some processes only: loaded before the C library, it adds an offset to every reading.
 *
 * The offset, in nanoseconds, is the first eight bytes of the file that CHAOS_CLOCK names. The file is mapped, so that a
 * jump is seen at once by every process. Waits until a moment of the wall clock are handed to the system in its own
 * time: without that a process would sleep for the length of a jump, which no jump of a real clock causes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define WALL 1000000000 /* seconds: a reading above this is of the wall clock, below it of the time since the start */

static const volatile int64_t *offset;
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_cond_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_sem_timedwait)(sem_t *, const struct timespec *);
static long (*real_syscall)(long, ...);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) offset = page;
}

static int64_t shift(void) { return offset ? *offset : 0; }

static struct timespec moved(struct timespec at, int64_t by) {
    int64_t ns = at.tv_nsec + by % SECOND;
    at.tv_sec += by / SECOND + (ns >= SECOND) - (ns < 0);
    at.tv_nsec = ns + (ns < 0 ? SECOND : 0) - (ns >= SECOND ? SECOND : 0);
    return at;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    if (!real_clock_gettime) real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real_clock_gettime(clock, out);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) *out = moved(*out, shift());
    return result;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    if (!real_cond_timedwait) {
        real_cond_timedwait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"); /* x86-64 has an older one */
        if (!real_cond_timedwait) real_cond_timedwait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    }
    struct timespec at = until->tv_sec > WALL ? moved(*until, -shift()) : *until;
    return real_cond_timedwait(cond, mutex, &at);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until) {
    if (!real_sem_timedwait) real_sem_timedwait = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec at = until->tv_sec > WALL ? moved(*until, -shift()) : *until;
    return real_sem_timedwait(sem, &at);
}

long syscall(long number, ...) {
    if (!real_syscall) real_syscall = dlsym(RTLD_NEXT, "syscall");
    va_list list;
    va_start(list, number);
    long a[6];
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    struct timespec at;
    if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) && a[3]) {
        at = moved(*(const struct timespec *)a[3], -shift());
        a[3] = (long)&at;
    }
    return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
