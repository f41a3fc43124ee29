"""Random numbers of large tensors: drawn in chunks by all threads, each chunk from a seed of its own.

So they are the same however many threads there are. Up to one chunk there is one stream.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from deepgen.vocabulary.dtypes import DType, narrow
from deepgen.vocabulary.parallel import in_parts, usual_threads

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

CHUNK = 1 << 20
_POOL = 1 << 16  # normal numbers, among which those of narrow formats are drawn: by 16 bits each instead of a sample


def normal(shape: tuple[int, ...], of: DType, key: tuple[int, ...], size: float = 1.0) -> npt.NDArray[Any]:
    """Numbers of a normal distribution in the storage of a format, from a seed."""
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
    """An array whose chunks are each filled by a generator of their own."""
    import numpy as np

    return _in_chunks(shape, np.dtype(kind), key, lambda seeds, out: fill(np.random.default_rng(seeds), out))


def is_large(shape: tuple[int, ...]) -> bool:
    return prod(shape) > CHUNK


def wide(of: DType) -> Any:
    """The format that numbers are drawn in."""
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
