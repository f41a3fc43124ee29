"""What baselines of products share: whom they serve, how matrices lie in memory, and the factors to multiply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd
from typing import Any, TypeAlias

from deepgen.operators import Gemm, Operator
from deepgen.vocabulary import BadInput, dtype

Matrices: TypeAlias = "dict[str, tuple[int, int, int]]"  # rows, columns, and elements from row to row
_ALIGNED = 16  # bytes of rows, and elements of sizes, that libraries have kernels for in every format


def is_plain(gemm: Gemm) -> bool:
    """Whether it is a product and nothing else."""
    extras = (gemm.alpha, gemm.beta, gemm.bias, gemm.activation, gemm.scales)
    return extras == (1.0, 0.0, False, "none", "none")


def product(operator: Operator, called: str) -> Gemm:
    """The operator as a product. Raises BadInput for what `called` does not compute."""
    if not isinstance(operator, Gemm):
        raise BadInput(f"{called} has no {operator.name} here")
    return operator


def factors(gemm: Gemm, tensors: Mapping[str, Any]) -> tuple[Any, Any]:
    """A and B as they are multiplied: views with the last two dimensions swapped where they are stored transposed."""
    a, b = tensors["A"], tensors["B"]
    return (
        a if gemm.layout[0] == "n" else a.swapaxes(-1, -2),
        b if gemm.layout[1] == "n" else b.swapaxes(-1, -2),
    )


def stored(gemm: Gemm) -> Matrices:
    """The three matrices as they lie in memory."""
    m, n, k = gemm.m, gemm.n, gemm.k
    a, b = (m, k) if gemm.layout[0] == "n" else (k, m), (k, n) if gemm.layout[1] == "n" else (n, k)
    return {name: (rows, columns, columns) for name, (rows, columns) in zip("ABC", (a, b, (m, n)), strict=True)}


def padded_forms(gemm: Gemm) -> Iterator[tuple[Gemm, Matrices]]:
    """The product on copies: of the same sizes, with rows that begin at multiples of 16 bytes; with lengths of rows
    filled up to a multiple of 16 elements, where they are none of 16 bytes; with all sizes filled up."""
    sizes = {"m": gemm.m, "n": gemm.n, "k": gemm.k}
    lengths = {"A": "k" if gemm.layout[0] == "n" else "m", "B": "n" if gemm.layout[1] == "n" else "k", "C": "n"}
    whole = {name: _ALIGNED // gcd(_ALIGNED, dtype(getattr(gemm, name.lower())).bytes) for name in lengths}
    odd = {size for name, size in lengths.items() if sizes[size] % whole[name]}
    apart = {name: (rows, columns, up(columns, whole[name])) for name, (rows, columns, _) in stored(gemm).items()}
    forms = [(gemm, apart)]
    for some in (odd, {*sizes}):
        m, n, k = (up(value, _ALIGNED) if size in some else value for size, value in sizes.items())
        padded = replace(gemm, m=m, n=n, k=k)
        forms.append((padded, stored(padded)))
    plain = (gemm, stored(gemm))
    yield from (form for at, form in enumerate(forms) if form not in (plain, *forms[:at]))


def up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
