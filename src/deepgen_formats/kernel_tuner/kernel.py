"""Converts Kernel Tuner's description of a kernel to deepgen's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from deepgen.extend import (
    INOUT,
    INPUT,
    LANGUAGE_OF,
    NO_MODULE,
    SUFFIX_OF,
    Argument,
    Array,
    BadInput,
    Description,
    OwnKernel,
    ScalarArgument,
    Size,
    Source,
    TensorArgument,
    Tolerance,
    checked_description,
    declared_parameters,
    divided,
    launch,
    names_in,
    read_source,
    text_of,
    texture,
    values_of,
)
from deepgen_formats.kernel_tuner.functions import expression_of

BLOCK_NAMES = ("block_size_x", "block_size_y", "block_size_z")
_BLOCK_DEFAULTS = (256, 1, 1)
_MOST_THREADS = 1024  # per block
_RELATIVE = 1e-5  # numpy.allclose's relative tolerance, added to `atol`
_LANGUAGES = {"C": "c++", "CUDA": "cuda", "CUPY": "cuda", "NVCUDA": "cuda", "HIP": "hip"}
TARGETS = {"c++": "cpu", "cuda": "cuda:native", "hip": "hip:native"}
# Formats with the same bytes, which deepgen does not distinguish in memory.
_STORED = {
    "float16": "f16", "float32": "f32", "float64": "f64", "int8": "i8", "uint8": "u8", "int16": "i16", "int32": "i32",
    "int64": "i64", "uint16": "i16", "uint32": "i32", "uint64": "i64", "bool": "u8", "complex64": "f32",
    "complex128": "f64",
}  # fmt: skip
_PASSED = {
    "float32": "f32", "float64": "f64", "int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32",
    "uint32": "u32", "int64": "i64", "uint64": "u64", "bool": "u8",
}  # fmt: skip


def kernel_of(
    kernel_name: str,
    kernel_source: Any,
    problem_size: Any,
    arguments: Sequence[Any],
    tune_params: Mapping[str, Sequence[Any]],
    *,
    grid_div: Sequence[Any] = (None, None, None),
    restrictions: Any = None,
    answer: Sequence[Any] | None = None,
    atol: float = 1e-6,
    lang: str | None = None,
    smem_args: Mapping[str, Any] | None = None,
    cmem_args: Mapping[str, Any] | None = None,
    texmem_args: Mapping[str, Any] | None = None,
    compiler_options: Sequence[str] | None = None,
    defines: Mapping[str, Any] | None = None,
    block_size_names: Sequence[str] | None = None,
) -> OwnKernel:
    """The kernel of a call of `tune_kernel` or `run_kernel`; parameters have the names of their arguments."""
    for name in texmem_args or ():
        texture(name)
    source, more = _files(kernel_source)
    text = source if isinstance(source, str) else text_of(source)
    language = _language(lang, source, text)
    knobs = {name: values_of(name, values) for name, values in tune_params.items()}
    names = (*(block_size_names or ()), *BLOCK_NAMES[len(block_size_names or ()) :])
    block = tuple(n if n in knobs else size for n, size in zip(names, _BLOCK_DEFAULTS, strict=True))
    grid = _grid(problem_size, grid_div, names, knobs)
    taken = _arguments(kernel_name, text, arguments, answer, knobs)
    constants = tuple(
        _tensor(symbol if symbol not in {a.name for a in taken} else f"constant_{symbol}", value, INPUT, symbol=symbol)
        for symbol, value in (cmem_args or {}).items()
    )
    options, include = _options(compiler_options or ())
    description = Description(
        name=re.split(r"[<:]", kernel_name)[0],
        language=language,
        sources=(),
        arguments=(*taken, *constants),
        sizes={},
        knobs=knobs,
        launches=(launch(kernel_name, grid=grid, block=block, shared=_shared(smem_args, knobs)),),
        requires=tuple(dict.fromkeys((*_requirements(restrictions, knobs), *_block_limit(names, knobs)))),
        flags=options,
        defines={**_own_macros(text, grid, names, block), **_defines(defines, knobs)},
        tolerance={a.name: Tolerance(atol, _RELATIVE) for a in taken if _floats(a)},
    )
    called = description.name
    read = partial(_read, source, text, language, called, more, include)
    return OwnKernel(checked_description(description), _expected(taken, arguments, answer or ()), NO_MODULE, read)


def _files(kernel_source: Any) -> tuple[str | Path, list[Path]]:
    """The source, as text or as a file, and other files that it uses."""
    if isinstance(kernel_source, (list, tuple)) and kernel_source:
        first, *others = kernel_source
        return _files(first)[0], [Path(one).resolve() for one in others]
    if callable(kernel_source):
        raise BadInput("kernel_source is a function", allowed="a file, a list of files, or the source's text")
    if isinstance(kernel_source, Path) or (isinstance(kernel_source, str) and _is_file(kernel_source)):
        path = Path(kernel_source).resolve()
        if not path.is_file():
            raise BadInput(f"there is no file {path}", allowed="a file, or the source's text as kernel_source")
        return path, []
    if not isinstance(kernel_source, str) or not kernel_source:
        raise BadInput(f"kernel_source is {kernel_source!r}", allowed="a file, a list of files, or the source's text")
    return kernel_source, []


def _is_file(text: str) -> bool:
    return "\n" not in text and "{" not in text and bool(Path(text).suffix)


def _language(lang: str | None, source: str | Path, text: str) -> str:
    """As in Kernel Tuner: a source without CUDA, HIP or OpenCL keywords is C, compiled by a C++ compiler."""
    if lang is None:
        by_name = LANGUAGE_OF.get(source.suffix) if isinstance(source, Path) else None
        hip = by_name == "hip" or "hip/hip_runtime.h" in text
        lang = "HIP" if hip else "CUDA" if "__global__" in text else "OpenCL" if "__kernel" in text else "C"
    language = _LANGUAGES.get(str(lang).upper())
    if language is None:
        raise BadInput(f"lang is {lang!r}", allowed="one of " + ", ".join(_LANGUAGES))
    return language


def _read(
    source: str | Path, text: str, language: str, called: str, more: Sequence[Path], include: Sequence[Path]
) -> tuple[Source, ...]:
    folders = [*dict.fromkeys(path.parent for path in more), *include]
    if isinstance(source, Path):
        sources = read_source(source, language, called, source.parent, folders, ())
        # With a suffix from which compilers recognise the language.
        return Source(called + SUFFIX_OF[language], sources[0].text), *sources[1:]
    return read_source(text, language, called, Path.cwd(), folders, ())


def _arguments(
    entry: str, text: str, passed: Sequence[Any], answer: Sequence[Any] | None, knobs: Mapping[str, Any]
) -> tuple[Argument, ...]:
    """The kernel's arguments. Arrays that it may write are refilled before every run."""
    answers = list(answer) if answer is not None else [None] * len(passed)
    if len(answers) != len(passed):
        raise BadInput(f"answer has {len(answers)} entries", allowed=f"{len(passed)}, one for each of the arguments")
    declarations = declared_parameters(text, entry) or []
    if len(declarations) != len(passed):
        declarations = [""] * len(passed)
    described: list[Argument] = []
    for place, (one, expected, declaration) in enumerate(zip(passed, answers, declarations, strict=True)):
        name = _name(declaration, place, {*knobs, *(a.name for a in described)})
        if isinstance(one, np.generic):
            kind = _PASSED.get(str(one.dtype))
            if kind is None:
                raise BadInput(f"argument {place} is a {one.dtype}", allowed="one of " + ", ".join(_PASSED))
            described.append(ScalarArgument(name, kind, one.item() if one.dtype.kind != "b" else int(one)))
            continue
        array = _array(one, place)
        if expected is not None and np.shape(expected) != array.shape:
            what = f"answer {place} has the shape {np.shape(expected)}"
            raise BadInput(what, allowed=f"{array.shape}, that of the argument")
        reads = expected is None and re.search(r"\bconst\b[^*]*\*", declaration) is not None
        described.append(_tensor(name, array, INPUT if reads else INOUT, checked=expected is not None or reads))
    return tuple(described)


def _name(declaration: str, place: int, taken: set[str]) -> str:
    """The parameter's own name, unless a macro has that name."""
    words = re.findall(r"[A-Za-z_]\w*", declaration.split("=", maxsplit=1)[0].split("[", maxsplit=1)[0])
    return words[-1] if len(words) > 1 and words[-1] not in taken else f"argument_{place}"


def _array(value: Any, place: int) -> Array:
    if isinstance(value, (bool, int, float, str)) or not hasattr(value, "__array__"):
        what = f"argument {place} is {type(value).__name__} {value!r:.40}"
        raise BadInput(what, allowed="numpy arrays, and numpy numbers such as numpy.int32(8)")
    return np.asarray(value)


def _tensor(name: str, value: Any, role: str, *, checked: bool = True, symbol: str | None = None) -> TensorArgument:
    array = stored(np.asarray(value))
    return TensorArgument(name, role, array.shape, _STORED[str(np.asarray(value).dtype)], array, checked, symbol)


def stored(array: Array) -> Array:
    """The bytes of an array with a dtype that deepgen supports, in at least one dimension."""
    kind = _STORED.get(str(array.dtype))
    if kind is None:
        raise BadInput(f"an array is of {array.dtype}", allowed="one of " + ", ".join(_STORED))
    whole = np.ascontiguousarray(np.atleast_1d(array))
    view = {"f16": "float16", "f32": "float32", "f64": "float64", "u8": "uint8"}.get(kind, f"int{array.itemsize * 8}")
    return whole.view(view)


def _expected(arguments: Sequence[Argument], passed: Sequence[Any], answer: Sequence[Any]) -> dict[str, Array]:
    """The expected arrays, in the formats of the kernel's arguments."""
    rows = zip(arguments, passed, answer, strict=False)
    return {a.name: stored(np.asarray(e).astype(np.asarray(g).dtype)) for a, g, e in rows if e is not None}


def _floats(argument: Argument) -> bool:
    return isinstance(argument, TensorArgument) and argument.role == INOUT and argument.dtype.startswith("f")


def _grid(
    problem_size: Any, divisors: Sequence[Any], names: Sequence[str], knobs: Mapping[str, Sequence[Any]]
) -> tuple[Size, ...]:
    if callable(problem_size):
        axes: list[Any] = [_axis(problem_size, place) for place in range(3)]
    else:
        axes = list(problem_size) if isinstance(problem_size, (list, tuple)) else [problem_size]
    grid = []
    for place, name in enumerate(names):
        size = _size(axes[place], knobs, "problem_size") if place < len(axes) else 1
        requested = divisors[place]
        if requested is None:
            requested = [name] if name in knobs else []
        several = requested if isinstance(requested, (list, tuple)) else [requested]
        grid.append(divided(size, [_divisor(one, knobs) for one in several]))
    return tuple(grid)


def _axis(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    def size(config: Mapping[str, Any]) -> Any:
        sizes = function(config)
        sizes = sizes if isinstance(sizes, (list, tuple)) else (sizes,)
        return sizes[place] if place < len(sizes) else 1

    return size


def _divisor(divisor: Any, knobs: Mapping[str, Sequence[Any]]) -> Size:
    size = _size(divisor, knobs, "a grid divisor")
    # As Kernel Tuner does with strings: the fraction is dropped.
    return f"({size}) // 1" if isinstance(divisor, str) and "/" in divisor else size


def _size(value: Any, knobs: Mapping[str, Sequence[Any]], what: str) -> Size:
    if callable(value):
        return expression_of(value, knobs, what)
    return value if isinstance(value, str) else int(value)


def _shared(smem_args: Mapping[str, Any] | None, knobs: Mapping[str, Sequence[Any]]) -> Size:
    return _size((smem_args or {}).get("size", 0), knobs, "smem_args['size']")


def _requirements(restrictions: Any, knobs: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
    several = (
        restrictions if isinstance(restrictions, (list, tuple)) else [] if restrictions is None else [restrictions]
    )
    texts = []
    for one in several:
        if not isinstance(one, str) and not callable(one):
            raise BadInput(
                f"a restriction is {one!r}", allowed="a string such as 'block_size_x <= 1024', or a function"
            )
        text = one if isinstance(one, str) else expression_of(one, knobs, "a restriction")
        texts.append(f"{text} == 1" if text.startswith("table(") else text)
    return tuple(texts)


def _block_limit(names: Sequence[str], knobs: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
    sizes = [name for name in names if name in knobs]
    return (f"{' * '.join(sizes)} <= {_MOST_THREADS}",) if sizes else ()


def _own_macros(text: str, grid: Sequence[Size], names: Sequence[str], block: Sequence[Size]) -> dict[str, Size]:
    """Macros that Kernel Tuner defines in addition to the parameters, if a source uses them."""
    defined: dict[str, Size] = {"kernel_tuner": 1}
    defined |= {f"grid_size_{axis}": size for axis, size in zip("xyz", grid, strict=True)}
    defined |= {name: size for name, size in zip(names, block, strict=True) if name != size}
    used = names_in([text])
    return {name: value for name, value in defined.items() if name in used}


def _defines(defines: Mapping[str, Any] | None, knobs: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    return {
        name: expression_of(value, knobs, f"define {name}") if callable(value) else value
        for name, value in (defines or {}).items()
    }


def _options(options: Sequence[str]) -> tuple[tuple[str, ...], list[Path]]:
    """The compiler's options without include folders, and these folders: their headers are read and stored with the
    kernel.
    """
    flags, folders = [], []
    words = iter(options)
    for word in words:
        if word == "-I":
            folders.append(Path(next(words, ".")).resolve())
        elif word.startswith("-I"):
            folders.append(Path(word[2:]).resolve())
        else:
            flags.append(word)
    return tuple(flags), folders
