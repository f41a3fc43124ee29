"""References to a user's own code: by registered name, in an installed module, or in a file.

A study records a reference. A file is copied into the study, so that the study can be resumed anywhere.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import site
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from deepgen.vocabulary import foreign
from deepgen.vocabulary.codec import Serializable, coded
from deepgen.vocabulary.errors import BadInput, DeepgenError

NAME, MODULE, FILE = "name", "module", "file"
FOLDER = "code"  # folder in a study
_LOADING: list[Path] = []


@dataclass(frozen=True)
class CodeRef(Serializable):
    """A reference. `ref` is a name, `package.module:Class`, or `file.py:Class`; `sha256` is the source file's."""

    by: str
    ref: str
    sha256: str | None = field(default=None, metadata=coded(omit=True))

    def __post_init__(self) -> None:
        if self.by not in (NAME, MODULE, FILE):
            raise BadInput(f"code is found by {self.by!r}", allowed=f"{NAME}, {MODULE} or {FILE}")

    @property
    def attribute(self) -> str:
        return self.ref.rpartition(":")[2]


@dataclass(frozen=True)
class CodeSource(Serializable):
    """A reference, with the file that it refers to if there is one. Its JSON is for processes on this machine."""

    ref: CodeRef
    file: Path | None = field(default=None, metadata=coded(write=lambda path: path and str(path.absolute())))

    def load(self) -> Any:
        """The referenced object, loaded from its original place."""
        module = _loaded(self.file) if self.ref.by == FILE and self.file is not None else _from_module(self.ref)
        value = getattr(module, self.ref.attribute, None)
        if value is None:
            raise BadInput(f"{self.ref.ref} is not there: {_name(self.ref)} has no {self.ref.attribute!r}")
        return value


def source_of(thing: Any) -> CodeSource | None:
    """The source of a user's class or function; None if no file has it, such as for interactive code."""
    module = sys.modules.get(thing.__module__)
    path = Path(getattr(module, "__file__", None) or "")
    if module is None or not path.is_file() or "." in thing.__qualname__:
        return None
    digest = _sha256(path.read_bytes())
    if _installed(path) and thing.__module__ != "__main__":
        return CodeSource(CodeRef(MODULE, f"{thing.__module__}:{thing.__qualname__}", digest), path)
    return CodeSource(CodeRef(FILE, f"{path.name}:{thing.__qualname__}", digest), path)


def keep(sources: Mapping[str, CodeSource], folder: Path) -> None:
    """Copy the files of a study's code into its folder."""
    for source in sources.values():
        if source.ref.by == FILE and source.file is not None:
            (folder / FOLDER).mkdir(parents=True, exist_ok=True)
            (folder / FOLDER / source.file.name).write_bytes(source.file.read_bytes())


def load(ref: CodeRef, folder: Path) -> Any:
    """The object that a reference by module or file means, in the study's `folder`. The caller checked the trust."""
    module = _from_file(ref, folder / FOLDER) if ref.by == FILE else _from_module(ref)
    value = getattr(module, ref.attribute, None)
    if value is None:
        raise BadInput(f"{ref.ref} is not there: {_name(ref)} has no {ref.attribute!r}", where=str(folder))
    return value


def module_at(path: Path) -> ModuleType:
    """A file named by the user, as a module. Raises BadInput or DeepgenError with the reason if it cannot be loaded."""
    if not path.is_file():
        raise BadInput(f"there is no file {path}", allowed="a Python file")
    return _loaded(path)


def being_loaded() -> Path | None:
    """The user's file that this process is executing now."""
    return _LOADING[-1] if _LOADING else None


class _JustThis(SourceFileLoader):
    """Executes exactly the checked text, not the current content of the path, nor bytecode beside it."""

    def __init__(self, name: str, path: str, text: bytes) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self._text, self.path)
        return code


def _loaded(path: Path, text: bytes | None = None) -> ModuleType:
    """A user's Python file as a module, named by its content, so that each file is executed only once."""
    text = foreign.read_bytes(path) if text is None else text
    digest = _sha256(text)
    present = _present(path.name, digest)
    if present is not None:
        return present
    name = f"deepgen_code_{digest[:16]}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_JustThis(name, str(path), text))
    assert spec is not None and spec.loader is not None, "it was given one"
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    _LOADING.append(path)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[module.__name__]
        if not isinstance(error, Exception):
            raise
        place = _line_of(error, path)
        if isinstance(error, BadInput):
            raise BadInput(str(error), where=place) from error
        beside = isinstance(error, ModuleNotFoundError)
        hint = "; a study keeps one file, so what it imports must be in it or installed" if beside else ""
        raise DeepgenError(f"{place} cannot be loaded: {type(error).__name__}: {error}{hint}") from error
    finally:
        _LOADING.pop()
    return module


def _line_of(error: BaseException, path: Path) -> str:
    """`file.py:3`, the last line of a user's file that ran; only the file if it could not be read as Python."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _from_file(ref: CodeRef, folder: Path) -> ModuleType:
    path = folder / Path(_name(ref)).name
    if not path.is_file():
        raise BadInput(f"{path} is missing: the study's code was in it", allowed="restore the study's whole folder")
    text = foreign.read_bytes(path, plain=True)
    if _sha256(text) != ref.sha256:
        raise BadInput(f"{path} has changed since the study was started", allowed="restore the file, or tune again")
    return _loaded(path, text)


def _from_module(ref: CodeRef) -> ModuleType:
    try:
        return importlib.import_module(_name(ref))
    except ImportError as error:
        what = f"module {_name(ref)!r}, which the study's code is in, cannot be imported: {error}"
        raise BadInput(what, allowed="install the package that contains it") from error


def _present(name: str, digest: str) -> ModuleType | None:
    """A module of this process that was loaded from the same file: its classes are the ones that callers hold."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        same_name = isinstance(path, str) and Path(path).name == name and Path(path).is_file()
        if same_name and _sha256(Path(str(path)).read_bytes()) == digest:
            return module
    return None


def _installed(path: Path) -> bool:
    """Whether a file belongs to an installed package, so that every process in this environment can import it."""
    roots = [site.getusersitepackages(), *(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))]
    inside = any(Path(root) in path.parents for root in roots)
    # A module in a package needs its siblings, and an editable install is outside these folders.
    return inside or (path.parent / "__init__.py").is_file()


def _name(ref: CodeRef) -> str:
    return ref.ref.rpartition(":")[0]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
