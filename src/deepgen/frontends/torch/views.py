"""Views that need not be made: compiled code gives a kernel the whole tensor, as only its address is used."""

from __future__ import annotations

from typing import Any, TypeAlias

View: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...]]"  # sizes and strides, from the tensor's first element on
Views: TypeAlias = "tuple[View | None, View | None]"  # of a product's matrices; None: the tensor itself


def viewed(a: Any, b: Any, views: Views) -> tuple[Any, Any]:
    """The views after all, for what looks at more than addresses."""
    in_a, in_b = views
    return (
        a if in_a is None else a.as_strided(*in_a, a.storage_offset()),
        b if in_b is None else b.as_strided(*in_b, b.storage_offset()),
    )
