"""Input data: ordinary numbers, and the probes that every operator has.

Floats of probes also stay within a declared range; only those without one are special or of all magnitudes. Random
numbers of large tensors are drawn in chunks by several threads, each chunk from its own seed: so they do not depend on
the number of threads. Tensors of at most one chunk use one stream.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import inf, nan, prod
from typing import TYPE_CHECKING, Any, TypeAlias

from deepgen.operators.signature import OUTPUT, Param, Signature, Tensor
from deepgen.operators.signature import number as size_number
from deepgen.vocabulary.dtypes import DType, narrow, widen
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.parallel import in_parts, usual_threads

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


Array: TypeAlias = "npt.NDArray[Any]"
# Probes of integers: all at one end of their range, or alternating between both ends.
EXTREMES = ("minimum", "maximum", "alternating")
WIDE = "wide"  # floats of all magnitudes
NAN, INF, DENORMALS = "nan", "inf", "denormals"
# Exponents of two, for formats whose range is smaller than needed for f32's: sums and products of a few must not
# overflow.
_MAGNITUDES = {"f16": (-14, 6), "f8e4m3": (-6, 3), "f8e5m2": (-14, 6)}
_PERIOD = 61  # elements between special numbers of the same kind: they reach all positions of a tile
_WITHOUT_INF = ("f8e4m3",)


def probes(signature: Signature, tensors: Iterable[Tensor]) -> tuple[str, ...]:
    """The kinds of input that every kernel must be correct on.

    Floats of all magnitudes are only for operators that know the error bound of each element.
    """
    integers = any(t.dtype.integer for t in tensors if t.role != OUTPUT)
    return ("normal", "zeros", *(EXTREMES if integers else ()))


def float_probes(signature: Signature, tensors: Iterable[Tensor]) -> tuple[str, ...]:
    floats = free(signature, [t for t in tensors if t.role != OUTPUT])
    if not floats:
        return ()
    return (NAN, DENORMALS) if any(t.dtype.name in _WITHOUT_INF for t in floats) else (NAN, INF, DENORMALS)


def drawn_as(probe: str) -> str:
    """The probe among whose numbers the special ones are placed."""
    return "normal" if probe in (NAN, INF, DENORMALS) else probe


def special(arrays: dict[str, Array], signature: Signature, tensors: Sequence[Tensor], probe: str) -> dict[str, Array]:
    """Ordinary inputs with special numbers in some positions, if the probe has any. Each tensor has its own positions;
    for NaN, neighbouring tensors also share some: zero in one, and infinity in the other."""
    import numpy as np

    from deepgen.operators.products import TINY

    for number, tensor in enumerate(free(signature, tensors) if drawn_as(probe) != probe else ()):
        flat, of = arrays[tensor.name].reshape(-1), tensor.dtype
        period = min(_PERIOD, max(1, flat.size))
        odd = number % 2 == 1
        values: dict[int, float] = {}
        if probe == NAN:
            values = {2 * number: nan}
            if of.name not in _WITHOUT_INF:
                values |= {31: inf if odd else 0.0, 37: 0.0 if odd else inf}
        elif probe == INF:
            values = {4 * number: inf, 4 * number + 2: -inf}
        for place, value in values.items():
            flat[place % period :: period] = narrow(np.array([value], wide(of)), of)[0]
        if probe == DENORMALS:
            some = slice(2 * number % period, None, period)
            flat[some] = narrow(widen(flat[some], of) * TINY[of.name], of)
    return arrays


def free(signature: Signature, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Float tensors that may hold any number."""
    return [t for t in tensors if not t.dtype.integer and signature[t.name].range is None]


def drawn(tensor: Tensor, param: Param, sizes: Mapping[str, int], seed: int, probe: str) -> Array:
    """One input from its own seed."""
    import numpy as np

    if probe not in (names := ("normal", "zeros", WIDE, *EXTREMES)):
        raise BadInput(f"{tensor.name}: unknown probe {probe!r}", allowed="one of " + ", ".join(names))
    key, of = (seed, zlib.crc32(tensor.name.encode())), tensor.dtype
    low, high = bounds(param, of, sizes)
    if of.integer:
        if probe in ("normal", WIDE):
            return _whole(tensor, int(low), int(high), key)
        zero = min(max(0, int(low)), int(high))
        ends = {"minimum": (low, low), "maximum": (high, high), "alternating": (low, high)}.get(probe, (zero, zero))
        even, odd = narrow(np.array(ends, np.int64), of)
        stored: Array = np.where(_odd_places(tensor.shape), odd, even)
        return stored
    kind = wide(of)
    if probe == "zeros":
        return np.full(tensor.shape, narrow(np.array([min(max(0.0, low), high)], kind), of)[0])
    if param.range is None:
        return _wide(tensor, key) if probe == WIDE else normal(tensor.shape, of, key)
    if not is_large(tensor.shape):
        return narrow(low + (high - low) * np.random.default_rng(list(key)).random(tensor.shape, dtype=kind), of)
    drawn = filled(tensor.shape, kind, key, lambda rng, out: rng.random(out.size, dtype=kind, out=out))
    return narrow(low + (high - low) * drawn, of)


def _wide(tensor: Tensor, key: tuple[int, int]) -> Array:
    """Numbers evenly distributed over all magnitudes, of either sign."""
    import numpy as np

    of, kind = tensor.dtype, wide(tensor.dtype)
    low, high = _MAGNITUDES.get(of.name, (-40, 40))

    def fill(rng: np.random.Generator, out: Array) -> None:
        drawn = 2.0 * rng.random(out.size)
        out[:] = np.exp2(low + (high - low) * (drawn % 1.0)) * np.where(drawn < 1.0, 1.0, -1.0)

    return narrow(filled(tensor.shape, kind, key, fill), of)


def _whole(tensor: Tensor, low: int, high: int, key: tuple[int, int]) -> Array:
    """Integers uniformly distributed over a range."""
    import numpy as np

    of = tensor.dtype
    if not is_large(tensor.shape):
        rng = np.random.default_rng(list(key))
        return narrow(rng.integers(low, high, tensor.shape, dtype=np.int64, endpoint=True), of)

    def fill(rng: np.random.Generator, out: Array) -> None:
        out[:] = rng.integers(low, high, out.size, dtype=out.dtype.type, endpoint=True)

    return filled(tensor.shape, of.numpy(), key, fill)


def _odd_places(shape: tuple[int, ...]) -> Array:
    """Where the indices add up to an odd number: a chessboard, whichever dimension is contiguous."""
    import numpy as np

    odd: Array = np.zeros(shape, bool)
    for axis, length in enumerate(shape):
        odd ^= (np.arange(length) % 2 == 1).reshape(-1, *(1,) * (len(shape) - axis - 1))
    return odd


def bounds(param: Param, of: DType, sizes: Mapping[str, int]) -> tuple[float, float]:
    """The least and greatest value that an input may hold."""
    if param.range is not None:
        low, high = (size_number(v, sizes) if isinstance(v, str) else v for v in param.range)
        return low, high
    return of.whole if of.integer else (-inf, inf)


CHUNK = 1 << 20
_POOL = 1 << 16  # normal numbers, among which narrow formats pick by 16 random bits instead of sampling


def normal(shape: tuple[int, ...], of: DType, key: tuple[int, ...], size: float = 1.0) -> npt.NDArray[Any]:
    """Normally distributed numbers in a format's storage dtype, from a seed."""
    import numpy as np

    if is_large(shape) and of.bits <= 16:
        pool = _pool(of, size)

        def pick(seeds: Any, out: npt.NDArray[Any]) -> None:
            which = np.random.SFC64(seeds).random_raw(-(-out.size // 4)).view(np.uint16)
            np.take(pool, which[: out.size], out=out, mode="clip")

        return _in_chunks(shape, of.numpy(), key, pick)
    return narrow(normal_floats(shape, wide(of), key) * wide(of)(size), of)


def normal_floats(shape: tuple[int, ...], kind: Any, key: tuple[int, ...]) -> npt.NDArray[Any]:
    """The same in f32 or f64."""
    import numpy as np

    if not is_large(shape):
        return np.random.default_rng(list(key)).standard_normal(shape, dtype=kind)
    return filled(shape, kind, key, lambda rng, out: rng.standard_normal(out.size, dtype=kind, out=out))


def filled(
    shape: tuple[int, ...], kind: Any, key: tuple[int, ...], fill: Callable[[np.random.Generator, Any], object]
) -> npt.NDArray[Any]:
    """An array whose chunks are each filled by a separate generator."""
    import numpy as np

    return _in_chunks(shape, np.dtype(kind), key, lambda seeds, out: fill(np.random.default_rng(seeds), out))


def is_large(shape: tuple[int, ...]) -> bool:
    return prod(shape) > CHUNK


def wide(of: DType) -> Any:
    """The format in which numbers are drawn."""
    import numpy as np

    return np.float64 if of.name == "f64" else np.float32


def _in_chunks(
    shape: tuple[int, ...], kind: np.dtype[Any], key: tuple[int, ...], fill: Callable[[Any, Any], object]
) -> npt.NDArray[Any]:
    import numpy as np

    out = np.empty(prod(shape), kind)

    def some(first: int, last: int) -> None:
        for chunk in range(first, last):
            fill(np.random.SeedSequence([*key, chunk]), out[chunk * CHUNK : (chunk + 1) * CHUNK])

    in_parts(-(-out.size // CHUNK), usual_threads(), some)
    return out.reshape(shape)


@lru_cache(maxsize=8)
def _pool(of: DType, size: float) -> npt.NDArray[Any]:
    import numpy as np

    return narrow(np.random.default_rng(_POOL).standard_normal(_POOL, dtype=np.float32) * np.float32(size), of)
