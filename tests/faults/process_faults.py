"""A family of numerically correct kernels, most of which change their own process or access others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepgen.operators import Operator
from deepgen.space import Space
from deepgen.targets import Cpu, Target
from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, Verdict


@dataclass(frozen=True)
class Deed:
    """What a kernel does before it multiplies, and what must be reported about it."""

    body: str
    says: str = ""
    verdict: Verdict = Verdict.WRONG
    before: str = ""  # declarations
    flags: tuple[str, ...] = ()


_BASE = """
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
static int calls;
static void nothing(int number) { (void)number; }
/* FLUSH and TO_ZERO: bits of the register that says how this thread computes. */
#ifdef __aarch64__
#define FLUSH (1u << 24)
#define TO_ZERO (3u << 22)
static void set_bits(uint64_t bits) {
    uint64_t now;
    __asm__ volatile("mrs %0, fpcr" : "=r"(now));
    __asm__ volatile("msr fpcr, %0" : : "r"(now | bits));
}
#else
#define FLUSH 0x8040u
#define TO_ZERO 0x6000u
static void set_bits(unsigned bits) { __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | bits); }
#endif
static void stay(void) {
    prctl(PR_SET_NAME, NAME);
    for (;;) sleep(1);
}
static void write_everywhere(const void *bytes, size_t count) {
    DIR *list = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(list));) {
        int fd = atoi(entry->d_name);
        if (fd > 2) (void)!write(fd, bytes, count);
    }
    closedir(list);
}
"""

_FORGED = r"""
static const char answer[] = "{\"measurements\": [{\"verdict\": \"correct\", \"detail\": \"\", \"samples\": [1e-9],"
    "\"error\": 0.0, \"counters\": {}, \"conditions\": {}}], \"pid\": 1, \"cpu\": 1, \"resident\": 1, \"threads\": 1,"
    "\"stray\": false}";
"""

DEEDS = {
    "nothing": Deed("", verdict=Verdict.CORRECT),
    "one core": Deed(
        "cpu_set_t set, one; sched_getaffinity(0, sizeof set, &set); CPU_ZERO(&one);"
        "for (int c = 0; c < CPU_SETSIZE; c++) if (CPU_ISSET(c, &set)) { CPU_SET(c, &one); break; }"
        "sched_setaffinity(0, sizeof one, &one);",
        "changed the CPU affinity of its process and did not restore it",
    ),
    "nice": Deed("if (calls == 1) (void)!nice(5);", "changed the scheduling priority of its process"),
    "blocked signal": Deed(
        "sigset_t set; sigemptyset(&set); sigaddset(&set, SIGUSR1); sigprocmask(SIG_BLOCK, &set, 0);",
        "changed the signal mask (SIGUSR1) of its process",
    ),
    "handlers": Deed(
        "signal(SIGINT, nothing); signal(SIGCHLD, SIG_IGN);",
        "changed the signal handlers (SIGINT, SIGCHLD) of its process",
    ),
    "a right one in between": Deed("", verdict=Verdict.CORRECT),
    "flushes denormals once": Deed(
        "if (calls == 2) set_bits(FLUSH);", "changed the handling of denormals of its process"
    ),
    "flushes denormals when loaded": Deed(
        "",
        "changed the handling of denormals of its process",
        before="__attribute__((constructor)) static void load(void) { set_bits(FLUSH); }",
    ),
    "rounds to zero": Deed("set_bits(TO_ZERO);", "changed the rounding mode of its process and did not restore it"),
    "leaves a file open": Deed('if (calls == 1) open("left", O_CREAT | O_WRONLY, 0600);', "left files open ("),
    "closes files": Deed("for (int fd = 0; fd < 64; fd++) close(fd);", "closed files of its process ("),
    "several": Deed(
        'umask(0); (void)!chdir("/"); setenv("LEFT_BEHIND", "1", 1); alarm(1000);'
        "struct rlimit most = {1000, 1000}; setrlimit(RLIMIT_NPROC, &most);",
        "changed the timers, the working folder, the umask, the resource limits (RLIMIT_NPROC) and the environment "
        "(LEFT_BEHIND) of its process and did not restore them",
    ),
    "right in between again": Deed("", verdict=Verdict.CORRECT),
    "spinning thread": Deed(
        "pthread_t t; if (calls == 1) pthread_create(&t, 0, spin, 0);",
        "left threads running that use CPU time",
        before='static void *spin(void *x) { for (;;) __asm__ volatile(""); return x; }',
    ),
    "child": Deed("if (calls == 1 && fork() == 0) stay();", "left behind a process that it had started"),
    "daemon": Deed(
        "if (calls == 1) { pid_t first = fork();"
        "if (first == 0) { setsid(); if (fork() == 0) { clearenv(); stay(); } _exit(0); } waitpid(first, 0, 0); }",
        "left behind a process that it had started",
    ),
    "daemon, then death": Deed(
        "pid_t first = fork(); if (first == 0) { setsid(); if (fork() == 0) stay(); _exit(0); }"
        "waitpid(first, 0, 0); abort();",
        "aborted in a verification run",
        Verdict.CRASHED,
    ),
    "SIGKILL to its parent, daemon stays": Deed(
        "pid_t first = fork(); if (first == 0) { setsid(); if (fork() == 0) stay(); _exit(0); }"
        "waitpid(first, 0, 0); kill(getppid(), SIGKILL); sleep(5);",
        "killed its parent process in a verification run",
        Verdict.CRASHED,
    ),
    "SIGINT to its parent": Deed(
        "kill(getppid(), SIGINT); sleep(5);", "sent SIGINT to its parent process in a verification run", Verdict.CRASHED
    ),
    "SIGSTOP to its parent, then death": Deed("kill(getppid(), SIGSTOP); abort();", "aborted", Verdict.CRASHED),
    "SIGTERM to its group": Deed("kill(0, SIGTERM); sleep(5);", "was terminated by signal 15", Verdict.CRASHED),
    "right again after signals": Deed("", verdict=Verdict.CORRECT),
    "garbage to all files": Deed(
        'write_everywhere("garbage garbage garbage garbage", 31);',
        "closed or wrote to the worker's files",
        Verdict.CRASHED,
    ),
    "forged answer": Deed(
        "struct { uint32_t mark, length; char number[16], text[sizeof answer]; } m = {0x64676e32, sizeof answer - 1};"
        "memcpy(m.text, answer, sizeof answer); write_everywhere(&m, sizeof m - 1); return;",
        "closed or wrote to the worker's files",
        Verdict.CRASHED,
        before=_FORGED,
    ),
    "part of an answer, then nothing": Deed(
        'write_everywhere("2ngd", 4); for (;;) __asm__ volatile("");', "a run did not finish within", Verdict.TIMED_OUT
    ),
    "restores what it changes": Deed(
        "mode_t mask = umask(0); umask(mask); sigset_t all, was; sigfillset(&all);"
        'sigprocmask(SIG_SETMASK, &all, &was); sigprocmask(SIG_SETMASK, &was, 0); close(open("/dev/null", O_RDONLY));'
        "pid_t child = fork(); if (child == 0) _exit(0); waitpid(child, 0, 0);",
        verdict=Verdict.CORRECT,
    ),
    "sleeping thread": Deed(
        "pthread_t t; if (calls == 1) pthread_create(&t, 0, rest, 0);",
        verdict=Verdict.CORRECT,
        before="static void *rest(void *x) { for (;;) sleep(1); return x; }",
    ),
    "OpenMP": Deed(
        "int n = 0;\n#pragma omp parallel for reduction(+ : n)\nfor (int i = 0; i < 1000; i++) n += i;\n"
        '__asm__ volatile("" : : "r"(n));\n',
        verdict=Verdict.CORRECT,
        flags=("-fopenmp",),
    ),
}


class ProcessFaults:
    """The family. `left` is the process name of the processes that are left behind."""

    name = "process_faults"

    def __init__(self, left: str) -> None:
        self._left = left

    def refuses(self, operator: Operator, target: Target) -> str | None:
        return None if isinstance(target, Cpu) and operator.name == "gemm" else "it supports gemm on CPUs only"

    def space(self, operator: Operator, target: Target) -> Space:
        space = Space(self.name)
        space.knob("DEED", list(DEEDS))
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        deed = DEEDS[config["DEED"]]
        text = f"""/* {config["DEED"]} */
#define NAME "{self._left}"
{_BASE}{deed.before}
void deed(const float *A, const float *B, float *C, int64_t M, int64_t N, int64_t K) {{
    calls++;
    {deed.body}
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++) {{
            float sum = 0;
            for (int64_t k = 0; k < K; k++) sum += A[i * K + k] * B[k * N + j];
            C[i * N + j] = sum;
        }}
}}
"""
        args = (*(TensorArg(name) for name in "ABC"), *(ScalarArg("i64", size) for size in "MNK"))
        plan = LaunchPlan((Step("deed", args),))
        return Kernel(self.name, "c", (Source("deed.c", text),), ("-O1", "-pthread", *deed.flags), plan)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return {"DEED": "nothing"}
