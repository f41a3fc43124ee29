"""Values with some of their parts replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from deepgen.operators.expr.index import Index
from deepgen.operators.expr.nodes import Place, Read, Value, children, with_children


def with_indices(value: Value, change: Callable[[Index], Index]) -> Value:
    """A value with every index changed."""
    if isinstance(value, Place):
        return replace(value, index=change(value.index))
    if isinstance(value, Read):
        return replace(value, indices=tuple(change(i) for i in value.indices))
    return with_children(value, [with_indices(child, change) for child in children(value)])


def with_reads(value: Value, change: Callable[[Read], Value]) -> Value:
    """A value with every read replaced."""
    if isinstance(value, Read):
        return change(value)
    return with_children(value, [with_reads(child, change) for child in children(value)])


def replaced(value: Value, old: Value, new: Value) -> Value:
    """A value with one of its parts, wherever it occurs, replaced by another."""
    if value == old:
        return new
    return with_children(value, [replaced(child, old, new) for child in children(value)])
