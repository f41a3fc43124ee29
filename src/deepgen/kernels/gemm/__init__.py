"""Families of GEMM kernels, and what those for GPUs share: how K is divided among blocks, and how defaults are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import ceil, prod
from typing import TYPE_CHECKING, Any

from deepgen.vocabulary import Size, WorkspaceArg

if TYPE_CHECKING:
    from deepgen.operators import Gemm
    from deepgen.space import Expr, Space
    from deepgen.targets import Gpu


def sums(size: Size) -> WorkspaceArg:
    return WorkspaceArg("partial", size)


def counters(size: Size) -> WorkspaceArg:
    """They are zero before the first run, and every run leaves them zero."""
    return WorkspaceArg("arrived", size, zeroed=True, lasting=True)


def share_of_blocks(
    s: Space, gemm: Gemm, gpu: Gpu, bk: Expr, min_blocks: Expr, fixups: Sequence[str], parts: Sequence[int]
) -> None:
    """The knobs by which the work is divided among blocks: `fixups` add up the `parts` of K."""
    from deepgen.space import implies

    s.knob("MAPPING", [1, 4, 8, 16])
    fixup = s.knob("FIXUP", fixups)
    splits = s.knob("SPLITS", parts, when=fixup.isin(["step", "last"]))
    blocks = s.knob("BLOCKS", [gpu.multiprocessors * n for n in (1, 2, 3, 4)], when=fixup == "stream")
    s.require(implies(fixup.isin(["step", "last"]), splits * bk <= gemm.k), "every part of K has a step")
    s.require(implies(fixup == "stream", blocks <= gpu.multiprocessors * min_blocks), "streaming blocks run at once")
    s.knob("GUARD", ["sizes"])


def least_area(most: int, *sizes: Sequence[int]) -> int:
    """The least area of a tile where there are many: `most`, or that of the largest whose sides are powers of two, as
    small matrices have no larger ones, however many they are."""
    return min(most, prod(max(n for n in each if n & (n - 1) == 0) for each in sizes))


def remembered(choose: Callable[[Gemm, Gpu], dict[str, Any]]) -> Callable[[Gemm, Gpu], dict[str, Any]]:
    """Choices of configs are kept: they are asked for when families are compared, and again for the default."""
    kept = lru_cache(64)(choose)
    return lambda gemm, gpu: dict(kept(gemm, gpu))


def beyond(length: Any, whole: int) -> Any:
    """1 if it is not a multiple, else 0: as arithmetic, since each condition doubles the calls for symbolic sizes."""
    return ceil(length % whole / whole)
