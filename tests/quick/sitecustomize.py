"""Python starts quicker in the hundreds of processes that tests begin, which find this by $PYTHONPATH.

Half of the time that importing deepgen takes, Python compiles the methods of dataclasses, whose text it makes anew in
each process. Here the code of a text is kept beside the bytecode of modules, and taken from there.

Where $TESTS_WITHOUT names modules, nobody who looks finds them: a worker that races torch, as all do where it is found,
takes ten times as long to start.

Where $TESTS_HURRY is set, programs that tune wait for no calm machine, race as briefly as tests do, and start no
process for each winner. The command line has settings for the first two; a program that calls `deepgen.tune` has none.
"""

# pathlib takes as long to import as all that is here.
# ruff: noqa: PTH103, PTH105, PTH118, PTH120, PTH123

from __future__ import annotations

import builtins
import marshal
import os
import sys
from _blake2 import blake2b  # hashlib takes longer to import
from mmap import ACCESS_READ, mmap

TYPE_CHECKING = False
if TYPE_CHECKING:  # and so does typing
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any

KEPT = os.path.join(os.path.dirname(__file__), "__pycache__", f"methods.{sys.implementation.cache_tag}")
MANY = 20  # texts that are worth writing the file for
HURRIED: dict[str, dict[str, object]] = {
    "deepgen.run.measure.base": {"CALM_SECONDS": 0.0, "RACE_SECONDS": 0.05, "CALLS_SECONDS": 0.02},
    "deepgen.tuning.finals.race": {"FEWEST": 2, "SECONDS": 0.0},
    "deepgen.tuning.finals.crowning": {"LAST_CALLS": False},
}


class Importing:
    """Stands before the importers of modules: does something to each of a few, right after it was imported."""

    def __init__(self) -> None:
        self.then: dict[str, Callable[[ModuleType], None]] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name not in self.then:
            return None
        then = self.then.pop(name)
        from importlib.util import find_spec

        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                then(module)

            spec.loader.exec_module = exec_module
        return spec


class Methods:
    """Once it is installed in dataclasses, these compile by `run`.

    The file is an index, where each text's code lies by a digest of the text, and then all codes: there are thousands,
    of which a process needs a few hundred.
    """

    def __init__(self) -> None:
        self.at: dict[bytes, tuple[int, int]] = {}
        self.codes = memoryview(b"")
        self.fresh: dict[bytes, bytes] = {}

    def install(self, module: ModuleType) -> None:
        import atexit

        self.at, self.codes = _read()
        module.exec = self.run
        atexit.register(self.write)

    def run(self, text: str, *names: Any) -> None:
        digest = blake2b(text.encode(), digest_size=16).digest()
        if digest in self.at:
            start, end = self.at[digest]
            code = self.codes[start:end]
        elif digest in self.fresh:
            code = self.fresh[digest]
        else:
            code = self.fresh[digest] = marshal.dumps(compile(text, "<string>", "exec"))
        loaded: CodeType = marshal.loads(code)
        builtins.exec(loaded, *names)

    def write(self) -> None:
        """Together with what others have written meanwhile; whole or not at all."""
        if len(self.fresh) < MANY:
            return
        at, codes = _read()
        new = {digest: code for digest, code in self.fresh.items() if digest not in at}
        if len(new) < MANY:  # a fork, whose parent or sibling has written them
            return
        size = len(codes)
        for digest, code in new.items():
            at[digest] = size, size + len(code)
            size += len(code)
        part = f"{KEPT}.{os.getpid()}"
        try:
            os.makedirs(os.path.dirname(KEPT), exist_ok=True)
            with open(part, "wb") as file:
                marshal.dump(at, file)
                file.write(codes)
                file.write(b"".join(new.values()))
            os.replace(part, KEPT)
        except OSError:
            return


def _read() -> tuple[dict[bytes, tuple[int, int]], memoryview]:
    """The index, and the codes: pages of the file, of which those that are looked at are read."""
    try:
        with open(KEPT, "rb") as file:
            at = marshal.load(file)
            if isinstance(at, dict):
                return at, memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))[file.tell() :]
    except (OSError, EOFError, ValueError, TypeError):
        pass
    return {}, memoryview(b"")


if _hidden := os.environ.get("TESTS_WITHOUT", "").split():
    import importlib.util

    _find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *package: None if name in _hidden else _find(name, *package)

_importing = Importing()
if "dataclasses" in sys.modules:
    Methods().install(sys.modules["dataclasses"])
else:
    _importing.then["dataclasses"] = Methods().install
if os.environ.get("TESTS_HURRY"):
    _importing.then |= {name: lambda module: vars(module).update(HURRIED[module.__name__]) for name in HURRIED}
if _importing.then:
    sys.meta_path.insert(0, _importing)
