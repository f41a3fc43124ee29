"""The text of a Triton kernel: the function and everything it refers to, as a self-contained file.

The rest of the user's file (imports of torch, the description, other kernels) is not included: it would run in every
build, and changing it would change the kernel's identity.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import inspect
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from deepgen.kernels.own.arguments import Argument, TensorArgument
from deepgen.kernels.own.description import Description
from deepgen.kernels.own.triton_family import ALL_OPTIONS
from deepgen.vocabulary import BadInput, JsonObject, Source
from deepgen.vocabulary.finding import module_at

_MODULES = ("triton", "math")  # that kernels may use
_PLAIN = (bool, int, float, str, type(None))


def text_of(function: Any) -> str:
    """A Python file that defines the function. Raises BadInput if it uses something that cannot be written to the
    file."""
    writer = _Writer()
    writer.add_function(function.fn.__name__, function)
    return "\n".join(["import triton", *sorted(writer.imports - {"import triton"}), "", *writer.parts])


def key_of(text: str, entry: str) -> str:
    """Triton's own digest of the function and of everything that it calls, computed from the text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("deepgen_triton_kernel", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            key = getattr(getattr(module, entry), "cache_key", None)
        except Exception as error:
            raise BadInput(f"Triton rejects {entry}: {error}", allowed="a kernel that Triton compiles") from error
    if key is None:
        raise BadInput("TRITON_INTERPRET is set, so kernels are not compiled", allowed="unset it to tune")
    return str(key)


class _Writer:
    """Collects functions in order, callees first."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.parts: list[str] = []
        self._written: dict[str, Any] = {}

    def add_function(self, name: str, function: Any) -> None:
        source, tree = _source(function.fn)
        if tree.name != name:
            what = f"the kernel calls {tree.name} by the name {name}"
            raise BadInput(what, allowed="use the function's own name")
        scope = _scope(function.fn)
        for used in _names(tree):
            if used in scope:
                self._add(used, scope[used], name)
        kind = "constexpr_function" if type(function).__name__ == "ConstexprFunction" else "jit"
        noinline = "(noinline=True)" if getattr(function, "noinline", False) else ""
        self.parts.append(f"\n@triton.{kind}{noinline}\n{source}\n")

    def _add(self, name: str, value: Any, user: str) -> None:
        if name in self._written:
            if self._written[name] is not value and self._written[name] != value:
                raise BadInput(
                    f"{user} and what it calls mean two things by {name!r}", allowed="give each its own name"
                )
            return
        self._written[name] = value
        if isinstance(value, ModuleType):
            self._import_module(name, value, user)
        elif _of_triton(value):
            self.imports.add(_imported(f"from {value.__module__} import {value.__name__}", value.__name__, name))
        elif hasattr(value, "fn") and inspect.isfunction(value.fn):
            self.add_function(name, value)
        else:
            self.parts.append(_constant(name, value, user))

    def _import_module(self, name: str, module: ModuleType, user: str) -> None:
        path = module.__name__
        if path.partition(".")[0] not in _MODULES:
            what = f"{user} names the module {path}, which cannot be stored with a kernel"
            raise BadInput(what, allowed="its @triton.jit functions, imported by their names")
        self.imports.add(_imported(f"import {path}", path, name))


def _imported(statement: str, bound: str, name: str) -> str:
    return statement if bound == name else f"{statement} as {name}"


def _of_triton(value: Any) -> bool:
    """Whether it is one of Triton's own functions or types."""
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] == "triton" and hasattr(value, "__name__")


def _constant(name: str, value: Any, user: str) -> str:
    """A line that defines a global that Triton lets a kernel read: a tl.constexpr, or one of its types."""
    if _is(value, "constexpr"):
        return f"{name} = triton.language.constexpr({_literal(value.value, name, user)})"
    if _is(value, "dtype"):
        return f"{name} = {_literal(value, name, user)}"
    what = f"{user} names {name}, which is a {type(value).__name__}"
    raise BadInput(what, allowed=f"@triton.jit functions, and constants such as {name} = tl.constexpr(1)")


def _is(value: Any, kind: str) -> bool:
    return type(value).__name__ == kind and _of_triton(type(value))


def _literal(value: Any, name: str, user: str) -> str:
    if _is(value, "dtype"):
        import triton.language as tl

        named = next(word for word in dir(tl) if type(getattr(tl, word)) is type(value) and getattr(tl, word) == value)
        return f"triton.language.{named}"
    if isinstance(value, (tuple, list)):
        inside = ", ".join(_literal(one, name, user) for one in value)
        return f"({inside},)" if isinstance(value, tuple) else f"[{inside}]"
    if isinstance(value, float):
        return f'float("{value!r}")'
    if isinstance(value, _PLAIN):
        return repr(value)
    what = f"{user} names {name}, which holds a {type(value).__name__}"
    raise BadInput(what, allowed="numbers, strings, Triton types, and tuples of them")


def _source(function: Any) -> tuple[str, ast.FunctionDef]:
    """The source code of the function, without decorators."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
        (tree,) = ast.parse(text).body
    except (OSError, SyntaxError, ValueError) as error:
        raise BadInput(
            f"the source of {function.__name__} is not available: {error}", allowed="define it in a file"
        ) from error
    assert isinstance(tree, ast.FunctionDef)
    return "\n".join(text.splitlines()[tree.lineno - 1 : tree.end_lineno]), tree


def _scope(function: Any) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {**function.__globals__, **{name: cell.cell_contents for name, cell in cells}}


def _names(tree: ast.FunctionDef) -> list[str]:
    """The global names that the function uses, in order."""
    parts = [tree.args, *tree.body]  # not the decorators
    nodes = [node for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)]
    arguments = [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
    own = {node.id for node in nodes if isinstance(node.ctx, ast.Store)} | {one.arg for one in arguments}
    return list(dict.fromkeys(n.id for n in nodes if n.id not in own and not hasattr(builtins, n.id)))


_FUNCTIONS = ("JITFunction", "InterpretedFunction")
_SUFFIX = ".py"


def function_of(source: Any, language: str | None, entry: str | None, folder: Path) -> Any | None:
    """The given `@triton.jit` function, or the one that a Python file defines as `entry`; None for other languages."""
    if isinstance(source, (str, Path)):
        named = "\n" not in str(source) and Path(source).suffix == _SUFFIX
        if language not in (None, "triton") or not (named or language == "triton"):
            return None
        if not named:
            raise BadInput("a Triton kernel was given as text", allowed="the @triton.jit function, or its file's path")
        source = getattr(module_at(folder / Path(source).expanduser()), str(entry), None)
        if source is None:
            raise BadInput(f"the file has no function {entry}", allowed="pass the kernel's name as entry=")
    kind = type(source).__name__
    if not type(source).__module__.startswith("triton."):
        return None
    if kind not in _FUNCTIONS:
        what = f"the source is a {kind} of Triton's"
        raise BadInput(what, allowed="pass the @triton.jit function itself, with its variants as knobs=")
    return source


def read(function: Any) -> tuple[Source, ...]:
    """Its text as a self-contained file."""
    return (Source(f"{function.fn.__name__}{_SUFFIX}", text_of(function)),)


def keyed(described: Description) -> Description:
    """The description with Triton's digest of the function."""
    key = key_of(described.sources[0].text, described.launches[0].entry)
    return replace(described, options={**described.options, "key": key})


def options(function: Any, arguments: Sequence[Argument], valued: Sequence[str]) -> JsonObject:
    """What a build needs to know about the function; `valued` names the parameters that have values.

    Raises BadInput if the function and its description differ.
    """
    import triton

    name = function.fn.__name__
    parameters = inspect.signature(function.fn).parameters
    constants = [p.name for p in parameters.values() if "constexpr" in str(p.annotation)]
    passed = [word for word in parameters if word not in constants]
    _check_arguments(name, passed, arguments)
    strange = next((word for word in valued if word not in {*constants, *ALL_OPTIONS}), None)
    if strange is not None:
        what = f"{strange} is neither a tl.constexpr parameter of {name} nor a Triton option"
        raise BadInput(what, allowed=", ".join([*constants, *sorted(ALL_OPTIONS)]))
    defaults = {word: parameters[word].default for word in constants if word not in valued}
    missing = next((word for word, value in defaults.items() if value is inspect.Parameter.empty), None)
    if missing is not None:
        what = f"{name} has the tl.constexpr parameter {missing}, which has no value"
        raise BadInput(what, allowed=f'a knob {missing}, or defines={{"{missing}": an expression over sizes}}')
    function_parameters = getattr(function, "params", ())
    return {
        "triton": triton.__version__,
        "parameters": list(passed),
        "constants": list(constants),
        "defaults": {word: getattr(value, "value", value) for word, value in defaults.items()},
        "unspecialised": [
            p.name for p in function_parameters if p.do_not_specialize or p.do_not_specialize_on_alignment
        ],
    }


def _check_arguments(name: str, passed: Sequence[str], arguments: Sequence[Argument]) -> None:
    if len(arguments) != len(passed):
        what = f"{name} takes {len(passed)} parameters besides tl.constexpr, but {len(arguments)} arguments are given"
        raise BadInput(what, allowed="one for each of: " + ", ".join(passed))
    for place, (word, argument) in enumerate(zip(passed, arguments, strict=True)):
        if argument.name != word and argument.name in passed:
            what = f"argument {place} of {name} is {argument.name}, but the function has {word} there"
            raise BadInput(what, allowed="pass arguments in the order of the parameters")
        if isinstance(argument, TensorArgument) and argument.symbol is not None:
            what = f"{argument.name} would be a global variable, which Triton kernels do not have"
            raise BadInput(what, allowed="dg.input")


def refuse(
    launches: object,
    block: object,
    shared: object,
    cluster: object,
    sources: object,
    include: object,
    flags: object,
    libraries: object,
) -> None:
    """Raises BadInput for parameters that only kernels in other languages have: Triton itself determines how a kernel
    is launched."""
    usual = {
        "block": (block, (1,)),
        "shared": (shared, 0),
        "cluster": (cluster, (1, 1, 1)),
        "launches": (launches, None),
    }
    usual |= {"sources": (sources, ()), "include": (include, ()), "flags": (flags, ()), "libraries": (libraries, ())}
    for name, (value, plain) in usual.items():
        if value != plain and value not in ([], ()):
            raise BadInput(
                f"{name}= is given for a Triton kernel", allowed="grid=, and num_warps and the like as knobs"
            )
