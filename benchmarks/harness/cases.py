"""The cases to measure: the suites of data/suites.json, sizes given as text, and sizes drawn by a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from math import exp, log
from typing import TypeAlias, TypeVar

from deepgen.frontends import formats
from deepgen.operators import Conv2d
from deepgen.vocabulary import BadInput
from harness import ROOT

Shape: TypeAlias = "tuple[int, int, int, int]"  # batch, M, N, K
Drawn = TypeVar("Drawn")


def suite(runner: str, *, batched: bool = True) -> list[Shape]:
    """The GEMMs for which results are reported: those of GPUs, or of CPUs."""
    every = json.loads((ROOT / "data/suites.json").read_text())["gpu" if runner == "gpu" else "cpu"]
    plain: list[Shape] = [(1, m, n, k) for m, n, k in every["gemm"]]
    return plain + ([(b, m, n, k) for b, m, n, k in every["batched_gemm"]] if batched else [])


def networks() -> dict[str, dict[Conv2d, int]]:
    """The convolutions of networks from Heron's files, f16 nhwc at batch 16, with their counts. The files have one
    number for padding: here filters of 1 x k keep the size of their images.
    """
    out: dict[str, dict[Conv2d, int]] = {}
    for name in ("resnet50", "inceptionv3", "vgg16"):
        for layer, count in formats.read(ROOT / f"tests/data/heron/figure10/{name}.json").counts.items():
            if isinstance(layer, Conv2d):
                height, width = layer.kernel
                own = replace(layer, pad=(height // 2, width // 2)) if height != width else layer
                out.setdefault(name, {})[own] = count
    return out


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
    """`count` different cases. A larger count starts with the same cases."""
    chance, out = random.Random(seed), list[Drawn]()
    while len(out) < count:
        case = make(chance)
        if case not in out:
            out.append(case)
    return out


def size(chance: random.Random, least: int, most: int) -> int:
    """Log-uniform: small sizes are as likely as large ones."""
    return round(exp(chance.uniform(log(least), log(most))))
