"""What is measured: the suites of data/suites.json, sizes given as text, and sizes drawn by a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from math import exp, log
from typing import TypeAlias, TypeVar

from deepgen.vocabulary import BadInput
from harness import ROOT

Shape: TypeAlias = "tuple[int, int, int, int]"  # batch, M, N, K
Drawn = TypeVar("Drawn")


def suite(runner: str, *, batched: bool = True) -> list[Shape]:
    """The GEMMs that results are reported on: those of GPUs, or of processors."""
    every = json.loads((ROOT / "data/suites.json").read_text())["gpu" if runner == "gpu" else "cpu"]
    plain: list[Shape] = [(1, m, n, k) for m, n, k in every["gemm"]]
    return plain + ([(b, m, n, k) for b, m, n, k in every["batched_gemm"]] if batched else [])


def shape(text: str) -> Shape:
    """MxNxK, or BbMxNxK for a batch of B."""
    batch, _, sizes = text.rpartition("b")
    try:
        m, n, k = (int(size) for size in sizes.split("x"))
        return int(batch or 1), m, n, k
    except ValueError:
        raise BadInput(f"{text!r} is no shape", allowed="MxNxK, or BbMxNxK for a batch of B") from None


def shape_text(sizes: Shape) -> str:
    batch = f"{sizes[0]}b" if sizes[0] > 1 else ""
    return batch + "x".join(map(str, sizes[1:]))


def draw(seed: int, count: int, make: Callable[[random.Random], Drawn]) -> list[Drawn]:
    """`count` different cases. More of them begin with the same ones."""
    chance, out = random.Random(seed), list[Drawn]()
    while len(out) < count:
        case = make(chance)
        if case not in out:
            out.append(case)
    return out


def size(chance: random.Random, least: int, most: int) -> int:
    """Log-uniform: small sizes are as likely as large ones."""
    return round(exp(chance.uniform(log(least), log(most))))
