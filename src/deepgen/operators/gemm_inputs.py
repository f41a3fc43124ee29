"""Inputs of a GEMM: normal numbers, and the probes of the finals, each for one kind of kernel bug."""

from __future__ import annotations

import zlib
from math import inf, nan
from typing import TYPE_CHECKING

from deepgen.operators import filling
from deepgen.operators.base import Array
from deepgen.operators.filling import EXTREMES, drawn
from deepgen.operators.products import TINY, cancelling, integer_range, largest_factor, signs
from deepgen.operators.signature import OUTPUT, Tensor
from deepgen.vocabulary import DType
from deepgen.vocabulary.dtypes import narrow, widen
from deepgen.vocabulary.errors import BadInput

if TYPE_CHECKING:
    from deepgen.operators.gemm import Gemm

_FLOATS = ("normal", "large", "denormal", "zeros", "special")
_LARGE = {"f16": 8.0, "f8e4m3": 64.0, "f8e5m2": 2.0**12}  # where 2**40 would overflow: the sums must stay finite
_LARGE_BEFORE = 8.0  # an epilogue
_SPECIAL = {"f8e4m3": (nan,)}  # for formats without infinities
_EXACT_ROWS = 16  # distinct rows of A if sums are exact: that makes their reference cheap
_MOST_ACTIVATED = 1 << 10  # products that do not cancel before an activation, whose own error is relative to the sum
_POWERS = (0.5, 1.0, 2.0)  # factors that cause no rounding
_LARGEST_FACTOR = 2.0  # of `_POWERS`
_BLOCK_FACTORS = (0.25, 1.25)  # of blocks, where large sums must stay finite; distinct, so that a wrong one shows


def probes(gemm: Gemm) -> tuple[str, ...]:
    """Integers have no denormal or special values, and unsigned ones no signs."""
    a, b, c, _ = gemm.dtypes
    usual = ("normal", "zeros") if a.integer else _FLOATS
    # What follows an exact sum in a text need not be exact.
    exact = ("exact",) if not c.integer and "u8" not in (gemm.a, gemm.b) and not gemm.epilogue else ()
    return (*usual, *exact, *(EXTREMES if a.integer or b.integer else ()))


def largest_gain(gemm: Gemm) -> float:
    """The largest factor of a result on the inputs of probes with tiny numbers."""
    return _LARGEST_FACTOR ** (2 if gemm.blocks else gemm.scales != "none")


def inputs(gemm: Gemm, seed: int, probe: str) -> dict[str, Array]:
    if probe not in (names := probes(gemm)):
        raise BadInput(f"gemm: unknown probe {probe!r}", allowed="one of " + ", ".join(names))
    if probe == "exact":
        return _exact(gemm, seed)
    import numpy as np

    signature, sizes = gemm.signature(), gemm.sizes()
    drawn_inputs = {
        tensor.name: drawn(tensor, signature[tensor.name], sizes, seed, probe)
        if tensor.dtype.integer
        else _fill(tensor, seed, probe, _size(gemm, tensor, probe))
        for tensor in gemm.tensors()
        if tensor.role != OUTPUT
    }
    for name in ("scale_a", "scale_b") if gemm.blocks else ():
        rng, shape = np.random.default_rng([seed, zlib.crc32(name.encode())]), drawn_inputs[name].shape
        drawn_inputs[name] = rng.uniform(*_BLOCK_FACTORS, shape).astype(np.float32)
    if probe == "special":
        return _with_special_numbers(gemm, drawn_inputs, seed)
    return _with_a_tiny_row(gemm, drawn_inputs) if probe == "denormal" else drawn_inputs


def ranges(gemm: Gemm) -> dict[str, tuple[int, int]]:
    """Ranges of integers for which sums cannot overflow: the result of an overflow is undefined.

    So i8 has its full range up to K = 131,071, and u8 up to K = 33,025. Bias and C each get a quarter of the range.
    """
    a, b, c, acc = gemm.dtypes
    exact = [of.whole[1] if of.integer else int(2.0 / of.epsilon) for of in (c, acc)]
    if not (a.integer and b.integer and (c.integer or acc.integer)):
        return {}
    limit = int(min(exact) / max(1.0, abs(gemm.alpha)))
    added = {"bias": gemm.bias, "C": gemm.beta != 0.0}
    factor = largest_factor(gemm.k, limit // 2 if any(added.values()) else limit)
    sizes = {"A": (a, factor), "B": (b, factor)}
    if c.integer:
        quarter = int(min(exact) / (4.0 * max(1.0, abs(gemm.beta))))
        sizes.update({name: (c, quarter) for name, there in added.items() if there})
    every = {name: integer_range(of, size) for name, (of, size) in sizes.items()}
    return {name: range_of for name, range_of in every.items() if range_of is not None}


def _size(gemm: Gemm, tensor: Tensor, probe: str) -> float:
    """The magnitude of inputs. The narrowest format decides for all; otherwise a wider bias would hide the product.

    Factors keep magnitude 1: the tolerance is that of the product.
    """
    if tensor.name.startswith("scale") or (gemm.epilogue and tensor.name not in ("A", "B", "B2")):
        return 1.0
    if gemm.epilogue and probe == "large":
        return _LARGE_BEFORE  # functions and products of large numbers would be infinite
    large = min(_LARGE.get(name, 2.0**40) for name in (gemm.a, gemm.b, gemm.c))
    return {"large": large, "zeros": 0.0}.get(probe, 1.0)


def _fill(tensor: Tensor, seed: int, probe: str, size: float) -> Array:
    import numpy as np

    if size == 0.0:
        return np.zeros(tensor.shape, tensor.dtype.numpy())  # zero has the same bits in all formats
    key = seed, zlib.crc32(tensor.name.encode())
    return filling.normal(tensor.shape, tensor.dtype, key, size)


def _with_special_numbers(gemm: Gemm, drawn_inputs: dict[str, Array], seed: int) -> dict[str, Array]:
    """NaN and infinities in A and B. The second product of a pair has NaN alone: an infinity times what an activation
    leaves of a negative sum is infinite or NaN, depending on whether that little is rounded to zero."""
    import numpy as np

    a, b, _, _ = gemm.dtypes
    places: list[tuple[str, Array, DType, tuple[float, ...]]] = [("A", drawn_inputs["A"], a, (nan, inf, -inf))]
    if gemm.pair == "joined":
        first, second = np.split(drawn_inputs["B"], 2, -1 if gemm.layout[1] == "n" else -2)
        places += [("B", first, b, (nan, inf, -inf)), ("B2", second, b, (nan,))]
    else:
        places.append(("B", drawn_inputs["B"], b, (nan, inf, -inf)))
        places += [("B2", drawn_inputs["B2"], b, (nan,))] if gemm.pair == "two" else []
    for name, values, of, numbers in places:
        rng = np.random.default_rng([seed, zlib.crc32(name.encode()), zlib.crc32(b"special")])
        special = narrow(np.array(_SPECIAL.get(of.name, numbers)), of)
        at = rng.choice(values.size, size=min(len(special), values.size), replace=False)
        values.flat[at] = special[: len(at)]
    return drawn_inputs


def _with_a_tiny_row(gemm: Gemm, drawn_inputs: dict[str, Array]) -> dict[str, Array]:
    """The last row of A, and with it that of C, is tiny.

    Only one: CPUs take hundreds of cycles for each denormal number, and a whole GEMM of them would look like a kernel
    that hangs. The other rows are equal, which makes the reference cheap.
    """
    import numpy as np

    of = gemm.dtypes[0]
    rows = drawn_inputs["A"] if gemm.layout[0] == "n" else np.swapaxes(drawn_inputs["A"], -1, -2)
    rows[..., :-1, :] = rows[..., :1, :]
    rows[..., -1, :] = narrow(widen(rows[..., -1, :], of) * TINY[gemm.a], of)
    for name in set() if gemm.epilogue else {"scale", "scale_a", "scale_b"} & {*drawn_inputs}:
        drawn_inputs[name] = np.resize(np.array(_POWERS, np.float32), drawn_inputs[name].shape)
    return drawn_inputs


def _exact(gemm: Gemm, seed: int) -> dict[str, Array]:
    """All products are 1 or -1, before factors, and no result is large: see `cancelling`.

    Bias and C are zero. An activation may hide negative results: before one, products that do not cancel make the
    result positive.
    """
    import numpy as np

    rng = np.random.default_rng([seed, zlib.crc32(b"exact")])
    a, b, c, acc = gemm.dtypes
    most = int(1.0 / (4.0 * max(c.epsilon, acc.epsilon)))
    pairs = cancelling(rng, gemm.k, most if gemm.activation == "none" else min(most, _MOST_ACTIVATED))
    left = rng.integers(2, size=(_EXACT_ROWS, gemm.k), dtype=bool)  # whether a number is -1
    right = rng.integers(2, size=(gemm.batch, gemm.k, gemm.n), dtype=bool)
    left[:, pairs.second] = left[:, pairs.first]
    right[:, pairs.second] = ~right[:, pairs.first]
    if gemm.activation != "none":
        left[:, pairs.free] = left[0, pairs.free]
        right[:, pairs.free] = (left[0, pairs.free] ^ (gemm.alpha < 0.0))[:, None]
    rows = left[rng.integers(_EXACT_ROWS, size=(gemm.batch, gemm.m))]
    drawn_inputs = {}
    for tensor in gemm.tensors():
        if tensor.name in ("A", "B"):
            negative, of, letter = (rows, a, gemm.layout[0]) if tensor.name == "A" else (right, b, gemm.layout[1])
            laid = negative if letter == "n" else np.swapaxes(negative, -1, -2)
            drawn_inputs[tensor.name] = signs(laid, of).reshape(tensor.shape)
        elif tensor.name in ("scale_a", "scale_b"):  # the same along K: products cancel before them
            one = rng.choice(np.array(_POWERS, np.float32), (*tensor.shape[:-1], 1))
            drawn_inputs[tensor.name] = np.repeat(one, tensor.shape[-1], -1)
        elif tensor.name == "scale":
            drawn_inputs[tensor.name] = rng.choice(np.array(_POWERS, np.float32), tensor.shape)
        elif tensor.role != OUTPUT:
            drawn_inputs[tensor.name] = np.zeros(tensor.shape, tensor.dtype.numpy())
    return drawn_inputs
