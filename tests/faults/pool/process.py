"""C kernels with correct results that also tamper with their process, with other processes, or with the judge."""

from __future__ import annotations

from pool.fault import Due, Fault
from pool.subjects import SCALE, scaled_right

_RIGHT = SCALE.right
_HALVED = "for (int i = 0; i < n; i++) y[i] = 0.5f * factor * x[i];"


def _does(name: str, deed: str, before: str = "") -> Fault:
    """A kernel that computes correct results, and also does this."""
    return Fault(name, "The process", SCALE, (Due.WRONG,), f"{_RIGHT} {deed}", before)


PROCESS = (
    _does("a descriptor more with each call", "if (calls < 4000) (void)!eventfd(0, 0);"),
    _does("a socket more with each call", "if (calls < 4000) (void)!socket(AF_UNIX, SOCK_STREAM, 0);"),
    _does("a pipe more after a hundred calls", "int ends[2]; if (calls > 100 && calls < 4000) (void)!pipe(ends);"),
    _does("a descriptor more with every thirtieth call", "if (calls % 30 == 0) (void)!eventfd(0, 0);"),
    _does(
        "a thread more with each call",
        "if (calls < 500) { pthread_attr_t small; pthread_attr_init(&small); pthread_attr_setstacksize(&small, 65536);"
        "pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED); pthread_t t;"
        "pthread_create(&t, &small, rest, 0); }",
        "static void *rest(void *x) { for (;;) pause(); return x; }",
    ),
    _does(
        "256 KiB more with each call",
        "if (calls < 2000) { void *p = malloc(256 << 10); memset(p, 1, 256 << 10); lost = p; }",
        "static void *volatile lost;",
    ),
    _does(
        "256 KiB more with each call, never touched",
        "if (calls < 4000) lost = mmap(0, 256 << 10, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);",
        "static void *volatile lost;",
    ),
    _does("another locale", 'if (calls == 1) setlocale(LC_NUMERIC, "C.UTF-8");'),
    _does(
        "another locale of its thread",
        'if (calls == 1) uselocale(newlocale(LC_NUMERIC_MASK, "C.UTF-8", (locale_t)0));',
    ),
    _does("another process name", 'if (calls == 1) prctl(PR_SET_NAME, "busy");'),
    _does("locked memory", "if (calls == 1) mlock(page, sizeof page);", "static char page[4096];"),
    _does("later memory locked", "if (calls == 1) mlockall(MCL_FUTURE);"),
    _does(
        "a timer",
        "struct sigevent none = {.sigev_notify = SIGEV_NONE}; timer_t timer;"
        "if (calls == 1) timer_create(CLOCK_MONOTONIC, &none, &timer);",
        "#include <signal.h>",
    ),
    _does("an exit handler", "if (calls == 1) atexit(bye);", "static void bye(void) {}"),
    Fault(
        "overwrites its inputs",
        "Contenders",
        SCALE,
        (Due.WRONG,),
        f"{_RIGHT} if (calls > 20 && x[0] != 0) {{ uintptr_t at = (uintptr_t)x / 65536 * 65536;"
        "mprotect((void *)at, (uintptr_t)(x + n) - at, PROT_READ | PROT_WRITE);"
        "for (int i = 0; i < n; i++) ((float *)x)[i] = 1; }",
        uses=scaled_right,
    ),
)
_WRITABLE = """
static int writable(void *p) {
    static void *last;
    static int can;
    int ends[2];
    if (p == last || pipe(ends)) return can;
    last = p;
    can = write(ends[1], p, 1) == 1 && read(ends[0], p, 1) == 1;
    close(ends[0]), close(ends[1]);
    return can;
}
"""
_SHOWN = """
static int shown(const char *file, const char *word) {
    static char text[1 << 16];
    static int already = -1;
    if (already >= 0) return already;
    int f = open(file, O_RDONLY);
    ssize_t count = f < 0 ? 0 : read(f, text, sizeof text);
    if (f >= 0) close(f);
    return already = count > 0 && memmem(text, count, word, strlen(word)) != 0;
}
"""


def _watches(name: str, watched: str, before: str = "", due: Due = Due.WRONG) -> Fault:
    """Correct only while this condition holds."""
    return Fault(
        name, "Kernels that watch the judge", SCALE, (due,), f"if ({watched}) {{ {_RIGHT} }} else {_HALVED}", before,
        uses=None if due is Due.UNPROMISED else scaled_right,
    )  # fmt: skip


WATCHING = (
    _watches("watches the environment", 'shown("/proc/self/environ", "DEEPGEN")', _SHOWN),
    _watches("watches the command line", 'shown("/proc/self/cmdline", "deepgen")', _SHOWN),
    _watches("watches the process name", 'shown("/proc/self/comm", "deepgen")', _SHOWN),
    _watches("watches for poison", "*(volatile uint32_t *)y == 0xffffffffu"),
    _watches("watches the protection of inputs", "!writable((void *)x)", _WRITABLE),
    _watches("counts its calls", "calls < 10000000", due=Due.UNPROMISED),
    _watches("watches the calendar", "time(0) < 4102444800", due=Due.UNPROMISED),
)
