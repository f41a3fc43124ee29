"""Long sums with few results (split-K): several blocks add up parts of a sum, and a second launch adds up the parts.

Parts lie in a workspace, in a fixed order: results do not depend on which block was first.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from deepgen.compiler.rules.gpu.contraction import contraction
from deepgen.operators.expr.index import iterator
from deepgen.operators.expr.nodes import Axis, Expression, Read, Stage, substituted
from deepgen.targets.gpu import Gpu

_TILE = 64 * 64  # results that a block has at least
_LEAST = 256  # elements of a part of a sum
_MOST = 8  # parts
_AXIS = "part"


def split_counts(plain: Expression, gpu: Gpu) -> list[int]:
    """Into how many parts the sum of an expression may be split, so that there is work for more multiprocessors."""
    found = [c for stage in plain.stages if (c := contraction(stage, gpu))]
    if len(found) != 1 or found[0].taps:
        return []
    (c,) = found
    results = prod(c.stage.shape)
    blocks = -(-results // _TILE)
    return [
        parts
        for parts in (2, 4, _MOST)
        if blocks * parts < 2 * gpu.multiprocessors
        and c.along.extent % (parts * c.intrinsic.line) == 0
        and c.along.extent // parts >= _LEAST
        and workspace_bytes(results, parts) <= gpu.l2_bytes  # so that the second launch finds them there
    ][-2:]


def workspace_bytes(results: int, parts: int) -> int:
    return 4 * results * parts


def with_split_sums(expression: Expression, gpu: Gpu, parts: int) -> Expression:
    """`expression` has operands as stages or tensors, and one sum of products of them."""
    stages: list[Stage] = []
    for stage in expression.stages:
        c = contraction(stage, gpu)
        stages += [stage] if c is None else _split(stage, c.along, parts)
    return replace(expression, stages=tuple(stages))


def _split(stage: Stage, along: Axis, parts: int) -> list[Stage]:
    own = replace(along, extent=along.extent // parts)
    value = substituted(stage.value, {along.name: iterator(_AXIS) * own.extent + iterator(along.name)})
    reduced = tuple(own if axis == along else axis for axis in stage.reduced)
    axis = Axis(_AXIS, parts)
    each = Stage(f"{stage.name}.parts", (axis, *stage.axes), value, stage.reduce, reduced)
    places = (iterator(_AXIS), *(iterator(one.name) for one in stage.axes))
    return [each, Stage(stage.name, stage.axes, Read(each.name, places, stage.dtype), stage.reduce, (axis,))]
