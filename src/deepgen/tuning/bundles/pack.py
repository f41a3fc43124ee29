"""Packing a bundle: built kernels, what to measure, and the measuring part of deepgen, in one archive.

Only deepgen's own code is packed. It is found by following imports from the runner, the worker, and our plug-in for the
target if there is one. The packages in _STUBS are packed with a shorter `__init__`, so that the measuring code does not
import the search.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import deepgen
from deepgen.run.measure.base import Helper, Task
from deepgen.targets import Target
from deepgen.tuning.bundles import archive as bundle_archive
from deepgen.tuning.bundles.runner import ARRAYS
from deepgen.tuning.study import trust
from deepgen.vocabulary import Artifact, JsonObject, Kernel, Source, Trial
from deepgen.vocabulary.registry import metadata_files, own_plugins

_ENTRIES = ("deepgen.tuning.bundles.runner", "deepgen.run.measure.worker")
_STUBS = {
    "deepgen": "from deepgen.tuning.bundles.python_versions import bring_up_to_date\n\n"
    f"__version__ = {deepgen.__version__!r}\n\nbring_up_to_date()\n",
    "deepgen.tuning.engines": "",
    "deepgen.tuning": "",
    "deepgen.space": "from deepgen.space.parse import parse\n",
    # Programs that build kernels: the bundle's kernels are already built.
    "deepgen.toolchains.compilers.nvrtc_program": "",
    "deepgen.toolchains.compilers.triton_program": "",
}
_RISCV = "deepgen.run.riscv"  # packed only for its own boards and emulators
# Built on the machine that runs the bundle, which may differ from this one.
_BUILT_THERE = tuple(f"run/riscv/{name}" for name in ("count.c", "trace.c", "instructions.h"))
START = "run.py"
_PLACE = re.compile(r"deepgen(\.\w+)+:\w+")
_EXTEND = "deepgen.extend"  # imports nothing itself: its importers import each name's own module


def write(
    archive: Path,
    task: Task,
    *,
    study: str,
    name: str,
    trials: Sequence[tuple[Trial, Kernel, Artifact]],
    earlier: Sequence[tuple[Trial, Kernel, Artifact]],
    helpers: Mapping[str, Helper],
    default: int | None,
    keep: int,
    baselines: bool | Sequence[str],
    arrays: Mapping[str, bytes],
) -> str:
    """Write a bundle and return its id. `earlier`: trials measured before, for the finals; `default`: the trial of the
    config that the search began with; `arrays`: inputs and reference results of an operator whose code is not packed.
    """
    files: dict[str, bytes | Path] = {**travelling(task.target), START: _text("start.py")}
    for trial, _, artifact in (*trials, *earlier):
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
        "known": [{**_row(*entry), "measurement": entry[0].measurement.to_json()} for entry in earlier],
        "finals": {
            "default": default,
            "keep": keep,
            "baselines": baselines if isinstance(baselines, bool) else list(baselines),
        },
    }
    return bundle_archive.write(archive, manifest, files, trust.sign)


def travelling(target: Target) -> dict[str, bytes]:
    """The source files needed to measure on this target, by their path in the bundle."""
    root = Path(deepgen.__file__).parents[1]
    on_riscv = target.runner == "riscv"
    built = _BUILT_THERE if on_riscv else ()
    texts = {f"deepgen/{name}": (root / "deepgen" / name).read_bytes() for name in built}
    plugins = _plugins(target)
    waiting = [*_ENTRIES, *(place.partition(":")[0] for places in plugins.values() for place in places.values())]
    if plugins:
        texts |= {name: text.encode() for name, text in metadata_files(plugins, deepgen.__version__).items()}
    seen: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in seen or (module.startswith(_RISCV) and not on_riscv):
            continue
        seen.add(module)
        path = root.joinpath(*module.split("."))
        if (path / "__init__.py").is_file():
            path = path / "__init__.py"
        elif path.with_suffix(".py").is_file():
            path = path.with_suffix(".py")
        else:
            continue  # a name inside a module
        text = _STUBS[module].encode() if module in _STUBS else path.read_bytes()
        texts[path.relative_to(root).as_posix()], imported = _read(text)
        waiting += imported if module != _EXTEND else ()
    return texts


def _plugins(target: Target) -> dict[str, dict[str, str]]:
    """The parts of deepgen's own plug-ins that measuring on this target needs."""
    needed = {"deepgen.targets": target.kind, "deepgen.runners": target.runner}
    own = own_plugins()
    return {group: {name: own[group][name]} for group, name in needed.items() if name in own.get(group, {})}


@cache
def _read(text: bytes) -> tuple[bytes, tuple[str, ...]]:
    """A module's text as packed, and the modules that it imports. Cached, as reading takes most of the time to pack."""
    tree = ast.parse(text)
    return _without_words(text, tree), tuple(_imports(tree))


def _without_words(text: bytes, tree: ast.Module) -> bytes:
    """Remove docstrings and comments, a fifth of the size, which nobody reads there. Line numbers stay the same."""
    lines = text.splitlines(keepends=True)
    texts = [node for node in ast.walk(tree) if isinstance(node, (ast.Constant, ast.JoinedStr))]
    inside = {line for node in texts for line in range(node.lineno, node.end_lineno or 0)}
    quoted = {line for node in texts for line in range(node.lineno - 1, node.end_lineno or 0) if _has_mark(node)}
    for at, line in enumerate(lines):
        if line.lstrip().startswith(b"#") and at not in inside:
            lines[at] = b"\n"
        elif b"  # " in line and at not in inside and at not in quoted:
            lines[at] = line[: line.index(b"  # ")] + b"\n"
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            first, last = node.body[0].lineno - 1, node.body[0].end_lineno or 0
            if lines[first].lstrip().startswith((b'"""', b'r"""')) and lines[last - 1].rstrip().endswith(b'"""'):
                indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
                lines[first:last] = [indent + b'""\n', *([b"\n"] * (last - first - 1))]
    return b"".join(line if at in inside else _indented_less(line) for at, line in enumerate(lines))


def _indented_less(line: bytes) -> bytes:
    """Indent by one space instead of four, which saves a tenth of the size."""
    spaces = len(line) - len(line.lstrip(b" "))
    return b" " * (spaces // 4 + spaces % 4) + line[spaces:]


def _has_mark(node: ast.Constant | ast.JoinedStr) -> bool:
    """Whether it may contain text that looks like a comment."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node.value, str) and "#" in node.value)


def _imports(tree: ast.Module) -> list[str]:
    """The modules of deepgen and its plug-ins that a text imports anywhere, and their parent packages."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            places = _extended() if node.module == _EXTEND else {}
            for alias in node.names:
                names += [node.module, places.get(alias.name, f"{node.module}.{alias.name}")]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _PLACE.fullmatch(node.value):
            names.append(node.value.partition(":")[0])  # what a registry imports on lookup
    ours = [name.split(".") for name in names if name.split(".")[0].startswith("deepgen")]
    return [".".join(parts[: i + 1]) for parts in ours for i in range(len(parts))]


@cache
def _extended() -> dict[str, str]:
    """The places that `deepgen.extend` imports its names from."""
    tree = ast.parse((Path(deepgen.__file__).parent / "extend.py").read_bytes())
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module)
    return {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in imports for alias in node.names}


def _row(trial: Trial, kernel: Kernel, artifact: Artifact) -> dict[str, Any]:
    # Only binaries run, except that the simulated device reads a kernel's source. The id tells kernels apart.
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
