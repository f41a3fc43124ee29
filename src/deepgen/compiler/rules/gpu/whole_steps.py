"""Sums of products in whole steps of the matrix units: zeros follow where what is summed over is no multiple of one."""

from __future__ import annotations

from dataclasses import replace

from deepgen.compiler.intrinsics.matrix import PRODUCTS
from deepgen.compiler.rules.padding import guard
from deepgen.compiler.rules.tensorize import alone, rounded
from deepgen.operators.expr.nodes import Binary, Cast, Expression, Read, Stage, reads
from deepgen.targets.gpu import Gpu


def with_whole_steps(expression: Expression, gpu: Gpu) -> Expression:
    return replace(expression, stages=tuple(_whole(stage, gpu) for stage in expression.stages))


def _whole(stage: Stage, gpu: Gpu) -> Stage:
    value = stage.value
    if stage.reduce != "sum" or stage.scan or not isinstance(value, Binary) or value.op != "mul":
        return stage
    sides = (value.left, value.right)
    if any(not isinstance(side, Cast) or not (isinstance(side.value, Read) or guard(side)) for side in sides):
        return stage
    found = reads(value)
    steps = {
        p.k for p in PRODUCTS.values()
        if p.on(gpu) and p.sum == stage.dtype
        and all(read.dtype == p.operand for read in found)
    }  # fmt: skip
    axes = [axis for axis in stage.reduced if all(alone(read, axis.name) for read in found)]
    if len(found) != 2 or not steps or not axes or any(axis.extent % max(steps) == 0 for axis in axes):
        return stage
    return rounded(stage, max(axes, key=lambda axis: axis.extent), max(steps))
