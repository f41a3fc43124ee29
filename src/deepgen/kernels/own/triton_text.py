"""The text of a Triton kernel: the function, with all that it names, as a file that stands on its own.

What else the user's file holds (imports of torch, the description of the kernel, other kernels) is no part of it: it
would run in every build, and changing it would make other kernels.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import inspect
import tempfile
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from deepgen.vocabulary import BadInput

_MODULES = ("triton", "math")  # that kernels may name
_PLAIN = (bool, int, float, str, type(None))


def text_of(function: Any) -> str:
    """A Python file that defines the function. Raises BadInput where it names something that cannot be written."""
    writer = _Writer()
    writer.add_function(function.fn.__name__, function)
    return "\n".join(["import triton", *sorted(writer.imports - {"import triton"}), "", *writer.parts])


def key_of(text: str, entry: str) -> str:
    """Triton's own digest of the function, and of all that it calls, as the text has them."""
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
            raise BadInput(f"Triton refuses {entry}: {error}", allowed="a kernel that Triton compiles") from error
    if key is None:
        raise BadInput("TRITON_INTERPRET is set, so kernels are not compiled", allowed="tune without it")
    return str(key)


class _Writer:
    """Collects functions after those that they call."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.parts: list[str] = []
        self._written: dict[str, Any] = {}

    def add_function(self, name: str, function: Any) -> None:
        source, tree = _source(function.fn)
        if tree.name != name:
            what = f"the kernel calls {tree.name} by the name {name}"
            raise BadInput(what, allowed="the function's own name")
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
                raise BadInput(f"{user} and what it calls mean two things by {name!r}", allowed="a name for each")
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
            what = f"{user} names the module {path}, which a kernel cannot take along"
            raise BadInput(what, allowed="its @triton.jit functions, imported by their names")
        self.imports.add(_imported(f"import {path}", path, name))


def _imported(statement: str, bound: str, name: str) -> str:
    return statement if bound == name else f"{statement} as {name}"


def _of_triton(value: Any) -> bool:
    """Whether it is a function or a type that Triton brings."""
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] == "triton" and hasattr(value, "__name__")


def _constant(name: str, value: Any, user: str) -> str:
    """A line that defines what Triton lets a kernel read: a tl.constexpr, or one of its types."""
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
    raise BadInput(what, allowed="numbers, texts, types of Triton's, and tuples of them")


def _source(function: Any) -> tuple[str, ast.FunctionDef]:
    """The function's own lines, without decorators."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
        (tree,) = ast.parse(text).body
    except (OSError, SyntaxError, ValueError) as error:
        raise BadInput(
            f"the source of {function.__name__} is not to be had: {error}", allowed="one in a file"
        ) from error
    assert isinstance(tree, ast.FunctionDef)
    return "\n".join(text.splitlines()[tree.lineno - 1 : tree.end_lineno]), tree


def _scope(function: Any) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {**function.__globals__, **{name: cell.cell_contents for name, cell in cells}}


def _names(tree: ast.FunctionDef) -> list[str]:
    """The names that the function takes from around it, in their order."""
    parts = [tree.args, *tree.body]  # not the decorators
    nodes = [node for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)]
    arguments = [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
    own = {node.id for node in nodes if isinstance(node.ctx, ast.Store)} | {one.arg for one in arguments}
    return list(dict.fromkeys(n.id for n in nodes if n.id not in own and not hasattr(builtins, n.id)))
