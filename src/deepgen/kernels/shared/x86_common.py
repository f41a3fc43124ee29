"""What the GEMM families on x86 share: whom they serve, values that their knobs may have, files of source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources

from deepgen.operators import Gemm, Operator
from deepgen.targets import X86, Target
from deepgen.vocabulary import Source

HUGE_PAGE = 2 << 20  # bytes, as in x86_pages.h


def served(operator: Operator, target: Target) -> tuple[Gemm, X86]:
    assert isinstance(operator, Gemm) and isinstance(target, X86), "ask refuses() first"
    return operator, target


def covering(values: Sequence[int], size: int) -> list[int]:
    """The values below a size and the first that covers it: larger ones would give the same kernel."""
    below = [v for v in values if v < size]
    return [*below, *[v for v in values if v >= size][:1]]


def nearest(values: Sequence[int], wanted: int) -> int:
    return min(values, key=lambda v: abs(v - wanted))


def thread_counts(cores: int) -> list[int]:
    doubled = [1 << i for i in range(cores.bit_length()) if 1 << i < cores]
    return [*doubled, cores]


def sources(names: Iterable[str], *folders: str) -> tuple[Source, ...]:
    """The files of a family: each from the first of these folders, below deepgen/kernels, that has it."""
    return tuple(Source(name, _text(name, folders)) for name in names)


@cache
def _text(name: str, folders: tuple[str, ...]) -> str:
    places = [resources.files("deepgen.kernels").joinpath(folder) for folder in folders]
    return next(file for place in places if (file := place.joinpath(name)).is_file()).read_text()
