"""A `@triton.jit` function as a kernel to tune: its parameters compared with what is said of them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deepgen.kernels.own.arguments import Argument, TensorArgument
from deepgen.kernels.own.description import Description
from deepgen.kernels.own.triton_family import ALL_OPTIONS
from deepgen.kernels.own.triton_text import key_of, text_of
from deepgen.vocabulary import BadInput, JsonObject, Source
from deepgen.vocabulary.finding import module_at

_FUNCTIONS = ("JITFunction", "InterpretedFunction")
_SUFFIX = ".py"


def found(source: Any, language: str | None, entry: str | None, folder: Path) -> Any | None:
    """The `@triton.jit` function that is given, or that a Python file holds as `entry`; None for other languages."""
    if isinstance(source, (str, Path)):
        named = "\n" not in str(source) and Path(source).suffix == _SUFFIX
        if language not in (None, "triton") or not (named or language == "triton"):
            return None
        if not named:
            raise BadInput("a Triton kernel is given as text", allowed="the @triton.jit function, or its file's path")
        source = getattr(module_at(folder / Path(source).expanduser()), str(entry), None)
        if source is None:
            raise BadInput(f"the file has no function {entry}", allowed="the name of the kernel as entry=")
    kind = type(source).__name__
    if not type(source).__module__.startswith("triton."):
        return None
    if kind not in _FUNCTIONS:
        what = f"the source is a {kind} of Triton's"
        raise BadInput(what, allowed="the @triton.jit function itself, with what varies in it as knobs=")
    return source


def read(function: Any) -> tuple[Source, ...]:
    """Its text, which stands on its own."""
    return (Source(f"{function.fn.__name__}{_SUFFIX}", text_of(function)),)


def keyed(described: Description) -> Description:
    """The description with Triton's digest of the function."""
    key = key_of(described.sources[0].text, described.launches[0].entry)
    return replace(described, options={**described.options, "key": key})


def options(function: Any, arguments: Sequence[Argument], given: Sequence[str]) -> JsonObject:
    """What a build needs of the function; `given` names what has values.

    Raises BadInput where the function and what is said of it differ.
    """
    import triton

    name = function.fn.__name__
    parameters = inspect.signature(function.fn).parameters
    constants = [p.name for p in parameters.values() if "constexpr" in str(p.annotation)]
    passed = [word for word in parameters if word not in constants]
    _check_arguments(name, passed, arguments)
    strange = next((word for word in given if word not in {*constants, *ALL_OPTIONS}), None)
    if strange is not None:
        what = f"{strange} is neither a tl.constexpr parameter of {name} nor an option of Triton's"
        raise BadInput(what, allowed=", ".join([*constants, *sorted(ALL_OPTIONS)]))
    defaults = {word: parameters[word].default for word in constants if word not in given}
    missing = next((word for word, value in defaults.items() if value is inspect.Parameter.empty), None)
    if missing is not None:
        what = f"{name} has the tl.constexpr parameter {missing}, which has no value"
        raise BadInput(what, allowed=f'a knob {missing}, or defines={{"{missing}": an expression over sizes}}')
    told = getattr(function, "params", ())
    return {
        "triton": triton.__version__,
        "parameters": list(passed),
        "constants": list(constants),
        "defaults": {word: getattr(value, "value", value) for word, value in defaults.items()},
        "unspecialised": [p.name for p in told if p.do_not_specialize or p.do_not_specialize_on_alignment],
    }


def _check_arguments(name: str, passed: Sequence[str], arguments: Sequence[Argument]) -> None:
    if len(arguments) != len(passed):
        what = f"{name} takes {len(passed)} parameters beside tl.constexpr, and {len(arguments)} arguments are given"
        raise BadInput(what, allowed="one for each of: " + ", ".join(passed))
    for place, (word, argument) in enumerate(zip(passed, arguments, strict=True)):
        if argument.name != word and argument.name in passed:
            what = f"argument {place} of {name} is {argument.name}, and the function has {word} there"
            raise BadInput(what, allowed="arguments in the order of the parameters")
        if isinstance(argument, TensorArgument) and argument.symbol is not None:
            what = f"{argument.name} is to lie in a global variable, which Triton kernels do not have"
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
    """Raises BadInput for what kernels in other languages have: Triton says itself how a kernel is launched."""
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
