"""How long it takes at least to read so many bytes with some threads: what bounds kernels that do little else."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources

import numpy as np

from deepgen.run.call.native import NativeKernel
from deepgen.targets import Cpu
from deepgen.toolchains import build_once
from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg

_TEXT = """
#include <stdint.h>
#include "cpu_pool.h"

#define STREAMS 4  // that a thread reads at a time
typedef uint64_t vector __attribute__((vector_size(64), aligned(1), may_alias));
typedef struct { const char *x; uint64_t *out; int64_t bytes; int threads; } job;

static void part(void *given, int thread) {
    const job *j = given;
    const int64_t stream = j->bytes / j->threads / STREAMS / 64 * 64;
    const char *from = j->x + thread * STREAMS * stream;
    vector sums[STREAMS] = {0};
    for (int64_t at = 0; at < stream; at += 64)
        for (int s = 0; s < STREAMS; s++) sums[s] |= *(const vector *)(from + s * stream + at);
    for (int s = 1; s < STREAMS; s++) sums[0] |= sums[s];
    for (int n = 0; n < 8; n++) j->out[thread * 8 + n] = sums[0][n];
}

void read_all(const char *x, uint64_t *out, int64_t bytes, int32_t threads) {
    job j = {x, out, bytes, threads};
    pool_run(threads, part, &j);
}
"""


def reading(bytes_read: int, cpu: Cpu, threads: int) -> Callable[[], None]:
    """A call that reads so many bytes, each thread always the same part of them."""
    templates = resources.files("deepgen.kernels.shared")
    headers = [Source(name, templates.joinpath(name).read_text()) for name in ("cpu_pool.h", "x86_pool.h")]
    args = (TensorArg("x"), TensorArg("out"), ScalarArg("i64", bytes_read), ScalarArg("i32", threads))
    plan = LaunchPlan((Step("read_all", args),))
    kernel = Kernel("read", "c", (Source("kernel.c", _TEXT), *headers), ("-std=gnu11", "-pthread"), plan)
    arrays = {"x": np.ones(bytes_read, np.uint8), "out": np.zeros(threads * 64, np.uint8)}
    bound = NativeKernel(kernel, build_once(kernel, cpu).binary).bind(arrays, {})

    def call() -> None:
        bound.run()

    return call
