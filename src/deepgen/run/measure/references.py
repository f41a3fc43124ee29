"""Reference results, computed once and kept on disk, so that a restarted worker need not compute them again."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

from deepgen import operators
from deepgen.operators import Answer, Array, Operator
from deepgen.vocabulary import Json, digest

_VERSION = 3
_SCALE_SUFFIX = ".scale"


def reference(
    operator: Operator,
    seed: int,
    probe: str,
    inputs: Mapping[str, Array],
    folder: Path,
    constant: Collection[str] = (),
) -> Mapping[str, Answer]:
    """The operator's exact result on its inputs of that seed and probe; read-only, so that no kernel can spoil it.

    `constant`: the inputs among them that are those of the first seed of the pair.
    """
    key = digest([_VERSION, _code(type(operator)), operator.to_json(), seed, probe, *sorted(constant)], 32)
    kept = _read(folder, key)
    if kept is not None:
        return kept
    answers = operator.reference(inputs)
    with suppress(OSError):  # a full disk or a read-only folder costs only the time to compute it again
        _write(folder, key, answers)
        kept = _read(folder, key, trusted=True)
    return kept if kept is not None else answers


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
