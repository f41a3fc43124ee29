"""How many blocks a problem is divided into, as tools that tune GPU kernels say it: a size, and what divides it."""

from __future__ import annotations

from collections.abc import Sequence

from deepgen.operators.signature import Size


def divided(size: Size, divisors: Sequence[Size]) -> Size:
    """A size over the product of its divisors, rounded up."""
    if not divisors:
        return size
    product = " * ".join(f"({one})" for one in divisors)
    return f"ceil_div({size}, {product})"
