"""References: numpy's are cached, and some of their elements verify the compiled ones."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path

import numpy as np

from deepgen import operators
from deepgen.operators import Answer, Array, Operator, Tensor, Tolerance, record
from deepgen.operators.compare import compare, floor, scale_format
from deepgen.vocabulary import Json, digest
from deepgen.vocabulary.dtypes import distinct, dtype

Compiled = Callable[[Operator, Mapping[str, Array], str], "dict[str, Answer] | None"]
SAMPLES = 1000
_OPERATIONS = 1 << 25  # limit for numpy's elements: if one element takes a million operations, fewer are checked
_SHARE = 0.01  # allowed error of a reference as a share of the operator's tolerance; 1 if f64 is compared in f64
_SCALE_ERROR = Tolerance(1e-3, 1e-3)
_DIGESTS = "deepgen.vocabulary.code_digest"  # imported by name: bundles do not contain it, as they have no user's code
_VERSION = 4
_SMALL, BYTES_A_SECOND = 64 << 20, 2e8  # larger answers that are computed faster than this are not cached
_SCALE_SUFFIX = ".scale"


def doubt(
    operator: Operator,
    output: Tensor,
    inputs: Mapping[str, Array],
    probe: str,
    some: Callable[[str, Array], Array],
    *,
    scaled: bool,
) -> str | None:
    """A difference between the kernel's and numpy's reference, in words: at the corners or at a thousand other
    elements.

    `some`: returns elements of `want_NAME` and `scale_NAME` at flat indices.
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
            return f"the compiled reference has a different {what} at {output.name}[{index}] than numpy"
    return None


def sampled(shape: tuple[int, ...], rows: int | None = None, most: int = SAMPLES) -> Array:
    """Flat indices of elements: all of a small tensor, else the corners of each dimension and random others.

    `rows`: the number of rows along the last dimension to take them from, apart from the corners; `most`: roughly the
    largest number of elements.
    """
    size, count = int(np.prod(shape, dtype=np.int64)), max(1, min(SAMPLES, most))
    if size <= count:
        return np.arange(size)
    ends = np.meshgrid(*((0, length - 1) for length in shape), indexing="ij")
    corners = np.ravel_multi_index([end.reshape(-1) for end in ends], shape)
    rng, last = np.random.default_rng(size), shape[-1]
    if rows is None or size // last <= rows:
        return distinct(np.concatenate([corners, rng.integers(0, size, count)]))
    kept = rng.integers(0, size // last, rows)
    others = kept[:, None] * last + rng.integers(0, last, (rows, -(-count // rows)))
    return distinct(np.concatenate([corners, others.reshape(-1)]))


def reference(
    operator: Operator,
    seed: int,
    probe: str,
    inputs: Mapping[str, Array],
    folder: Path,
    constant: Collection[str] = (),
    compiled: Compiled | None = None,
) -> Mapping[str, Answer]:
    """The operator's exact result on its inputs of that seed and probe; read-only, so that no kernel can spoil it.

    `constant`: the inputs taken from the first seed of the pair. `compiled` computes the result if it can, which is
    faster than reading it.
    """
    if compiled is not None and (computed := compiled(operator, inputs, probe)) is not None:
        return _read_only(computed)
    key = digest([_VERSION, _code(type(operator)), operator.to_json(), seed, probe, *sorted(constant)], 32)
    kept = _read(folder, key)
    if kept is not None:
        return kept
    started = time.monotonic()
    answers = operator.reference(inputs)
    size = sum(answer.values.nbytes + answer.scale.nbytes for answer in answers.values())
    if size <= _SMALL or time.monotonic() - started > size / BYTES_A_SECOND:
        with suppress(OSError):  # on a full disk or in a read-only folder, it only has to be computed again
            _write(folder, key, answers)
            kept = _read(folder, key, trusted=True)
    return kept if kept is not None else _read_only(answers)


def _read_only(answers: Mapping[str, Answer]) -> Mapping[str, Answer]:
    for answer in answers.values():
        answer.values.flags.writeable = answer.scale.flags.writeable = False
    return answers


def _code(operator: type[Operator]) -> list[Json]:
    """Digests of the files that define the operator's class and its base classes, and of deepgen's own files beside
    them: a reference computed in another way, or on other inputs, is another reference."""
    classes = [cls for cls in operator.__mro__ if issubclass(cls, Operator)]
    named = (getattr(sys.modules.get(cls.__module__), "__file__", None) for cls in classes)
    files = {str(file) for file in named if file is not None}
    ours = Path(operators.__file__).parent
    own = {Path(file).parent for file in files if ours.parent in Path(file).parents}
    files.update(str(file) for folder in own for file in folder.glob("*.py"))
    files.update(map(str, ours.rglob("*.py")))
    return [_file_digest(file) for file in sorted(files)]


@lru_cache(maxsize=None)  # noqa: UP033  bundles run on Python 3.8
def _file_digest(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:  # created in memory: only its name is known
        return file


def _read(folder: Path, key: str, *, trusted: bool = False) -> dict[str, Answer] | None:
    """The cached answers, if they are intact. `trusted`: we have just written them."""
    try:
        sums = json.loads((folder / f"{key}.json").read_text())
        arrays = {}
        for name, expected in sums.items():
            array = np.load(folder / f"{key}.{name}.npy", mmap_mode="r", allow_pickle=False)
            if not trusted and _sum(array) != expected:
                return None
            arrays[str(name)] = array
        outputs = [name for name in arrays if not name.endswith(_SCALE_SUFFIX)]
        return {name: Answer(arrays[name], arrays[name + _SCALE_SUFFIX]) for name in outputs} or None
    except (OSError, EOFError, ValueError, AttributeError, KeyError):
        return None


def _write(folder: Path, key: str, answers: Mapping[str, Answer]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: answer.values for name, answer in answers.items()}
    arrays |= {name + _SCALE_SUFFIX: answer.scale for name, answer in answers.items()}
    sums: dict[str, Json] = {}
    for name, array in arrays.items():
        whole = np.ascontiguousarray(array)
        sums[name] = _sum(whole)
        fresh = folder / f"{key}.{name}.{os.getpid()}.new"
        with fresh.open("wb") as file:
            np.save(file, whole, allow_pickle=False)
        fresh.replace(folder / f"{key}.{name}.npy")
    fresh = folder / f"{key}.{os.getpid()}.new"
    fresh.write_text(json.dumps(sums))
    fresh.replace(folder / f"{key}.json")


def _sum(array: Array) -> str:
    """A checksum against damage. Half of the processors have no instructions for a cryptographic one, which then takes
    half as long as a product's reference, while the first kernel waits."""
    return f"{array.dtype.str}{array.shape}{zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)}"


def content_key(operator: Operator, first_seed: int, probe: str) -> str:
    """The key of everything that an input set depends on: a user's code and values, and our own."""
    code_digest, cls = import_module(_DIGESTS).code_digest, type(operator)
    judges = {part: code_digest(value, cls) for part, value in operator.judged_by().items()}
    drawn = [operator.to_json(), record(operator).to_json(), first_seed, probe]
    return digest([_VERSION, np.__version__, _code(cls), judges, *drawn], 64)
