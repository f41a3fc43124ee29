"""Is deepgen faster or slower than before? Commands, a fixed study and a loaded kernel's call, by two source trees.

    python benchmarks/times_before_after.py OLD_TREE NEW_TREE [--target cuda:native] [--rounds 15] [--json FILE]

A tree is a checkout; nothing need be installed. Both take turns in random order, each in processes of its own with
caches and settings of its own. A ratio is NEW's time over OLD's in the same round: below 1, NEW is faster. Its interval
covers 99%. The study has a fixed number of trials in a fresh folder; kernels come from a build cache that a run before
has filled. A call is on arrays of numpy's, or on tensors of torch's where the target is a GPU; its kernel does next to
nothing, so that the time is that of the way to it. Processes may be slow for as long as they live, wherever their
memory lies: every few rounds of calls have fresh ones.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness import Deadline, Options, Samples, Timed, alternate, parser, per_call, run_main, save, table
from harness.trees import Tree, Worker

STUDY = ("--strategy", "random", "--seed", "1", "--no-second-look", "--no-transfer", "--json")
PROCESSES = 5  # pairs of them for the calls
CALLS = 500
_SIZES = ("M", "N", "K", "batch", "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c")
_PLACES = ", ".join(f"p[{3 + place}]" for place in range(len(_SIZES)))
_C = f"""
#include <stdint.h>
void entry(const float *A, const float *B, float *C, {", ".join(f"int64_t {name}" for name in _SIZES)}) {{
    C[0] = A[0] * B[0];
}}
void entry_block(const int64_t *p) {{
    entry((const float *)p[0], (const float *)p[1], (float *)p[2], {_PLACES});
}}
"""
_GPU = f"""
extern "C" __global__ void entry(const float *A, const float *B, float *C,
                                 {", ".join(f"long long {name}" for name in _SIZES)}) {{
    C[0] = A[0] * B[0];
}}
"""


@dataclass(frozen=True)
class Question:
    """One thing that both trees do, and how it is timed."""

    name: str
    sample: Callable[[Mapping[str, Tree], Options, Deadline], Mapping[str, Samples]]


def commands(trees: Mapping[str, Tree], options: Options, deadline: Deadline) -> dict[str, Samples]:
    """What only answers: the time until it has."""
    target = "cpu" if options.target == "sim" else options.target
    space = ("space", "gemm", "MNK=1024", "--target", target)
    rows = {}
    for words in (("--version",), ("doctor",), space):
        by_tree = {side: per_call(lambda tree=tree, words=words: tree.run(*words)) for side, tree in trees.items()}  # type: ignore[misc]
        name = f"deepgen {' '.join(words)}"
        rows[name] = alternate(by_tree, options.rounds, seed=options.seed, deadline=deadline)
    return rows


def studies(trees: Mapping[str, Tree], options: Options, deadline: Deadline) -> dict[str, Samples]:
    """A whole `deepgen tune` of a fixed number of trials."""
    words = ("tune", "gemm", "MNK=384", "--target", options.target, "--trials", str(options.trials), *STUDY)
    numbers = count()

    def run(tree: Tree) -> None:
        tree.run(*words, "--out", str(tree.scratch / f"studies-{next(numbers)}"))

    by_tree = {side: per_call(lambda tree=tree: run(tree)) for side, tree in trees.items()}  # type: ignore[misc]
    taken = alternate(by_tree, options.rounds, seed=options.seed, deadline=deadline)
    return {f"tune gemm MNK=384, {options.trials} trials": taken}


def calls(trees: Mapping[str, Tree], options: Options, deadline: Deadline) -> dict[str, Samples]:
    """A kernel that is loaded, called with an output and without one."""
    if options.target == "sim":
        return {}
    rows: dict[str, dict[str, list[float]]] = {}
    for number in range(PROCESSES):
        words = ("--call", options.target)
        workers = {side: Worker(tree, Path(__file__).resolve(), words) for side, tree in trees.items()}
        try:
            for way in ("out=", "new output"):
                asked = {side: lambda worker=worker, way=way: worker.ask(way) for side, worker in workers.items()}
                some = alternate(asked, options.rounds, seed=options.seed + number, deadline=deadline)
                for side, seconds in some.of.items():
                    rows.setdefault(f"a call, {way}", {}).setdefault(side, []).extend(seconds)
        finally:
            for worker in workers.values():
                worker.close()
    return {name: Samples(taken) for name, taken in rows.items()}


QUESTIONS = (Question("commands", commands), Question("study", studies), Question("calls", calls))


def worker(target: str) -> None:
    """In a process of one tree: loads the kernel, and times a way to call it for each line that comes in."""
    call, (a, b, out), wait = loaded(target)
    ways: dict[str, Callable[[], Any]] = {"out=": lambda: call(a, b, out=out), "new output": lambda: call(a, b)}
    for line in sys.stdin:
        print(json.dumps(per_call(ways[line.strip()], CALLS, wait=wait)()), flush=True)


def loaded(name: str) -> tuple[Callable[..., Any], tuple[Any, ...], Callable[[], object]]:
    """The kernel as this process's deepgen loads it, its arrays, and what waits for the device."""
    from importlib import import_module

    from deepgen import targets
    from deepgen.operators import gemm
    from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg

    target = targets.resolve(name)
    language = name.partition(":")[0] if name.startswith(("cuda", "hip")) else "c"
    plan = LaunchPlan((Step("entry", (*map(TensorArg, "ABC"), *(ScalarArg("i64", size) for size in _SIZES))),))
    source = Source("entry.c", _C) if language == "c" else Source("entry.cu", _GPU)
    kernel = Kernel("nearly_nothing", language, (source,), ("-O2",) if language == "c" else (), plan)
    try:
        runtime, builds = import_module("deepgen.run.call.loaded"), import_module("deepgen.toolchains")
    except ModuleNotFoundError:  # a tree in which these had other names
        runtime, builds = import_module("deepgen.runtime.loaded"), import_module("deepgen.build")
    call = runtime.load(kernel, gemm(4, 4, 4), target, Path(builds.build_once(kernel, target).binary))
    if language == "c":
        import numpy as np

        return call, tuple(np.ones((4, 4), np.float32) for _ in range(3)), lambda: None
    import torch

    return call, tuple(torch.ones(4, 4, device="cuda") for _ in range(3)), torch.cuda.synchronize


def main() -> None:
    words = parser(__doc__)
    words.add_argument("old", type=Path, nargs="?", metavar="OLD_TREE")
    words.add_argument("new", type=Path, nargs="?", metavar="NEW_TREE")
    words.add_argument("--target", default="cpu", help="of the study and of the call: cpu, sim, cuda:native ... [cpu]")
    words.add_argument("--rounds", type=int, default=15, help="[15]")
    words.add_argument("--trials", type=int, default=24, help="of the study [24]")
    words.add_argument("--call", metavar="TARGET", help="be a worker that times calls (used by this program)")
    options = words.options()
    if options.call:
        worker(options.call)
        return
    if options.old is None or options.new is None:
        words.error("give two source trees")
    deadline, rows, begun = options.deadline(), list[Timed](), time.monotonic()
    with TemporaryDirectory(prefix="deepgen-") as scratch:
        trees = {side: Tree(getattr(options, side).resolve(), Path(scratch) / side) for side in ("old", "new")}
        for question in options.chosen(QUESTIONS, lambda one: one.name):
            if deadline.over:
                print(f"{question.name}: left out, the time limit is reached")
                continue
            for name, taken in question.sample(trees, options, deadline).items():
                rows.append(taken.beside("new", "old", name))
                print(f"{time.monotonic() - begun:4.0f} s  {name}: {rows[-1].ratio:.3f}", file=sys.stderr, flush=True)
    print(table(("", "old", "new", "new/old", "99% interval"), [(row.name, *row.cells) for row in rows]))
    save(options.json, rows, target=options.target)


if __name__ == "__main__":
    run_main(main)
