"""Inputs and reference answers: drawn and computed, kept on disk, or handed over as files.

A worker, a bundle and a node of a cluster run kernels, never a user's Python: where only the tuner's process has an
operator's code, they are handed arrays. References are computed once, also for the worker that is started next.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from deepgen import operators
from deepgen.operators import Answer, Array, Operator, Recorded, is_built_in, record
from deepgen.operators.base import strictly
from deepgen.operators.filling import DENORMALS
from deepgen.operators.signature import INPUT, OUTPUT
from deepgen.run.measure.base import WAYS
from deepgen.vocabulary import BadInput, DeepgenError, Json, digest
from deepgen.vocabulary.dtypes import dtype, least, widen
from deepgen.vocabulary.parallel import side_by_side

Compiled = Callable[[Operator, Mapping[str, Array], str], "dict[str, Answer] | None"]
_INPUT, _WANT, _SCALE = "input.", "want.", "scale."
_LINE = 64  # bytes: arrays begin at such places
_ENDS = (0, -1)
_ENOUGH = 2.0**-20  # a relative tolerance that is 16 times what rounding to f32 does to an answer


def needed(operator: Operator) -> bool:
    """Whether this process must hand the operator's arrays to others: it has code that they lack."""
    return not is_built_in(operator) and not isinstance(operator, Recorded)


def drawn_as(probe: str) -> str:
    """The probe whose inputs are used."""
    return "normal" if probe in WAYS else probe


def pair(seed: int, probe: str) -> tuple[int, ...]:
    """The seeds of the inputs that alternate at the same addresses. Other probes than the usual one stay alone."""
    first = seed - seed % 2
    return (first, first + 1) if probe == "normal" else (seed,)


def arrays(
    operator: Operator, seed: int, probe: str, folder: Path, compiled: Compiled | None = None
) -> list[tuple[dict[str, Array], Callable[[], Mapping[str, Answer]]]]:
    """The sets of inputs that alternate, each with its reference answers.

    They are read where they were handed over, computed otherwise.
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
    """The second of two sets that alternate, with these inputs as they are in the first."""
    inputs = {**sets[1], **{n: sets[0][n] for n in constant}}
    one = pair(seed, probe)[1]
    return inputs, partial(reference, operator, one, probe, inputs, folder, constant, compiled)


def _share_ends(first: Mapping[str, Array], other: Mapping[str, Array]) -> None:
    """Give a set the first and last elements of another: a kernel that compares only those takes them for the same."""
    for name, array in other.items():
        if array.size > len(_ENDS):
            for end in _ENDS:
                array.flat[end] = first[name].flat[end]


def name(operator: Operator, seed: int, probe: str) -> str:
    """The file of that set of inputs, and of the one that it alternates with."""
    return f"arrays-{digest(record(operator).to_json(), 12)}-{pair(seed, probe)[0]}-{probe}.arrays"


def packed(operator: Operator, seed: int, probe: str) -> bytes:
    """The inputs of that seed and probe and those that they alternate with, with their answers, as a file's bytes."""
    buffer = io.BytesIO()
    _pack(operator, seed, probe, buffer)
    return buffer.getvalue()


def _pack(operator: Operator, seed: int, probe: str, file: BinaryIO) -> None:
    """Names, then arrays, each where a page of the file can be taken for its memory. Checksums of all would take as
    long as a reference.

    Both sets are computed at once: with large arrays, a user waits for references more than for anything else.
    """
    seeds = pair(seed, probe)
    computed = side_by_side([partial(_computed, operator, one, probe) for one in seeds])
    out = {f"{one}.{n}": array for one, arrays in zip(seeds, computed, strict=True) for n, array in arrays.items()}
    for array in (np.array([*out]), *out.values()):
        np.save(file, array, allow_pickle=False)
        file.write(bytes(-file.tell() % _LINE))


def _unpacked(path: Path, wanted: str) -> dict[str, Array]:
    """The arrays of a file whose names begin so, as its pages are read. Raises what damaged files raise."""
    with path.open("rb") as file:
        names = np.load(file, allow_pickle=False).tolist()
        arrays = [(n[len(wanted) :], _mapped(file, wanted=n.startswith(wanted))) for n in names]
    return {n: array for n, array in arrays if array is not None}


def _mapped(file: BinaryIO, *, wanted: bool) -> Array | None:
    """The next array of a file, or past it."""
    file.seek(-file.tell() % _LINE, os.SEEK_CUR)
    np.lib.format.read_magic(file)
    shape, fortran, kind = np.lib.format.read_array_header_1_0(file)
    start, count = file.tell(), int(np.prod(shape, dtype=np.int64))
    array = None
    if wanted and not kind.hasobject:
        order: Literal["C", "F"] = "F" if fortran else "C"
        array = np.asarray(np.memmap(file, kind, "r", start, shape, order)) if count else np.empty(shape, kind)
    file.seek(start + count * kind.itemsize)
    return array


def _computed(operator: Operator, seed: int, probe: str) -> dict[str, Array]:
    """One set as the arrays of a file."""
    try:
        inputs = operator.inputs(seed, probe)
        with np.errstate(all="ignore"):
            copies = {n: array.copy() for n, array in inputs.items()}
            answers = operator.reference(copies) if operator.judge() is None else {}
    except DeepgenError:
        raise
    except Exception as error:  # whatever a user's own code raises
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
    """Says by name what a user's operator got wrong."""
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
    """Put the file where a worker looks for it, unless it is there."""
    path = folder / name(operator, seed, probe)
    if not path.exists():
        fresh = path.with_suffix(".new")
        with fresh.open("wb") as file:
            _pack(operator, seed, probe, file)
        fresh.replace(path)


class Handing:
    """Hands over what a user's operator computes, some of it ahead of time in a thread of its own: each set once, one
    at a time (a user's code need not expect several threads), and first what somebody waits for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = threading.Condition()
        self._busy = False
        self._waiting = 0  # for what is needed now
        self._began: float | None = None  # the first set
        self._took: float | None = None  # seconds, for the first set

    def ahead(self, operator: Operator, wanted: Sequence[tuple[int, str]]) -> None:
        """Begin with these sets, in this order. Whatever goes wrong shows when one of them is asked for."""

        def work() -> None:
            with suppress(Exception):
                for seed, probe in wanted:
                    with self._turn:
                        self._turn.wait_for(lambda: not self._busy and not self._waiting)
                        self._busy = True
                    self._hand_over(operator, seed, probe)

        threading.Thread(target=work, daemon=True).start()

    def now(self, operator: Operator, seed: int, probe: str) -> None:
        if (self._folder / name(operator, seed, probe)).exists():
            return  # whatever is computed meanwhile
        with self._turn:
            self._waiting += 1
            self._turn.wait_for(lambda: not self._busy)
            self._waiting -= 1
            self._busy = True
        self._hand_over(operator, seed, probe)

    def _hand_over(self, operator: Operator, seed: int, probe: str) -> None:
        started = self._began = self._began or time.monotonic()
        try:
            hand_over(operator, seed, probe, self._folder)
            self._took = self._took or time.monotonic() - started
        finally:
            with self._turn:
                self._busy = False
                self._turn.notify_all()

    def first_seconds(self) -> tuple[float, bool]:
        """How long the first set has taken so far, with that which it alternates with, and whether it is done."""
        now = time.monotonic()
        return (now - (self._began or now) if self._took is None else self._took), self._took is not None


@lru_cache(maxsize=8)  # all that measure in one folder share it
def handing(folder: Path) -> Handing:
    return Handing(folder)


def read(operator: Operator, seed: int, probe: str, folder: Path) -> tuple[dict[str, Array], Mapping[str, Answer]]:
    """The inputs and answers that were handed over."""
    try:
        stored = _unpacked(folder / name(operator, seed, probe), f"{seed}.")
    except (OSError, EOFError, ValueError, OverflowError, TypeError, AttributeError) as error:
        raise DeepgenError(f"the inputs of seed {seed} ({probe}) were not handed over whole: {error}") from error
    inputs = {n[len(_INPUT) :]: array for n, array in stored.items() if n.startswith(_INPUT)}
    outputs = [n[len(_WANT) :] for n in stored if n.startswith(_WANT)]
    return inputs, {n: Answer(_wide(stored[_WANT + n]), _wide(stored[_SCALE + n])) for n in outputs}


def _wide(values: Array) -> Array:
    return values.astype(np.int64) if values.dtype.kind == "i" else widen(values, dtype("f64"))


def sets(operator: Operator, seed: int, other_seeds: int) -> Iterator[tuple[int, str]]:
    """All that finals try kernels on, beside what they are timed on, in the order in which they do."""
    unlike = [probe for probe in operator.probes() if probe != "normal"]
    yield from ((seed, probe) for probe in unlike[:1])  # tells most
    yield from ((seed + i, "normal") for i in range(1, other_seeds + 1))
    yield from ((seed, probe) for probe in unlike[1:])


_VERSION = 3
_SMALL, _BYTES_A_SECOND = 64 << 20, 2e8  # answers that are larger, and computed faster than this, are not kept
_SCALE_SUFFIX = ".scale"


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

    `constant`: the inputs among them that are those of the first seed of the pair. `compiled` computes it where it can:
    sooner than it could be read.
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
    if size <= _SMALL or time.monotonic() - started > size / _BYTES_A_SECOND:
        with suppress(OSError):  # a full disk or a read-only folder costs only the time to compute it again
            _write(folder, key, answers)
            kept = _read(folder, key, trusted=True)
    return kept if kept is not None else _read_only(answers)


def _read_only(answers: Mapping[str, Answer]) -> Mapping[str, Answer]:
    for answer in answers.values():
        answer.values.flags.writeable = answer.scale.flags.writeable = False
    return answers


def _code(operator: type[Operator]) -> list[Json]:
    """Digests of the files that the operator's class, and those it is made from, were read from, and of deepgen's own
    beside them: a reference that is computed in another way, or on other inputs, is another reference."""
    classes = [cls for cls in operator.__mro__ if issubclass(cls, Operator)]
    files = {getattr(sys.modules.get(cls.__module__), "__file__", None) for cls in classes}
    files.update(map(str, Path(operators.__file__).parent.rglob("*.py")))
    return [_file_digest(file) for file in sorted(filter(None, files))]


@lru_cache(maxsize=None)  # noqa: UP033  bundles run on Python 3.8
def _file_digest(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:  # made in memory: what it is called is all that is known of it
        return file


def _read(folder: Path, key: str, *, trusted: bool = False) -> dict[str, Answer] | None:
    """What was kept, when it is whole. `trusted`: we have just written it."""
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
    state = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.hexdigest()
