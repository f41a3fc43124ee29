"""Which shapes a winner serves, where the finals found it wrong at others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.operators import Signature


def serves_only(serves: Mapping[str, Any], signature: Signature) -> tuple[tuple[str, str], ...]:
    """What a shape must satisfy, each with the reason in words, from what the finals say of it."""
    dense = _dense_only(serves["dense"], signature) if serves.get("dense") else ()
    if not serves.get("only"):
        return dense
    shapes = [" and ".join(f"{name} == {size}" for name, size in sizes.items()) for sizes in serves["only"]]
    words = "it serves only " + " or ".join(shapes).replace(" == ", "=").replace(" and ", " ")
    return ((" or ".join(f"({shape})" for shape in shapes), f"{words}: it was {serves['why']}"), *dense)


def _dense_only(why: str, signature: Signature) -> tuple[tuple[str, str], ...]:
    words = f"it serves dense arrays only: with room between rows it was {why}"
    strides = [
        f"stride_{param.name}_{i} == " + " * ".join(f"({size})" for size in param.shape[i + 1 :])
        for param in signature.params
        for i in range(len(param.shape) - 1)
    ]
    return tuple((stride, words) for stride in strides)
