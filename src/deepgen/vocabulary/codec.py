"""JSON of dataclasses, by their fields: one writer and one reader for all of them.

    @dataclass(frozen=True)
    class Point(Serializable):
        x: int
        label: str = field(default="", metadata=coded(omit=True))

    Point(1).to_json()  # {"x": 1}; Point.from_json({"x": "a"}, where="file.json") says where it fails

Fields may be bool, int, float, str, Path, Any, Json, enums, dataclasses, `tuple[X, ...]`, `tuple[X, Y]`,
`Mapping[str, X]`, unions of these, and string aliases of them. In a union, a class with a `json_kind` is recognised by
the key `kind`, which is written first. A class with its own `to_json` and `from_json` is converted by these.
Annotations are read as text: bundles run on Python 3.8, which cannot evaluate newer ones. A field with a default may be
missing from a file; an unknown key is refused. Writers check nothing.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import Json, JsonObject

T = TypeVar("T")
_METADATA = "deepgen.codec"
# Errors that a class's own code may raise for a value of the wrong shape.
_SHAPE = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)


class Malformed(BadInput, ValueError):
    """A value does not have the form of its class. Also a ValueError, which other readers of files expect."""


@dataclass(frozen=True)
class _Options:
    key: str | None = None
    omit: bool = False
    first: bool = False
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] | None = None


def coded(
    *,
    key: str | None = None,
    omit: bool = False,
    first: bool = False,
    read: Callable[[Any], Any] | None = None,
    write: Callable[[Any], Any] | None = None,
) -> Mapping[str, Any]:
    """The metadata of a field whose JSON is special.

    `key`: its name in JSON. `omit`: left out if it equals its default. `first`: written before the others. `read` and
    `write`: functions to use instead of the annotation; `read` may raise ValueError and similar errors.
    """
    return {_METADATA: _Options(key, omit, first, read, write)}


class Serializable:
    """Adds the two methods to a dataclass."""

    json_kind: ClassVar[str]

    def to_json(self) -> JsonObject:
        return to_json(self)

    @classmethod
    def from_json(cls: type[T], data: Any, where: str | None = None) -> T:
        return from_json(cls, data, where)


def to_json(value: Any) -> JsonObject:
    """A dataclass as a JSON object."""
    return _plan(type(value)).write(value)


def from_json(cls: type[T], data: Any, where: str | None = None) -> T:
    """Read a dataclass from its JSON. Raises Malformed, with the place of the error and the allowed values."""
    try:
        value: T = _plan(cls).read(data)
    except _WrongError as error:
        place = error.place() if where is None else ": ".join(filter(None, (where, error.place())))
        raise Malformed(error.what, where=place or cls.__name__, allowed=error.allowed) from error.__cause__
    return value


class _WrongError(Exception):
    """An error while it propagates; each level adds its key or index."""

    def __init__(self, what: str, allowed: str | None = None) -> None:
        super().__init__(what)
        self.what, self.allowed = what, allowed
        self.path: list[str | int] = []

    def place(self) -> str:
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in reversed(self.path))
        return "".join(parts).lstrip(".")


def _is(value: Any, allowed: str) -> _WrongError:
    return _WrongError(f"is {value!r:.60}", allowed)


class _Form(NamedTuple):
    """How values of a type are read and written. `write` is None if the value is already JSON."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any] | None
    allowed: str  # in words
    types: tuple[type, ...]  # allowed types of the JSON value; empty: any
    of: Any = ()  # the type of the values themselves, if `write` is not None
    kind: str | None = None


class _Field(NamedTuple):
    name: str
    key: str
    form: _Form
    required: bool
    omit: bool
    default: Any


class _Plan:
    """The fields of one class, looked up once."""

    def __init__(self, cls: type[Any]) -> None:
        if not is_dataclass(cls):
            raise TypeError(f"{cls.__qualname__} is not a dataclass")
        self.cls = cls
        self.kind: str | None = getattr(cls, "json_kind", None)
        ordered = sorted(fields(cls), key=lambda field: not _options(field).first)
        self.fields = [_field(cls, field) for field in ordered if field.init]
        self._keys = frozenset(f.key for f in self.fields)

    def write(self, value: Any) -> JsonObject:
        out: JsonObject = {} if self.kind is None else {"kind": self.kind}
        for name, key, form, _, omit, default in self.fields:
            inner = getattr(value, name)
            if omit and inner == default:
                continue
            out[key] = inner if form.write is None else form.write(inner)
        return out

    def read(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise _is(data, "an object with " + ", ".join(sorted(self._keys)))
        if not self._keys.issuperset(data):
            self._check_keys(data)
        values = {}
        for name, key, form, required, _, _ in self.fields:
            if key in data:
                try:
                    values[name] = form.read(data[key])
                except _WrongError as error:
                    error.path.append(key)
                    raise
            elif required:
                raise _WrongError(f"lacks {key!r}", form.allowed)
        try:
            return self.cls(**values)
        except BadInput:
            raise
        except _SHAPE as error:  # from the class's __post_init__
            raise _WrongError(str(error) or type(error).__name__) from error

    def _check_keys(self, data: Mapping[str, Any]) -> None:
        unknown = [key for key in data if key not in self._keys and not (key == "kind" and self.kind is not None)]
        if unknown:
            raise _WrongError(f"has the key {unknown[0]!r:.60}", "one of " + ", ".join(sorted(self._keys)))


_PLANS: dict[type[Any], _Plan] = {}


def _plan(cls: type[Any]) -> _Plan:
    plan = _PLANS.get(cls)
    if plan is None:
        plan = _PLANS[cls] = _Plan(cls)
    return plan


def _options(field: Any) -> _Options:
    options: _Options = field.metadata.get(_METADATA) or _Options()
    return options


def _field(cls: type[Any], field: Any) -> _Field:
    options = _options(field)
    if options.read is not None and options.write is not None:
        form = _Form(_checked(options.read), options.write, "another value", ())
    else:
        owner = next(base for base in cls.__mro__ if field.name in vars(base).get("__annotations__", {}))
        scope = vars(sys.modules[owner.__module__])
        form = _form(ast.parse(field.type, mode="eval").body, scope)
        if options.read is not None:
            form = form._replace(read=_checked(options.read))
        if options.write is not None:
            form = form._replace(write=options.write)
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return _Field(field.name, options.key or field.name, form, default is MISSING, options.omit, default)


def _checked(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Convert the exceptions of a reader that assumes the value's shape to a _WrongError."""

    def checked(value: Any) -> Any:
        try:
            return read(value)
        except BadInput:
            raise
        except _SHAPE as error:
            raise _WrongError(f"is not valid: {error!s:.200}") from error

    return checked


def _form(node: ast.AST, scope: Mapping[str, Any]) -> _Form:
    """The form for an annotation's syntax tree, with the names of its module."""
    if isinstance(node, ast.Constant):
        return _NONE if node.value is None else _form(ast.parse(str(node.value), mode="eval").body, scope)
    if isinstance(node, ast.Name):
        named = _BUILT_IN.get(node.id)
        return named if named is not None else _named(node.id, scope)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([_form(part, scope) for part in _parts(node)])
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        inside: Any = getattr(node.slice, "value", node.slice) if type(node.slice).__name__ == "Index" else node.slice
        arguments = inside.elts if isinstance(inside, ast.Tuple) else [inside]
        if node.value.id == "tuple":
            if isinstance(arguments[-1], ast.Constant) and arguments[-1].value is ...:
                return _sequence(_form(arguments[0], scope))
            return _fixed([_form(argument, scope) for argument in arguments])
        if node.value.id in ("Mapping", "dict"):
            return _mapping(_form(arguments[1], scope))
    raise TypeError(f"a field of type {ast.dump(node)} has no JSON; give it `coded(read=..., write=...)`")


def _parts(node: ast.AST) -> list[ast.AST]:
    return [*_parts(node.left), *_parts(node.right)] if isinstance(node, ast.BinOp) else [node]


def _named(name: str, scope: Mapping[str, Any]) -> _Form:
    value = scope.get(name)
    if value is Any or value is Json:
        return _ANY
    if isinstance(value, str):
        return _form(ast.parse(value, mode="eval").body, scope)
    if isinstance(value, type) and issubclass(value, Enum):
        return _enum(value)
    if isinstance(value, type) and issubclass(value, Path):
        return _Form(lambda data: Path(_STRING.read(data)), str, "a path", (str,), Path)
    if isinstance(value, type):
        return _class(value)
    raise TypeError(f"the type {name} has no JSON; give its field `coded(read=..., write=...)`")


def _plain(allowed: str, *types: type) -> _Form:
    kinds = frozenset(types)

    def read(value: Any) -> Any:
        if type(value) not in kinds:
            raise _is(value, allowed)
        return value

    return _Form(read, None, allowed, types)


_ANY = _Form(lambda value: value, None, "any value", ())
_NONE = _plain("null", type(None))
_STRING = _plain("text", str)
_BUILT_IN = {
    "bool": _plain("true or false", bool),
    "int": _plain("an integer", int),
    "float": _plain("a number", float, int),
    "str": _STRING,
    "Any": _ANY,
    "object": _ANY,
}


def _enum(cls: type[Enum]) -> _Form:
    members = {member.value: member for member in cls}
    allowed = "one of " + ", ".join(map(str, members))

    def read(value: Any) -> Any:
        try:
            return members[value]
        except (KeyError, TypeError):
            raise _is(value, allowed) from None

    return _Form(read, lambda member: member.value, allowed, tuple({type(value) for value in members}), cls)


def _class(cls: type[Any]) -> _Form:
    own = getattr(cls, "from_json", None)
    allowed = f"a {cls.__name__}"
    if own is not None and getattr(own, "__func__", None) is not Serializable.from_json.__func__:  # type: ignore[attr-defined]
        return _Form(_checked(own), lambda value: value.to_json(), allowed, (dict,), cls)

    def read(data: Any) -> Any:  # looked up on use, as classes may contain themselves
        return _plan(cls).read(data)

    def write(value: Any) -> Any:
        return _plan(type(value)).write(value)

    return _Form(read, write, allowed, (dict,), cls, getattr(cls, "json_kind", None))


def _sequence(inner: _Form) -> _Form:
    read_one, write_one = inner.read, inner.write

    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise _is(value, "a list")
        return tuple(_each(value, read_one))

    write = list if write_one is None else lambda value: [write_one(one) for one in value]
    return _Form(read, write, "a list", (list, tuple), tuple)


def _each(values: Any, read: Callable[[Any], Any]) -> list[Any]:
    out: list[Any] = []
    try:
        for value in values:
            out.append(read(value))
    except _WrongError as error:
        error.path.append(len(out))
        raise
    return out


def _fixed(inner: list[_Form]) -> _Form:
    """A tuple of a fixed number of values, each of its own type."""

    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(inner):
            raise _is(value, f"a list of {len(inner)}")
        forms = iter(inner)
        return tuple(_each(value, lambda one: next(forms).read(one)))

    def write(value: Any) -> Any:
        return [one if form.write is None else form.write(one) for form, one in zip(inner, value, strict=True)]

    return _Form(read, write, f"a list of {len(inner)}", (list, tuple), tuple)


def _mapping(inner: _Form) -> _Form:
    read_one, write_one = inner.read, inner.write

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _is(value, "an object")
        out = {}
        for key, one in value.items():
            if type(key) is not str:
                raise _is(key, "string keys")
            try:
                out[key] = read_one(one)
            except _WrongError as error:
                error.path.append(key)
                raise
        return out

    write = dict if write_one is None else lambda value: {key: write_one(one) for key, one in value.items()}
    return _Form(read, write, "an object", (dict,), Mapping)


def _union(parts: list[_Form]) -> _Form:
    kinds = {part.kind: part for part in parts if part.kind is not None}
    others = [part for part in parts if part.kind is None]
    converted = [part for part in parts if part.write is not None]
    allowed = " or ".join([*(f"an object of kind {kind}" for kind in kinds), *(part.allowed for part in others)])

    def read(value: Any) -> Any:
        if kinds and isinstance(value, dict):
            kind = value.get("kind")
            if not isinstance(kind, str) or kind not in kinds:
                raise _WrongError(f"is of kind {kind!r:.60}", "one of " + ", ".join(map(str, kinds)))
            return kinds[kind].read(value)
        for part in others:
            if not part.types or isinstance(value, part.types):
                return part.read(value)
        raise _is(value, allowed)

    def write(value: Any) -> Any:
        for part in converted:
            if isinstance(value, part.of):
                return part.write(value)  # type: ignore[misc]
        return value

    types = () if any(not part.types for part in parts) else tuple(t for part in parts for t in part.types)
    return _Form(read, write if converted else None, allowed, types, tuple(part.of for part in converted))
