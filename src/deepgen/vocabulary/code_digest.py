"""A digest of what a function does: its compiled code, and the code and values that it uses.

Comments, docstrings and line numbers are ignored. Another version of Python compiles to different code.
"""

from __future__ import annotations

import functools
import hashlib
import site
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
_SHARED = (tuple, frozenset, types.CodeType)  # Python may or may not share equal ones


def code_digest(value: Any, owner: type | None = None) -> str:
    """A digest of a function or value, including all of the user's code that it uses; `owner`: a method's class."""
    return _Walk(_top(getattr(value, "__module__", None) or getattr(owner, "__module__", None))).digest(value, owner)


class _Walk:
    """Follows names into the root module and into code outside installed packages."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._seen: dict[int, int] = {}  # objects already visited, by number, as functions may be recursive
        self._kept: list[Any] = []  # keeps them alive, so that ids are unique

    def digest(self, value: Any, owner: type | None = None) -> str:
        state = hashlib.sha256(f"{sys.version_info[:2]}".encode())
        for part in self._parts(value, owner):
            state.update(f"{len(part)} ".encode() + part)
        return state.hexdigest()[:16]

    def _parts(self, value: Any, owner: type | None = None) -> Iterator[bytes]:
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r}".encode()  # -0.0 differs from 0.0, and True from 1
            return
        if not isinstance(value, _SHARED):
            if id(value) in self._seen:
                yield f"again {self._seen[id(value)]}".encode()
                return
            self._seen[id(value)] = len(self._seen)
            self._kept.append(value)
        yield type(value).__qualname__.encode()
        if isinstance(value, types.FunctionType):
            yield from self._function(value, owner)
        elif isinstance(value, types.CodeType):
            yield from self._code(value, None)
        elif isinstance(value, types.MethodType):
            yield from self._all((value.__func__, value.__self__))
        elif isinstance(value, (staticmethod, classmethod)):
            yield from self._parts(value.__func__, owner)
        elif isinstance(value, property):
            yield from self._parts(value.fget, owner)
        elif isinstance(value, functools.partial):
            yield from self._all((value.func, value.args, value.keywords))
        elif isinstance(value, functools.cached_property):
            yield from self._parts(value.func, owner)
        elif isinstance(value, types.ModuleType):
            yield value.__name__.encode()
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, Mapping):
            yield from self._all(item for pair in value.items() for item in pair)
        elif isinstance(value, (tuple, list)):
            yield from self._all(value)
        elif isinstance(value, (set, frozenset)):
            yield from sorted(_Walk(self._root).digest(item).encode() for item in value)
        elif isinstance(value, Enum):
            yield f"{type(value).__module__} {value!r}".encode()
        elif hasattr(value, "tobytes") and hasattr(value, "dtype"):
            yield f"{value.dtype} {getattr(value, 'shape', ())}".encode()
            yield hashlib.sha256(value.tobytes()).digest()
        else:
            yield from self._object(value)

    def _all(self, values: Iterable[Any]) -> Iterator[bytes]:
        for value in values:
            yield from self._parts(value)

    def _function(self, function: types.FunctionType, owner: type | None) -> Iterator[bytes]:
        if not self._own(function.__module__):
            yield f"{function.__module__}.{function.__qualname__}".encode()
            return
        yield from self._code(function.__code__, function.__doc__)
        yield from self._all((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                yield from self._parts(cell.cell_contents)
            except ValueError:  # not filled yet
                yield b"empty"
        modules = []
        for name in sorted(_names(function.__code__)):
            if name in function.__globals__:
                value = function.__globals__[name]
                modules += [value] if isinstance(value, types.ModuleType) else []
                yield name.encode()
                yield from self._parts(value)
            method = None if owner is None else _defined(owner, name)
            if method is not None and self._own(getattr(method[0], "__module__", None)):
                yield from self._parts(method[1], owner)
        for module in (one for one in modules if self._own(one.__name__)):
            for name in sorted(_names(function.__code__) & set(vars(module))):
                yield from self._parts(vars(module)[name])

    def _code(self, code: types.CodeType, doc: str | None) -> Iterator[bytes]:
        yield code.co_code
        yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_flags)).encode()
        # In co_consts, a docstring is where there is None otherwise.
        yield from self._all(None if doc is not None and one is doc else one for one in code.co_consts)

    def _class(self, kind: type) -> Iterator[bytes]:
        yield kind.__qualname__.encode()
        if not self._own(kind.__module__):
            yield kind.__module__.encode()
            return
        for base in kind.__mro__:
            if base is kind or not self._own(base.__module__):
                continue
            yield from self._parts(base)
        for name, value in sorted(vars(kind).items()):
            if not name.startswith("__") or name in ("__init__", "__call__"):
                yield name.encode()
                yield from self._parts(value, kind)

    def _object(self, value: Any) -> Iterator[bytes]:
        """Any other object: by its class and content, or only by name if it is from another package."""
        wrapped = getattr(value, "__wrapped__", None)  # set by functools.cache
        if wrapped is not None:
            yield from self._parts(wrapped)
            return
        kind = type(value)
        yield str(getattr(value, "__qualname__", None) or getattr(value, "__name__", None)).encode()
        yield from self._class(kind)
        if self._own(kind.__module__) or is_dataclass(value):
            yield from self._parts(dict(getattr(value, "__dict__", {})))

    def _own(self, module: str | None) -> bool:
        """Whether names in this module are followed: code of other packages is identified by name only."""
        top = _top(module)
        return top == self._root or not _installed(top)


def _names(code: types.CodeType) -> set[str]:
    """The names that a function and its nested functions use."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _defined(owner: type, name: str) -> tuple[type, Any] | None:
    return next(((kind, vars(kind)[name]) for kind in owner.__mro__ if name in vars(kind)), None)


def _top(module: str | None) -> str:
    return (module or "").partition(".")[0]


@functools.lru_cache(maxsize=1024)
def _installed(top: str) -> bool:
    """Whether a module belongs to Python itself, an installed package or deepgen."""
    file = getattr(sys.modules.get(top), "__file__", None)
    if top in ("deepgen", "__main__") or file is None:
        return top == "deepgen" or top in sys.builtin_module_names
    roots = [site.getusersitepackages(), *(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))]
    return any(Path(root) in Path(file).parents for root in roots)
