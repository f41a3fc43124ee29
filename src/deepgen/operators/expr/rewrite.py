"""Values with some of their parts replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from deepgen.operators.expr.index import Index
from deepgen.operators.expr.nodes import Binary, Cast, Compare, Const, Logic, Place, Read, Select, Unary, Value


def rewritten(value: Value, leaf: Callable[[Const | Place | Read], Value]) -> Value:
    """A value with every leaf replaced."""
    if isinstance(value, (Const, Place, Read)):
        return leaf(value)
    if isinstance(value, (Cast, Unary)):
        return replace(value, value=rewritten(value.value, leaf))
    if isinstance(value, (Binary, Compare, Logic)):
        return replace(value, left=rewritten(value.left, leaf), right=rewritten(value.right, leaf))
    parts = (value.condition, value.then, value.otherwise)
    return Select(*(rewritten(part, leaf) for part in parts))


def with_indices(value: Value, change: Callable[[Index], Index]) -> Value:
    """A value with every index changed."""

    def leaf(node: Const | Place | Read) -> Value:
        if isinstance(node, Place):
            return replace(node, index=change(node.index))
        return replace(node, indices=tuple(change(i) for i in node.indices)) if isinstance(node, Read) else node

    return rewritten(value, leaf)


def substituted(value: Value, by: Mapping[str, Index]) -> Value:
    """A value with indices in place of iterators."""
    return with_indices(value, lambda i: i.substitute(by))


def with_reads(value: Value, change: Callable[[Read], Value]) -> Value:
    """A value with every read replaced."""
    return rewritten(value, lambda node: change(node) if isinstance(node, Read) else node)
