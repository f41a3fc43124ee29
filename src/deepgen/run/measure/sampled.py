"""Whether a compiled reference is to be trusted: some of its elements are compared with numpy's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from deepgen.operators import Answer, Array, Operator, Tensor, Tolerance
from deepgen.operators.compare import compare, floor, scale_format
from deepgen.vocabulary.dtypes import dtype

SAMPLES = 1000
_OPERATIONS = 1 << 25  # that numpy may take for them: where one element takes a million, there are fewer
_SHARE = 0.01  # of the operator's tolerance that a reference may be off by; all of it where f64 is judged by f64
_SCALE_ERROR = Tolerance(1e-3, 1e-3)


def doubt(
    operator: Operator,
    output: Tensor,
    inputs: Mapping[str, Array],
    probe: str,
    some: Callable[[str, Array], Array],
    *,
    scaled: bool,
) -> str | None:
    """Where the kernel and numpy differ, in words: at the corners or at a thousand other elements.

    `some`: elements of `want_NAME` and `scale_NAME` at flat places.
    """
    size = max(1, int(np.prod(output.shape, dtype=np.int64)))
    places = sampled(output.shape, operator.reference_rows, _OPERATIONS * size // max(1, operator.flops()))
    right, tolerance = operator.reference_at(inputs, output.name, places), operator.tolerance(output.name, probe)
    share = 1.0 if output.dtype.name == "f64" else _SHARE
    least = share * floor(output.dtype, tolerance)
    within = Tolerance(share * tolerance.absolute, share * tolerance.relative, least)
    wide = dtype("i64" if output.dtype.integer else "f64")
    judged = {"value": (f"want_{output.name}", wide, right, within)}
    if scaled:
        sizes = np.broadcast_to(right.scale, places.shape).astype(np.float64)
        judged["scale"] = f"scale_{output.name}", scale_format(output.dtype), Answer(sizes, sizes), _SCALE_ERROR
    for what, (name, of, answer, allowed) in judged.items():
        result = compare(some(name, places), answer, of, allowed)
        if result.first is not None:
            index = ", ".join(str(int(i)) for i in np.unravel_index(places[result.first], output.shape))
            return f"the compiled reference has another {what} at {output.name}[{index}] than numpy"
    return None


def sampled(shape: tuple[int, ...], rows: int | None = None, most: int = SAMPLES) -> Array:
    """Flat places of elements: all of a small tensor, else the corners of each dimension and random others.

    `rows`: of how many rows along the last dimension they are, corners apart; `most`: how many there are about at most.
    """
    size, count = int(np.prod(shape, dtype=np.int64)), max(1, min(SAMPLES, most))
    if size <= count:
        return np.arange(size)
    ends = np.meshgrid(*((0, length - 1) for length in shape), indexing="ij")
    corners = np.ravel_multi_index([end.reshape(-1) for end in ends], shape)
    rng, last = np.random.default_rng(size), shape[-1]
    if rows is None or size // last <= rows:
        return np.unique(np.concatenate([corners, rng.integers(0, size, count)]))
    kept = rng.integers(0, size // last, rows)
    others = kept[:, None] * last + rng.integers(0, last, (rows, -(-count // rows)))
    return np.unique(np.concatenate([corners, others.reshape(-1)]))
