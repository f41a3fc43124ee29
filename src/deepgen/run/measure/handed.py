"""Inputs and reference results: generated, cached on disk, or passed as files.

A worker, a bundle and a node of a cluster run kernels, but never a user's Python: they get arrays if only the tuner's
process has an operator's code. References are computed once, even across worker restarts.
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from deepgen.operators import Answer, Array, Operator, Recorded, is_built_in, record
from deepgen.operators.base import strictly
from deepgen.operators.filling import DENORMALS
from deepgen.operators.signature import INPUT, OUTPUT
from deepgen.run.measure.base import WAYS
from deepgen.run.measure.references import BYTES_A_SECOND, Compiled, content_key, reference
from deepgen.vocabulary import Artifact, BadInput, DeepgenError, digest
from deepgen.vocabulary.dtypes import dtype, least, widen
from deepgen.vocabulary.folders import link_or_copy
from deepgen.vocabulary.parallel import side_by_side

_INPUT, _WANT, _SCALE = "input.", "want.", "scale."
_LINE = 64  # bytes; arrays begin at multiples of this
_SLOW_SECONDS = 1.0  # least duration of a user's reference to be cached for other runs
_ENDS = (0, -1)
_ENOUGH = 2.0**-20  # a relative tolerance 16 times the error of rounding an answer to f32


def needed(operator: Operator) -> bool:
    """Whether this process must pass the operator's arrays to others, which lack its code."""
    return not is_built_in(operator) and not isinstance(operator, Recorded)


def drawn_as(probe: str) -> str:
    """The probe whose inputs are used."""
    return "normal" if probe in WAYS else probe


def pair(seed: int, probe: str) -> tuple[int, ...]:
    """The seeds of the inputs that alternate at the same addresses. Only the usual probe's inputs alternate."""
    first = seed - seed % 2
    return (first, first + 1) if probe == "normal" else (seed,)


def arrays(
    operator: Operator, seed: int, probe: str, folder: Path, compiled: Compiled | None = None
) -> list[tuple[dict[str, Array], Callable[[], Mapping[str, Answer]]]]:
    """The sets of inputs that alternate, each with its reference answers.

    They are read if they were passed as files, and computed otherwise.
    """
    if probe == DENORMALS:
        drawn_sets = _arrays(operator, seed, probe, folder, compiled)
        return [(inputs, partial(_strictly, operator, answers)) for inputs, answers in drawn_sets]
    return _arrays(operator, seed, probe, folder, compiled)


def _strictly(operator: Operator, answers: Callable[[], Mapping[str, Answer]]) -> Mapping[str, Answer]:
    signature = operator.signature()
    return {n: strictly(a, dtype(signature.dtype_of(signature[n]))) for n, a in answers().items()}


def _arrays(
    operator: Operator, seed: int, probe: str, folder: Path, compiled: Compiled | None
) -> list[tuple[dict[str, Array], Callable[[], Mapping[str, Answer]]]]:
    seeds = pair(seed, probe)
    if isinstance(operator, Recorded):
        handed_over = [read(operator, one, probe, folder) for one in seeds]
        return [(inputs, partial(dict, answers)) for inputs, answers in handed_over]
    drawn = [operator.inputs(one, probe) for one in seeds]
    for other in drawn[1:]:
        _share_ends(drawn[0], other)
    return [
        (inputs, partial(reference, operator, one, probe, inputs, folder, compiled=compiled))
        for one, inputs in zip(seeds, drawn, strict=True)
    ]


def mixed(
    operator: Operator,
    seed: int,
    probe: str,
    folder: Path,
    constant: frozenset[str],
    sets: Sequence[Mapping[str, Array]],
    compiled: Compiled | None = None,
) -> tuple[dict[str, Array], Callable[[], Mapping[str, Answer]]]:
    """The second of two alternating sets, with the constant inputs taken from the first."""
    inputs = {**sets[1], **{n: sets[0][n] for n in constant}}
    one = pair(seed, probe)[1]
    return inputs, partial(reference, operator, one, probe, inputs, folder, constant, compiled)


def _share_ends(first: Mapping[str, Array], other: Mapping[str, Array]) -> None:
    """Give one set the first and last elements of the other, to catch kernels that compare only those."""
    for name, array in other.items():
        if array.size > len(_ENDS):
            for end in _ENDS:
                array.flat[end] = first[name].flat[end]


def name(operator: Operator, seed: int, probe: str) -> str:
    """The file name for this set of inputs and the one that it alternates with."""
    return f"arrays-{digest(record(operator).to_json(), 12)}-{pair(seed, probe)[0]}-{probe}.arrays"


def packed(operator: Operator, seed: int, probe: str) -> bytes:
    """The inputs of this seed and probe and the set they alternate with, with their answers, as a file's bytes."""
    buffer = io.BytesIO()
    _pack(operator, seed, probe, buffer)
    return buffer.getvalue()


def _pack(operator: Operator, seed: int, probe: str, file: BinaryIO) -> None:
    """Write names, then arrays, aligned so that they can be memory-mapped. Checksums would take as long as a reference.

    Both sets are computed in parallel: with large arrays, references take longer than anything else.
    """
    seeds = pair(seed, probe)
    computed = side_by_side([partial(_computed, operator, one, probe) for one in seeds])
    out = {f"{one}.{n}": array for one, arrays in zip(seeds, computed, strict=True) for n, array in arrays.items()}
    for array in (np.array([*out]), *out.values()):
        np.save(file, array, allow_pickle=False)
        file.write(bytes(-file.tell() % _LINE))


def _unpacked(path: Path, wanted: str) -> dict[str, Array]:
    """The memory-mapped arrays of a file whose names have this prefix. Raises whatever damaged files cause."""
    with path.open("rb") as file:
        names = np.load(file, allow_pickle=False).tolist()
        arrays = [(n[len(wanted) :], _mapped(file, wanted=n.startswith(wanted))) for n in names]
    return {n: array for n, array in arrays if array is not None}


def _mapped(file: BinaryIO, *, wanted: bool) -> Array | None:
    """The next array of a file; None, after skipping it, unless wanted."""
    file.seek(-file.tell() % _LINE, os.SEEK_CUR)
    np.lib.format.read_magic(file)
    shape, fortran, kind = np.lib.format.read_array_header_1_0(file)
    start, count = file.tell(), int(np.prod(shape, dtype=np.int64))
    array = None
    if wanted and not kind.hasobject:
        laid = shape[::-1] if fortran else shape
        array = np.asarray(np.memmap(file, kind, "r", start, laid)) if count else np.empty(laid, kind)
        array = array.T if fortran else array
    file.seek(start + count * kind.itemsize)
    return array


def _computed(operator: Operator, seed: int, probe: str) -> dict[str, Array]:
    """One set in the form of a file's arrays."""
    try:
        inputs = operator.inputs(seed, probe)
        with np.errstate(all="ignore"):
            copies = {n: array.copy() for n, array in inputs.items()}
            answers = operator.reference(copies) if operator.judge() is None else {}
    except DeepgenError:
        raise
    except Exception as error:  # a user's code may raise anything
        what = f"{operator.describe()}: its inputs or its reference raised {type(error).__name__}: {error}"
        raise DeepgenError(what) from error
    _check(operator, inputs, answers)
    out: dict[str, Array] = {_INPUT + n: array for n, array in inputs.items()}
    for n, answer in answers.items():
        relative = operator.tolerance_on(n, probe).relative
        values = least(answer.values) if answer.values.dtype.kind == "i" or relative >= _ENOUGH else answer.values
        out |= {_WANT + n: values, _SCALE + n: least(answer.scale)}
    return out


def _check(operator: Operator, inputs: Mapping[str, Array], answers: Mapping[str, Answer]) -> None:
    """Check the inputs and answers of a user's operator; raises BadInput naming the first error."""
    for tensor in operator.tensors():
        if tensor.role != OUTPUT:
            array = inputs.get(tensor.name)
            if array is None or array.shape != tensor.shape or array.dtype != tensor.dtype.numpy():
                state = "is missing" if array is None else f"is {array.dtype} {array.shape}"
                raise BadInput(
                    f"{operator.describe()}: its input {tensor.name} {state}",
                    allowed=f"{tensor.dtype.numpy()} {tensor.shape}",
                )
        if tensor.role != INPUT and operator.judge() is None:
            answer = answers.get(tensor.name)
            if not isinstance(answer, Answer) or answer.values.shape != tensor.shape:
                state = f"of shape {answer.values.shape}" if isinstance(answer, Answer) else "missing"
                raise BadInput(
                    f"{operator.describe()}: its reference of {tensor.name} is {state}",
                    allowed=f"an Answer of shape {tensor.shape}",
                )


def hand_over(operator: Operator, seed: int, probe: str, folder: Path) -> None:
    """Write the file where workers look for it, unless it exists."""
    path = folder / name(operator, seed, probe)
    if not path.exists():
        fresh = path.with_suffix(".new")
        with fresh.open("wb") as file:
            _pack(operator, seed, probe, file)
        fresh.replace(path)


class Handing:
    """Provides what a user's operator computes, some of it ahead of time in a thread. Each set is computed once and one
    at a time, as a user's code need not be thread-safe; sets that a caller waits for come first."""

    def __init__(self, folder: Path, kept: Kept | None = None) -> None:
        """`kept`: a cache, for other runs, of sets that took long."""
        self._folder, self._kept = folder, kept
        self._free = threading.Condition()
        self._busy = False
        self._waiting = 0  # callers that wait for a set
        self._began: float | None = None  # when the first set was begun
        self._took: float | None = None  # seconds for the first set

    def ahead(self, operator: Operator, wanted: Sequence[tuple[int, str]]) -> None:
        """Start computing these sets, in this order. Errors appear when one of the sets is requested."""

        def work() -> None:
            with suppress(Exception):
                for seed, probe in wanted:
                    with self._free:
                        self._free.wait_for(lambda: not self._busy and not self._waiting)
                        self._busy = True
                    self._hand_over(operator, seed, probe)

        threading.Thread(target=work, daemon=True).start()

    def now(self, operator: Operator, seed: int, probe: str) -> None:
        if (self._folder / name(operator, seed, probe)).exists():
            return  # even if another set is being computed
        with self._free:
            self._waiting += 1
            self._free.wait_for(lambda: not self._busy)
            self._waiting -= 1
            self._busy = True
        self._hand_over(operator, seed, probe)

    def _hand_over(self, operator: Operator, seed: int, probe: str) -> None:
        started = time.monotonic()
        self._began = self._began or started
        path = self._folder / name(operator, seed, probe)
        try:
            kept, key = self._kept, ""
            with suppress(Exception):  # the cache is optional
                key = content_key(operator, pair(seed, probe)[0], probe) if kept is not None else ""
                if kept is not None and not path.exists() and (earlier := kept.get(key)) is not None:
                    link_or_copy(Path(earlier.binary), fresh := path.with_suffix(".kept"))
                    fresh.replace(path)  # atomically
            hand_over(operator, seed, probe, self._folder)
            seconds = time.monotonic() - started
            self._took = self._took or seconds
            if kept is not None and key and seconds > max(_SLOW_SECONDS, path.stat().st_size / BYTES_A_SECOND):
                threading.Thread(target=kept.put_file, args=(key, path, seconds), daemon=True).start()
        finally:
            with self._free:
                self._busy = False
                self._free.notify_all()

    def first_seconds(self) -> tuple[float, bool]:
        """Seconds that the first set and its alternate took, or have taken so far; and whether they are done."""
        now = time.monotonic()
        return (now - (self._began or now) if self._took is None else self._took), self._took is not None


@lru_cache(maxsize=8)  # shared by all measurements in one folder
def handing(folder: Path, kept: Kept | None = None) -> Handing:
    return Handing(folder, kept)


class Kept(Protocol):
    """A cache of files, by the hash of their content."""

    def get(self, key: str) -> Artifact | None: ...

    def put_file(self, key: str, file: Path, seconds: float) -> None: ...


def read(operator: Operator, seed: int, probe: str, folder: Path) -> tuple[dict[str, Array], Mapping[str, Answer]]:
    """The inputs and answers that were passed as a file."""
    try:
        stored = _unpacked(folder / name(operator, seed, probe), f"{seed}.")
    except (OSError, EOFError, ValueError, OverflowError, TypeError, AttributeError) as error:
        raise DeepgenError(f"the inputs of seed {seed} ({probe}) were not passed on completely: {error}") from error
    inputs = {n[len(_INPUT) :]: array for n, array in stored.items() if n.startswith(_INPUT)}
    outputs = [n[len(_WANT) :] for n in stored if n.startswith(_WANT)]
    return inputs, {n: Answer(_wide(stored[_WANT + n]), _wide(stored[_SCALE + n])) for n in outputs}


def _wide(values: Array) -> Array:
    return values.astype(np.int64) if values.dtype.kind == "i" else widen(values, dtype("f64"))


def sets(operator: Operator, seed: int, other_seeds: int) -> Iterator[tuple[int, str]]:
    """The input sets that finals verify on besides the timed one, in the order of finals."""
    unlike = [probe for probe in operator.probes() if probe != "normal"]
    yield from ((seed, probe) for probe in unlike[:1])  # finds the most errors
    yield from ((seed + i, "normal") for i in range(1, other_seeds + 1))
    yield from ((seed, probe) for probe in unlike[1:])
