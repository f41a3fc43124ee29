"""Reductions with few results, of which several blocks reduce parts: how many parts each has."""

from __future__ import annotations

from math import prod

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.facts import shareable
from deepgen.compiler.rules.gpu.columns import lacking_threads, teams_suffice, why_no_columns
from deepgen.compiler.rules.gpu.groups import groups
from deepgen.compiler.rules.gpu.plan import LEAST_ROWS, WIDEST
from deepgen.compiler.rules.gpu.rows import in_clusters
from deepgen.operators.expr.nodes import Expression, Stage
from deepgen.targets import Gpu

_BLOCKS = 8  # per multiprocessor
_LEAST_PART = 4096  # least elements of a row per part
_MOST_PARTS = 1024
_LEAST_OF_ROWS = 8  # parts, if a single launch could reduce and store whole rows
_LONGEST_AT_ONCE = 1 << 17  # elements of a row that is reduced again and again, which one block does in one launch


def parts_of_reductions(plain: Expression, gpu: Gpu) -> list[dict[str, int]] | str:
    """The reductions that blocks should share, with the number of parts of each; or the reason why there are none.

    If one reads the result of another, as a variance does, each is split, in its own launches.
    """
    sums = [stage for stage in plain.stages if stage.reduce is not None]
    if not sums or any(stage.scan or not stage.axes or shareable(stage) for stage in sums):
        return "it has no reductions, or reads their elements more than once"
    parts = groups(plain)
    if all(in_clusters(group, gpu) for group in parts if group.sums or group.last.reduce is not None):
        return "the blocks of a cluster reduce a row in one launch"
    several = any(group.rows for group in parts)  # rows are read again after they are reduced
    if several and max(map(facts.elements, sums)) < _LONGEST_AT_ONCE:
        return "a block reduces a row faster than several launches do"
    wanted = {stage.name: n for stage in sums if (n := _wanted_parts(stage, gpu)) >= (_LEAST_OF_ROWS if several else 2)}
    if not wanted:
        return "there is work for all multiprocessors, or its reductions are short"
    by_name = {stage.name: stage for stage in sums}
    return [
        {name: even_parts(by_name[name], n // by) for name, n in wanted.items() if n // by >= 2}
        for by in (1, 4)
        if any(n // by >= 2 for n in wanted.values())
    ]


def _wanted_parts(stage: Stage, gpu: Gpu) -> int:
    """The number of parts to split a reduction into: a power of two."""
    elements, results = facts.elements(stage), prod(stage.shape)
    if why_no_columns(stage) is None:
        lacking = lacking_threads(stage, gpu)
        most = 1 if teams_suffice(stage, gpu) else facts.longest(stage).extent // LEAST_ROWS
    else:
        lacking = gpu.multiprocessors * _BLOCKS // results
        most = min(facts.longest(stage).extent, elements // _LEAST_PART)
    return 1 << max(0, min(lacking, most, _MOST_PARTS).bit_length() - 1)


def even_parts(stage: Stage, parts: int) -> int:
    """This number of parts, or a similar number: of parts along rows whose runs of elements are aligned, of others that
    divide the extent evenly, as uneven parts need guards."""
    extent = facts.longest(stage).extent
    near = range(-(-2 * parts // 3), 4 * parts // 3 + 1)
    even = [n for n in near if extent % n == 0]
    if why_no_columns(stage) is not None:
        aligned = [n for n in near if -(-extent // n) % WIDEST == 0 and -(-extent // n) * (n - 1) < extent]
        even = [n for n in aligned if n in even] or aligned or even
    return min(even, key=lambda n: abs(n - parts), default=parts)
