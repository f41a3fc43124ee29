"""C kernels that fail in every way we know of, each around a correct multiplication."""

from __future__ import annotations

from dataclasses import dataclass

from deepgen import targets
from deepgen.toolchains import build_once
from deepgen.vocabulary import Artifact, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, Verdict, WorkspaceArg

TARGET = targets.resolve("cpu")

_BASE = """
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
static void multiply(const float *A, const float *B, float *C, long M, long N, long K) {
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) C[i * N + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) C[i * N + j] += A[i * K + k] * B[k * N + j];
    }
}
static int calls;
#ifdef __aarch64__
#define ILLEGAL __asm__ volatile(".inst 0")
#define ALIGNED(p) __asm__ volatile("ldxp x9, x10, [%0]" : : "r"(p) : "x9", "x10")
#else
#define ILLEGAL __asm__ volatile("ud2")
#define ALIGNED(p) __asm__ volatile("movaps (%0), %%xmm0" : : "r"(p) : "xmm0")
#endif
"""
_ARGS = (TensorArg("A"), TensorArg("B"), TensorArg("C"), *(ScalarArg("i64", size) for size in "MNK"))
_HEAD = "void gemm(const float *A, const float *B, float *C, long M, long N, long K"


@dataclass(frozen=True)
class Fault:
    """What a kernel does besides multiplying, and what must be reported about it."""

    body: str
    verdict: Verdict
    says: str
    kills: bool = False  # whether the worker has to be replaced
    before: str = ""  # functions that the body uses


def kernel(body: str = "multiply(A, B, C, M, N, K);", before: str = "", workspace: str | int | None = None) -> Kernel:
    extra = (WorkspaceArg("packed", workspace),) if workspace is not None else ()
    head = _HEAD + (", float *W" if extra else "")
    text = f"{_BASE}{before}\n{head}) {{ calls++; {body} }}\n"
    return Kernel("faulty", "c", (Source("k.c", text),), ("-O1",), LaunchPlan((Step("gemm", (*_ARGS, *extra)),)))


def build(made: Kernel) -> Artifact:
    return build_once(made, TARGET)


# On CPUs whose division does not trap, libraries raise the signal.
_DIVIDE = "(raise(SIGFPE), z)" if TARGET.kind == "arm" else "7 % z"
_RIGHT = "multiply(A, B, C, M, N, K);"

FAULTS = {
    "segfault": Fault("*(volatile int *)16 = 1;", Verdict.CRASHED, "null pointer", kills=True),
    "wild pointer": Fault("C[-(1L << 38)] = 1;", Verdict.CRASHED, "segmentation fault", kills=True),
    "infinite loop": Fault('for (;;) __asm__ volatile("");', Verdict.TIMED_OUT, "did not finish within", kills=True),
    "loops on a later call": Fault(
        _RIGHT + 'if (calls == 4) for (;;) __asm__ volatile("");', Verdict.TIMED_OUT, "call 4", kills=True
    ),
    "stack overflow": Fault(
        "deep(0);",
        Verdict.CRASHED,
        "overflowed the stack",
        kills=True,
        before="static long deep(long n) { volatile char a[4096]; a[n % 4096] = 1; return deep(n + 1) + a[0]; }",
    ),
    "one huge allocation": Fault(
        "volatile char *p = malloc(1UL << 42); for (long i = 0; ; i += 4096) p[i] = 1;",
        Verdict.OUT_OF_MEMORY,
        "memory",
        kills=True,
    ),
    "many allocations": Fault(
        "for (;;) { volatile char *p = malloc(64 << 20); p[0] = 1; }", Verdict.OUT_OF_MEMORY, "memory", kills=True
    ),
    "writes past the end": Fault(_RIGHT + "C[M * N] = 1;", Verdict.WRONG, "past the end of C"),
    "writes before the start": Fault(_RIGHT + "C[-1] = 1;", Verdict.WRONG, "before the start of C"),
    "writes far past the end": Fault(
        _RIGHT + "C[M * N + 5000] = 1;", Verdict.CRASHED, "wrote past the end of C", kills=True
    ),
    "reads far before the start": Fault(
        _RIGHT + "C[0] += 0 * A[-5000];", Verdict.CRASHED, "read before the start of A", kills=True
    ),
    "writes its input": Fault(
        _RIGHT + "((volatile float *)A)[3] = A[3];", Verdict.CRASHED, "wrote to its input A (at byte 12)", kills=True
    ),
    "one element wrong": Fault(_RIGHT + "C[N + 2] += 0.5f;", Verdict.WRONG, "C[1, 2] is"),
    "gives NaN": Fault(_RIGHT + "C[5] = 0.0f / 0.0f;", Verdict.WRONG, "C[0, 5] is nan"),
    "unwritten tail": Fault(
        "multiply(A, B, C, M - 1, N, K);", Verdict.WRONG, "was never written (29 of 1073 elements wrong)"
    ),
    "nondeterministic": Fault(
        _RIGHT + "struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); if (t.tv_nsec / 64 & 1) C[7] += 1;",
        Verdict.WRONG,
        "C[0, 7] is",
    ),
    "right first, wrong later": Fault(
        _RIGHT + "if (calls > 1) C[0] += 1;", Verdict.WRONG, "correct at first but not on call 2: C[0, 0] is"
    ),
    "right first, idle later": Fault(
        "if (calls == 1) " + _RIGHT, Verdict.WRONG, "correct at first but not on call 2: C[0, 0] was never written"
    ),
    "wrong once in a while": Fault(
        _RIGHT + "if (calls == 5) C[0] += 1;", Verdict.WRONG, "correct at first but not on call 5"
    ),
    "exit": Fault("exit(3);", Verdict.CRASHED, "called exit(3)", kills=True),
    "exit as if well": Fault(_RIGHT + "exit(0);", Verdict.CRASHED, "called exit(0)", kills=True),
    "quick exit": Fault("_exit(5);", Verdict.CRASHED, "exit code 5", kills=True),
    "abort": Fault(
        'fprintf(stderr, "tile %d is odd\\n", 7); abort();',
        Verdict.CRASHED,
        "aborted in a verification run (call 1); it printed: tile 7 is odd",
        kills=True,
    ),
    "divides by zero": Fault(f"volatile int z = 0; C[0] = {_DIVIDE};", Verdict.CRASHED, "divided by zero", kills=True),
    "illegal instruction": Fault("ILLEGAL;", Verdict.CRASHED, "instruction", kills=True),
    "gives up": Fault("raise(SIGTRAP);", Verdict.CRASHED, "a trap", kills=True),
    "kills itself": Fault("kill(getpid(), SIGUSR2);", Verdict.CRASHED, "signal 12", kills=True),
    "closes all files": Fault(
        _RIGHT + "for (int f = 0; f < 4096; f++) close(f);", Verdict.CRASHED, "worker's files", kills=True
    ),
    "leaves a child behind and dies": Fault(
        "if (fork() == 0) { sleep(60); _exit(0); } abort();", Verdict.CRASHED, "aborted", kills=True
    ),
    "dies when it is loaded": Fault(
        _RIGHT,
        Verdict.CRASHED,
        "null pointer (segmentation fault) while loading",
        kills=True,
        before="__attribute__((constructor)) static void load(void) { *(volatile int *)16 = 1; }",
    ),
    "garbles the channel": Fault(
        _RIGHT + 'for (int f = 3; f < 4096; f++) (void)!write(f, "garbage garbage garbage", 23);',
        Verdict.CRASHED,
        "worker's files",
        kills=True,
    ),
    "changes its process": Fault(_RIGHT + "umask(0);", Verdict.WRONG, "changed the umask of its process", kills=True),
    "wrong, and changes its process": Fault(_RIGHT + "umask(0); C[0] += 1;", Verdict.WRONG, "C[0, 0] is", kills=True),
    "prints garbage": Fault(
        _RIGHT + 'for (int i = 0; i < 20; i++) printf("%c{\\"measurements\\": []}\\n\\xff\\x00", i); fflush(stdout);',
        Verdict.CORRECT,
        "",
    ),
}
