"""Packing a bundle: built kernels, what to measure, and the part of deepgen that measures, in one archive.

The code that travels is deepgen's own, found by following imports from the runner and the worker. The packages in
_STUBS travel with a shorter `__init__`, so that the measuring code does not pull in the search.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import deepgen
from deepgen.run.measure.base import Helper, Task
from deepgen.tuning.bundles import archive as bundle_archive
from deepgen.tuning.bundles.runner import ARRAYS
from deepgen.tuning.study import trust
from deepgen.vocabulary import Artifact, JsonObject, Kernel, Source, Trial

_ENTRIES = ("deepgen.tuning.bundles.runner", "deepgen.run.measure.worker")
_STUBS = {
    "deepgen": "from deepgen.tuning.bundles.python_versions import bring_up_to_date\n\n"
    f"__version__ = {deepgen.__version__!r}\n\nbring_up_to_date()\n",
    "deepgen.tuning.engines": "",
    "deepgen.tuning": "",
    "deepgen.space": "from deepgen.space.parse import parse\n",
    # Programs that build kernels, which were built before they were packed.
    "deepgen.toolchains.compilers.nvrtc_program": "",
    "deepgen.toolchains.compilers.triton_program": "",
}
# For the machine that a bundle runs on, which need not be like this one.
_BUILT_THERE = tuple(f"run/riscv/{name}" for name in ("count.c", "trace.c", "instructions.h"))
START = "run.py"
_PLACE = re.compile(r"deepgen(\.\w+)+:\w+")


def write(
    archive: Path,
    task: Task,
    *,
    study: str,
    name: str,
    trials: Sequence[tuple[Trial, Kernel, Artifact]],
    known: Sequence[tuple[Trial, Kernel, Artifact]],
    helpers: Mapping[str, Helper],
    default: int | None,
    keep: int,
    baselines: bool | Sequence[str],
    arrays: Mapping[str, bytes],
) -> str:
    """Write a bundle and give its id. `known`: trials that were measured before, for the finals; `default`: the trial
    of the config that the search began with; `arrays`: inputs and answers of an operator whose code stays here.
    """
    files: dict[str, bytes | Path] = {**travelling(), START: _text("start.py")}
    for trial, _, artifact in (*trials, *known):
        files[_binary(trial, artifact)] = Path(artifact.binary)
    files |= {f"{ARRAYS}/{name}": content for name, content in arrays.items()}
    packed = {name: f"{name}{helper.binary.suffix}" for name, helper in helpers.items()}
    files |= {packed[name]: helper.binary for name, helper in helpers.items()}
    manifest: JsonObject = {
        "deepgen": deepgen.__version__,
        "study": study,
        "name": name,
        "task": task.to_json(),
        "helpers": {name: {**helper.to_json(), "binary": packed[name]} for name, helper in helpers.items()},
        "trials": [_row(*entry) for entry in trials],
        "known": [{**_row(*entry), "measurement": entry[0].measurement.to_json()} for entry in known],
        "finals": {
            "default": default,
            "keep": keep,
            "baselines": baselines if isinstance(baselines, bool) else list(baselines),
        },
    }
    return bundle_archive.write(archive, manifest, files, trust.sign)


def travelling() -> dict[str, bytes]:
    """The source files that go along, by their path in the bundle."""
    root = Path(deepgen.__file__).parent
    texts = {f"deepgen/{name}": (root / name).read_bytes() for name in _BUILT_THERE}
    waiting = list(_ENTRIES)
    seen: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        path = root.joinpath(*module.split(".")[1:])
        if path.is_dir():
            path = path / "__init__.py"
        elif path.with_suffix(".py").is_file():
            path = path.with_suffix(".py")
        else:
            continue  # a name inside a module
        text = _STUBS[module].encode() if module in _STUBS else path.read_bytes()
        texts[f"deepgen/{path.relative_to(root).as_posix()}"] = text
        waiting += _imports(text)
    return texts


def _imports(text: bytes) -> list[str]:
    """The modules of deepgen that a text imports anywhere, and the packages that they lie in."""
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _PLACE.fullmatch(node.value):
            found.append(node.value.partition(":")[0])  # what a registry imports when it is asked for it
    ours = [name.split(".") for name in found if name.split(".")[0] == "deepgen"]
    return [".".join(parts[: i + 1]) for parts in ours for i in range(len(parts))]


def _row(trial: Trial, kernel: Kernel, artifact: Artifact) -> dict[str, Any]:
    # Binaries are all that runs; the simulated device alone reads its source. The id keeps kernels apart.
    sources = kernel.sources if kernel.language == "sim" else (Source("id", kernel.id),)
    built = replace(artifact, binary=_binary(trial, artifact), log="")
    return {
        "id": trial.id,
        "rank": trial.rank,
        "config": json.loads(json.dumps(dict(trial.config))),
        "facts": dict(trial.build_facts),
        "kernel": replace(kernel, sources=sources).to_json(),
        "artifact": built.to_json(),
    }


def _binary(trial: Trial, artifact: Artifact) -> str:
    return f"kernels/{trial.id}.{artifact.format}"


def _text(name: str) -> bytes:
    return (resources.files("deepgen.tuning.bundles") / name).read_bytes()
