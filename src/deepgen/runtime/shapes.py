"""Which shapes a kernel admits, by the requirements of its launch plan."""

from __future__ import annotations

from collections.abc import Mapping

from deepgen.space import parse
from deepgen.vocabulary import BadInput, Kernel


def check_shape(kernel: Kernel, scalars: Mapping[str, int | float]) -> None:
    """Raises BadInput with the requirement's words when the kernel does not serve this shape."""
    for expression, words in kernel.plan.requires:
        if not parse(expression).evaluate(scalars):
            sizes = ", ".join(f"{name}={scalars[name]}" for name in ("M", "N", "K", "batch") if name in scalars)
            raise BadInput(f"kernel {kernel.name} does not serve {sizes}", allowed=words)
