"""What a call costs through deepgen.torch, beside torch's own: tiny tensors, so that little else is timed.

    python benchmarks/torch_calls.py --json torch_calls.json
    python benchmarks/torch_calls.py --device cuda

`unserved` is a call that stays torch's while a library is in use. Times are the processor's for this thread, the least
of several rounds, in which the three take turns; a GPU's work is not waited for. The bar is 1.3 of torch's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import torch  # noqa: E402

import deepgen.torch  # noqa: E402
from common import run_main, save  # noqa: E402
from deepgen import generators  # noqa: E402
from deepgen.operators import Operator  # noqa: E402
from deepgen.runtime.loaded import load  # noqa: E402
from deepgen.targets import Target  # noqa: E402

CALLS = 2000


class Defaults:
    """In place of a library: the default config of each family, on one thread, or nothing."""

    def __init__(self, served: bool) -> None:
        self._served = served

    def choose(self, operator: Operator, target: Target, among: Any) -> Any:
        if not self._served:
            return SimpleNamespace(entry=None, reason="nothing is served")

        def loaded() -> Any:
            family = generators.find(operator, target)
            config = family.default(operator, target.limited_to(1))
            return load(family.emit(operator, target, config), operator, target)

        return SimpleNamespace(entry=operator, seconds=None, considered=(), reason="", load=loaded)


def measured(rounds: int, device: str) -> dict[str, dict[str, float]]:
    """Microseconds of each call, by who serves it."""
    functions = torch.nn.functional
    rows, width, dtype = (4, 8, torch.float32) if device == "cpu" else (16, 64, torch.bfloat16)
    x, square, bias, out = (
        torch.randn(*shape, device=device, dtype=dtype)
        for shape in ((rows, width), (width, width), (width,), (rows, width))
    )
    weight = torch.nn.Parameter(square, requires_grad=False)
    calls: dict[str, Callable[[], Any]] = {
        "linear": lambda: functions.linear(x, weight),
        "linear with bias": lambda: functions.linear(x, weight, bias),
        "mm": lambda: torch.mm(x, weight),
        "mm into out": lambda: torch.mm(x, weight, out=out),
        "softmax": lambda: torch.softmax(x, -1),
        "rms_norm": lambda: functions.rms_norm(x, (width,), bias, 1e-5),
        "x + y": lambda: x + out,  # too small for a kernel: what is served is not, either
    }
    ways = {
        "deepgen": deepgen.torch.use(Defaults(served=True), race=False),  # type: ignore[arg-type]
        "unserved": deepgen.torch.use(Defaults(served=False), race=False),  # type: ignore[arg-type]
    }
    least = {name: {way: float("inf") for way in ("torch", *ways)} for name in calls}
    with torch.no_grad():
        for _ in range(rounds):
            for name, call in calls.items():
                least[name]["torch"] = min(least[name]["torch"], _microseconds(call))
                for way, used in ways.items():
                    with used:
                        least[name][way] = min(least[name][way], _microseconds(call))
    return least


def _microseconds(call: Callable[[], Any]) -> float:
    for _ in range(100):
        call()
    _wait()
    started = time.thread_time()
    for _ in range(CALLS):
        call()
    taken = time.thread_time() - started
    _wait()
    return taken / CALLS * 1e6


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = measured(given.rounds, given.device)
    print(f"{'call':18} {'torch':>8} {'deepgen':>8} {'ratio':>6} {'unserved':>9} {'ratio':>6}")
    for name, times in found.items():
        ours, not_ours = times["deepgen"] / times["torch"], times["unserved"] / times["torch"]
        figures = f"{times['torch']:8.2f} {times['deepgen']:8.2f} {ours:6.2f} {times['unserved']:9.2f} {not_ours:6.2f}"
        print(f"{name:18} {figures}")
    if given.json is not None:
        save(given.json, found, device=given.device)


if __name__ == "__main__":
    run_main(main)
