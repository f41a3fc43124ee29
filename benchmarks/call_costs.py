"""What a call of a loaded kernel costs from Python, beside numpy's and torch's own calls of the same product.

    python benchmarks/call_costs.py [--target cuda:native] [--shape 16x19x35] [--json FILE]

`nothing` is a kernel that does next to nothing, so its time is the overhead of the call. `kernel` is the family's
default, on one thread. Each is called through compiled code and through Python, the fallback without a compiler. All
alternate; the time of a loop without a call is subtracted. On a GPU the times are CPU times, including the driver's
launch, and the device is waited for after each batch of calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np

from deepgen import generators, targets
from deepgen.operators import gemm
from deepgen.run.call import compiled
from deepgen.run.call.loaded import Loaded, load
from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg
from harness import alternate, parser, per_call, run_main, save, table
from harness.cases import shape
from harness.turns import seconds_text

CALLS = 300  # per batch: a GPU's queue holds 1,000
_ENTRY = "entry(const float *A, const float *B, float *C, long long M, long long N) { C[0] = A[0] * B[0]; }\n"


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--target", default="cpu", help="[cpu]")
    words.add_argument("--shape", default="16x19x35", metavar="MxNxK", help="of f32 [16x19x35]")
    words.add_argument("--rounds", type=int, default=60, help="[60]")
    options = words.options()
    ways, wait = _ways(options.target, shape(options.shape)[1:])
    clock = time.perf_counter if options.target == "cpu" else time.thread_time
    turns = {name: per_call(call, CALLS, clock=clock, wait=wait) for name, call in ways.items()}
    taken = alternate(turns, options.rounds, seed=options.seed, deadline=options.deadline())
    empty = taken.least("a loop")
    rows = {
        name: {"least": max(0.0, taken.least(name) - empty), "median": max(0.0, taken.median(name) - empty)}
        for name in options.chosen(name for name in ways if name != "a loop")
    }
    cells = [(name, *(seconds_text(seconds) for seconds in row.values())) for name, row in rows.items()]
    print(table(("call", "least", "median"), cells))
    if compiled.core() is None:
        print("there is no compiled way here: every call goes the Python way")
    save(options.json, rows, target=options.target, shape=options.shape, compiled=compiled.core() is not None)


def _ways(name: str, sizes: tuple[int, int, int]) -> tuple[dict[str, Callable[[], Any]], Callable[[], object]]:
    """The functions to time, by name, and one that waits for the device."""
    m, n, k = sizes
    kernels: dict[str, Callable[..., Any]] = {"nothing": _nothing(name), "kernel": _default(name, sizes)}
    wait: Callable[[], object] = lambda: None  # noqa: E731
    arrays: dict[str, Any] = {}
    if name == "cpu":
        arrays["numpy"] = tuple(np.ones(shape, np.float32) for shape in ((m, k), (k, n), (m, n)))
    try:
        import torch

        torch.set_num_threads(1)
        place = "cpu" if name == "cpu" else "cuda"
        arrays["torch"] = tuple(torch.ones(shape, device=place) for shape in ((m, k), (k, n), (m, n)))
        own: dict[str, Callable[..., Any]] = {"numpy": np.matmul, "torch": torch.mm}
        wait = torch.cuda.synchronize if place == "cuda" else wait
    except ImportError:
        own = {"numpy": np.matmul}
    calls: dict[str, Callable[[], Any]] = {"a loop": lambda: None}
    for library, (a, b, out) in arrays.items():
        each: dict[str, Callable[..., Any]] = {f"{kind}, compiled way": call for kind, call in kernels.items()}
        with patch.object(compiled, "core", lambda: None):
            for kind, slow in (("nothing", _nothing(name)), ("kernel", _default(name, sizes))):
                slow(a, b, out=out)  # this binds it, in Python
                slow(a, b)
                each[f"{kind}, Python way"] = slow
        for words, call in {**each, f"{library}'s own": own[library]}.items():
            calls[f"{library}: {words}, out="] = lambda f=call, a=a, b=b, out=out: f(a, b, out=out)  # type: ignore[misc]
            calls[f"{library}: {words}"] = lambda f=call, a=a, b=b: f(a, b)  # type: ignore[misc]
    return calls, wait


def _nothing(name: str) -> Loaded:
    target = targets.resolve(name)
    source = Source("entry.c", f"void {_ENTRY}")
    if name != "cpu":
        source = Source("entry.cu", f'extern "C" __global__ void {_ENTRY}')
    plan = LaunchPlan((Step("entry", (*map(TensorArg, "ABC"), *(ScalarArg("i64", size) for size in "MN"))),))
    return load(Kernel("nothing", target.languages[0], (source,), (), plan), gemm(4, 4, 4), target)


def _default(name: str, sizes: tuple[int, int, int]) -> Loaded:
    target, operator = targets.resolve(name), gemm(*sizes)
    family = generators.find(operator, target)
    limited = target.limited_to(1) if name == "cpu" else target
    return load(family.emit(operator, target, family.default(operator, limited)), operator, target)


if __name__ == "__main__":
    run_main(main)
