"""Is deepgen faster or slower than before? Commands and a fixed study, by two source trees.

    python benchmarks/times_before_after.py OLD_TREE NEW_TREE [--target cuda:native] [--rounds 15] [--json FILE]

A tree is a checkout; nothing need be installed. Both alternate in random order, each in separate processes with
separate caches and settings. A ratio is NEW's time over OLD's in the same round: below 1, NEW is faster. Its interval
covers 99%. The study has a fixed number of trials in a fresh folder; kernels come from a build cache filled by an
earlier run. For the cost of calling a loaded kernel see `call_costs.py`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from harness import Deadline, Options, Samples, Timed, alternate, parser, per_call, run_main, save, table
from harness.trees import Tree

STUDY = ("--strategy", "random", "--seed", "1", "--no-second-look", "--no-transfer", "--json")


@dataclass(frozen=True)
class Question:
    """One task for both trees, and how it is timed."""

    name: str
    sample: Callable[[Mapping[str, Tree], Options, Deadline], Mapping[str, Samples]]


def commands(trees: Mapping[str, Tree], options: Options, deadline: Deadline) -> dict[str, Samples]:
    """Commands that only print an answer: the time until they have ended."""
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


QUESTIONS = (Question("commands", commands), Question("study", studies))


def main() -> None:
    words = parser(__doc__)
    words.add_argument("old", type=Path, nargs="?", metavar="OLD_TREE")
    words.add_argument("new", type=Path, nargs="?", metavar="NEW_TREE")
    words.add_argument("--target", default="cpu", help="of the study: cpu, sim, cuda:native ... [cpu]")
    words.add_argument("--rounds", type=int, default=15, help="[15]")
    words.add_argument("--trials", type=int, default=24, help="of the study [24]")
    options = words.options()
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
