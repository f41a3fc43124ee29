"""Shared by baselines of matrix products: what they support, memory layouts, and operands.

Also a model of how long a product takes in a vendor's library on a GPU, which has a good kernel for every shape. The
times of our kernels come from the models of kernel families. Without a separate model, the vendor's time would be
predicted to grow at every shape that suits none of our kernels. The model is a roofline with tiles: the best of a few
tiles, with K in one part or several, in as many waves as the multiprocessors need. Its constants were fitted to
cuBLASLt's times on an H200. Only the change of the time between shapes matters, since predictions start from tuned
shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, gcd
from typing import Any, TypeAlias

from deepgen.operators import Gemm, Operator
from deepgen.targets import Target
from deepgen.vocabulary import BadInput, dtype

Matrices: TypeAlias = "dict[str, tuple[int, int, int]]"  # rows, columns, and row stride in elements
_ALIGNED = 16  # alignment of rows in bytes and of sizes in elements for which libraries have kernels in every format


def is_plain(gemm: Gemm) -> bool:
    """Whether it is a product without scaling, bias or activation."""
    extras = (gemm.alpha, gemm.beta, gemm.bias, gemm.activation, gemm.scales, gemm.epilogue)
    return extras == (1.0, 0.0, False, "none", "none", "")


def product(operator: Operator, called: str) -> Gemm:
    """The operator as a product. Raises BadInput if it is not one, which `called` does not compute."""
    if not isinstance(operator, Gemm):
        raise BadInput(f"{called} has no {operator.name} here")
    return operator


def factors(gemm: Gemm, tensors: Mapping[str, Any]) -> tuple[Any, Any]:
    """A and B as factors: views with the last two dimensions swapped if they are stored transposed."""
    a, b = tensors["A"], tensors["B"]
    return (
        a if gemm.layout[0] == "n" else a.swapaxes(-1, -2),
        b if gemm.layout[1] == "n" else b.swapaxes(-1, -2),
    )


def stored(gemm: Gemm) -> Matrices:
    """The memory layouts of the three matrices."""
    m, n, k = gemm.m, gemm.n, gemm.k
    a, b = (m, k) if gemm.layout[0] == "n" else (k, m), (k, n) if gemm.layout[1] == "n" else (n, k)
    return {name: (rows, columns, columns) for name, (rows, columns) in zip("ABC", (a, b, (m, n)), strict=True)}


def padded_forms(gemm: Gemm) -> Iterator[tuple[Gemm, Matrices]]:
    """The product on copies: with the same sizes and rows aligned to 16 bytes; with row lengths that are not multiples
    of 16 bytes padded to multiples of 16 elements; with all sizes padded.
    """
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


SIZES = ("M", "N", "K", "batch")  # sizes the model depends on, besides the bytes of all tensors
PARTS = 32  # maximum number of parts of K: 1, 2, 4, ...
LEAST_K = 128  # minimum K of a part
STEP = 64  # K is rounded up to a multiple of this
LINE = 128  # bytes: rows aligned to this are read in whole lines
FIXED_SECONDS = 5.3e-6
PARTS_SECONDS = 1.0e-6  # to add up the parts
_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
_PEAK, _BANDWIDTH = 0.84, 0.86  # fractions of the device's rates that are reached
_CACHE_RATE = 142e9  # bytes per second that a multiprocessor reads from the L2 cache


@dataclass(frozen=True)
class VendorModel:
    """The vendor's model for one operator in all its shapes on one device."""

    multiprocessors: int
    byte_seconds: float  # of memory
    tiles: tuple[tuple[int, int, float], ...]  # rows, columns, and seconds for each element of K

    def seconds(self, gemm: Gemm) -> float:
        """The same model is in runtime.h."""
        memory = gemm.least_bytes() * self.byte_seconds
        best = float("inf")
        for rows, columns, each in self.tiles:
            tiles = ceil(gemm.m / rows) * ceil(gemm.n / columns) * gemm.batch
            parts = 1
            while parts <= PARTS and (parts == 1 or gemm.k >= parts * LEAST_K):
                rounds = ceil(tiles * parts / self.multiprocessors)
                busy = rounds * (STEP * ceil(gemm.k / (parts * STEP))) * each
                best = min(best, max(busy, memory) + (PARTS_SECONDS if parts > 1 else 0.0))
                parts *= 2
        return FIXED_SECONDS + best


def vendor_model(operator: Operator, target: Target) -> VendorModel | None:
    """The model; None unless the operator is a product on a GPU."""
    count = _multiprocessors(target)
    if not count or not isinstance(operator, Gemm):
        return None
    peak, bandwidth = target.peak(operator.a), target.bandwidth
    if not peak or not bandwidth:
        return None
    rate, size = 1e9 * _PEAK * peak / count, dtype(operator.a).bytes
    tiles = ((r, c, max(2 * r * c / rate, (r + c) * size / _CACHE_RATE)) for r, c in _TILES)
    return VendorModel(count, 1e-9 / (_BANDWIDTH * bandwidth), tuple(tiles))


def row_bytes(operator: Operator, target: Target) -> Mapping[str, int]:
    """The sizes that are row lengths, with the bytes of an element, if the alignment of rows matters."""
    if not _multiprocessors(target) or not isinstance(operator, Gemm):
        return {}
    a, b, c = (dtype(name).bytes for name in (operator.a, operator.b, operator.c))
    return {"M" if operator.layout[0] == "t" else "K": a, "K" if operator.layout[1] == "t" else "N": b, "N": c}


def reached(operator: Operator, target: Target) -> float | None:
    """Seconds according to the vendor's model, if there is one."""
    model = vendor_model(operator, target)
    return None if model is None else _seconds(model, operator)


def _multiprocessors(target: Target) -> int | None:
    """None if the target is not a GPU."""
    count: int | None = getattr(target, "multiprocessors", None)
    return count


@lru_cache(maxsize=4096)  # predictions repeatedly ask for the same shapes
def _seconds(model: VendorModel, operator: Operator) -> float:
    assert isinstance(operator, Gemm), "vendor_model has checked"
    return model.seconds(operator)
