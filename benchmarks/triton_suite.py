"""How much of Triton's own tests, or of another project's, runs on a processor: cases by how they end, and why.

Cases are drawn by a seed from what pytest collects. Each runs in a separate process, so that one that dies or hangs is
counted and the next one runs. Nothing is written into the checkout.

    python benchmarks/triton_suite.py CHECKOUT [python/test/unit/language ...] --cases 600 --seed 1
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import re
import resource
import select
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from _pytest.runner import runtestprotocol

import deepgen.triton_cpu
from deepgen.vocabulary.errors import DeepgenError

TESTS = ("python/test/unit/language", "python/test/unit/runtime", "python/test/unit/test_debug.py")
# Possible outcomes, the worst first.
DEAD, WRONG, OTHER, LATE, REFUSED, NEEDS_GPU, SKIPPED, PASSED = (
    "dead process", "wrong result", "other error", "time out", "not supported", "needs a GPU", "skipped by the test",
    "passed",
)  # fmt: skip
ENDS = (DEAD, WRONG, OTHER, LATE, REFUSED, NEEDS_GPU, SKIPPED, PASSED)
_GPU = re.compile(
    r"cuda|nvidia|\bhip\b|\bamd|\bgpu|\bptx|cubin|sass|ttgir|llir|num_warps|num_ctas|shared memory|nvmma|cublas", re.I
)
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?(e[+-]?\d+)?")
_LONGEST = 110
_PATIENCE = 8  # a case may take this many times its CPU time limit, since the machine may be shared
# Cases that expect behaviour specific to a GPU's threads and memory.
_OF_GPUS = {
    r"test_print\[(device_print_scalar|no_arg_print|print_no_arg|device_print_2d_tensor)": "prints once a GPU's thread",
}


@dataclass(frozen=True)
class Outcome:
    case: str
    end: str
    why: str = ""


class OneByOne:
    """A pytest plug-in that draws cases and runs each in a fork."""

    def __init__(self, cases: int, seed: int, limit: int, only: str) -> None:
        self._cases, self._seed, self._limit, self._only = cases, seed, limit, only
        self.collected = 0
        self.outcomes: list[Outcome] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.collected = len(items)
        items[:] = [item for item in items if re.search(self._only, item.nodeid)]
        if 0 < self._cases < len(items):
            items[:] = random.Random(self._seed).sample(items, self._cases)

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        outcome = self._run(item)
        self.outcomes.append(outcome)
        if outcome.end != PASSED:
            print(f"{len(self.outcomes)} {outcome.end}: {outcome.case}: {outcome.why}", flush=True)
        return True

    def _run(self, item: pytest.Item) -> Outcome:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setpgid(0, 0)
                os.close(read)
                resource.setrlimit(resource.RLIMIT_CPU, (self._limit, self._limit + 1))
                end, why = _ended(item)
                os.write(write, json.dumps([end, why[:2000]]).encode())
            finally:
                os._exit(0)
        os.close(write)
        text = b""
        deadline = time.monotonic() + self._limit * _PATIENCE
        with os.fdopen(read, "rb", 0) as pipe:
            while select.select([pipe], [], [], max(deadline - time.monotonic(), 0))[0]:
                more = pipe.read(4096)
                if not more:
                    break
                text += more
            else:
                os.killpg(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if text:
            end, why = json.loads(text)
            reason = next((why for pattern, why in _OF_GPUS.items() if re.search(pattern, item.nodeid)), None)
            return Outcome(item.nodeid, *((NEEDS_GPU, reason) if reason and end == WRONG else (end, why)))
        code = os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline or code in (-signal.SIGXCPU, -signal.SIGKILL):
            return Outcome(item.nodeid, LATE, f"{self._limit} s of processor time were not enough")
        return Outcome(item.nodeid, DEAD, signal.Signals(-code).name if code < 0 else f"exit status {code}")


def _ended(item: pytest.Item) -> tuple[str, str]:
    """Run a test and return its outcome."""
    raised: list[BaseException] = []

    class Watch:
        @staticmethod
        def pytest_exception_interact(call: pytest.CallInfo[Any]) -> None:
            if call.excinfo is not None:
                raised.append(call.excinfo.value)

    item.config.pluginmanager.register(Watch())
    reports = runtestprotocol(item, log=False)
    worst = next((r for r in reports if r.failed), None)
    if worst is None:
        skipped = next((r for r in reports if r.skipped), None)
        if skipped is None:
            return PASSED, ""
        return SKIPPED, skipped.longrepr[2] if isinstance(skipped.longrepr, tuple) else "expected to fail"
    return _judged(raised[0] if raised else None, str(worst.longrepr))


def _judged(error: BaseException | None, text: str) -> tuple[str, str]:
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    for one in chain:
        if isinstance(one, DeepgenError) or "not supported in this architecture" in str(one):
            return REFUSED, str(one)
    first = chain[0] if chain else None
    why = f"{type(first).__name__}: {first}" if first is not None else text[-400:]
    if _GPU.search(why):
        return NEEDS_GPU, why
    return (WRONG if isinstance(first, AssertionError) else OTHER), why


def cause(outcome: Outcome) -> str:
    """The reason, without the numbers and places in which similar cases differ."""
    text = " ".join(outcome.why.replace("Skipped: ", "").split())
    text = re.sub(r"\S*/\S+\.py:\d+:?\s*", "", text)
    return _NUMBERS.sub("N", text)[:_LONGEST]


def table(outcomes: Sequence[Outcome], fewest: int) -> str:
    lines = ["| | cases |", "|---|---|"]
    ends = Counter(outcome.end for outcome in outcomes)
    for end in reversed(ENDS):
        lines.append(f"| **{end}** | {ends[end]} |")
        if end == PASSED:
            continue
        causes: dict[str, list[str]] = defaultdict(list)
        for outcome in outcomes:
            if outcome.end == end:
                causes[cause(outcome)].append(outcome.case)
        for why, cases in sorted(causes.items(), key=lambda one: -len(one[1])):
            if len(cases) >= fewest or end in (DEAD, WRONG, OTHER):
                lines.append(
                    f"| {why.replace('|', '/')} ({cases[0].split('::')[-1].partition('[')[0]}) | {len(cases)} |"
                )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path, help="the project, at the release that is installed")
    parser.add_argument("tests", nargs="*", help="files and folders of it (default: Triton's tests of the language)")
    parser.add_argument("--cases", type=int, default=600, help="how many are drawn; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=60, help="seconds of processor time for a case")
    parser.add_argument("--fewest", type=int, default=1, help="causes with fewer cases are left out of the table")
    parser.add_argument(
        "--assume", metavar="MODULE:FUNCTION", action="append", default=[],
        help="a function of the checkout that is to answer yes, such as test.utils:supports_bfloat16 in Liger-Kernel",
    )  # fmt: skip
    parser.add_argument("--only", default="", help="a pattern that a case's name has")
    parser.add_argument("--output", type=Path, help="a JSON of all cases")
    args = parser.parse_args()
    deepgen.triton_cpu.activate()
    torch.set_num_threads(1)  # a thread pool does not survive a fork
    # Called in parametrizations, and before results are inspected.
    torch.cuda.get_device_capability, torch.cuda.synchronize = (lambda *_: (0, 0)), (lambda *_: None)
    checkout = args.checkout.resolve()
    tests = args.tests or [path for path in TESTS if (checkout / path).exists()]
    os.chdir(checkout)
    sys.path.insert(0, str(checkout))
    for assumed in args.assume:
        module, _, function = assumed.partition(":")
        setattr(importlib.import_module(module), function, lambda: True)
    drawn = OneByOne(args.cases, args.seed, args.limit, args.only)
    options = ["-q", "--continue-on-collection-errors", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly"]
    if (checkout / "python/conftest.py").exists():
        options += ["--device", "cpu"]
    sys.dont_write_bytecode = True
    pytest.main([*options, *tests], plugins=[drawn])
    print(f"Triton {triton.__version__}, torch {torch.__version__}: {len(drawn.outcomes)} of {drawn.collected} cases")
    print(table(drawn.outcomes, args.fewest))
    if args.output:
        args.output.write_text(json.dumps([asdict(outcome) for outcome in drawn.outcomes], indent=1))
    return int(any(outcome.end in (DEAD, WRONG) for outcome in drawn.outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
