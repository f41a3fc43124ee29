"""The files of a user's own kernel: the source, and the files that it includes from the user's folders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from deepgen.kernels.own.arguments import Argument, ScalarArgument, TensorArgument
from deepgen.vocabulary import BadInput, Source, foreign

LANGUAGES = {".c": "c", ".cc": "c++", ".cpp": "c++", ".cxx": "c++", ".cu": "cuda", ".hip": "hip"}
SUFFIXES = {"c": ".c", "c++": ".cpp", "cuda": ".cu", "hip": ".hip"}
MOST_FILES, MOST_BYTES = 2000, 32 << 20  # limits for one kernel
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.M)


def is_path(source: str) -> bool:
    """Whether a text names a file rather than being a program itself."""
    return "\n" not in source and len(source) < 1000 and Path(source).suffix in LANGUAGES


def language_of(source: str | Path, language: str | None) -> str:
    """The given language, or else that of the file's suffix."""
    if language is not None:
        names = {**{name: name for name in SUFFIXES}, "cpp": "c++"}
        if language.lower() not in names:
            raise BadInput(f"language is {language!r}", allowed="one of " + ", ".join(SUFFIXES))
        return names[language.lower()]
    suffix = Path(source).suffix if isinstance(source, Path) or is_path(source) else ""
    if suffix not in LANGUAGES:
        raise BadInput("the source's language is unknown", allowed="language=" + ", ".join(SUFFIXES))
    return LANGUAGES[suffix]


def read(
    source: str | Path,
    language: str,
    name: str,
    folder: Path,
    include: Sequence[str | Path],
    more: Sequence[str | Path],
) -> tuple[Source, ...]:
    """The source and all files that it includes from its own folder and the `include` folders, the source first.

    `more` are additional source files. They become part of the first one: a kernel is one translation unit.
    """
    if isinstance(source, Path) or is_path(source):
        path = _existing(source, folder)
        first, beside = Source(path.name, text_of(path)), [path.parent]
    else:
        first, beside = Source(name + SUFFIXES[language], source), []
    others = [_existing(one, folder) for one in more]
    if others:
        # Included by name from the same folder, so that compilers report errors in the right file.
        joined = "".join(f'\n#include "{path.name}"' for path in others)
        first = Source(first.name, f"{first.text}\n{joined}\n")
    places = [*beside, *(path.parent for path in others), *(_folder(one, folder) for one in include)]
    included = {path.name: text_of(path) for path in others}
    _follow([first.text, *included.values()], places, included)
    return first, *(Source(file, text) for file, text in sorted(included.items()) if file != first.name)


def _follow(texts: Iterable[str], places: Sequence[Path], included: dict[str, str]) -> None:
    """Adds the files that the texts include, directly or indirectly. System headers are left to the compiler."""
    waiting, size = list(texts), 0
    while waiting:
        text = waiting.pop()
        size += len(text)
        for name in _INCLUDE.findall(text):
            if name in included or ".." in Path(name).parts or Path(name).is_absolute():
                continue
            path = next((place / name for place in places if (place / name).is_file()), None)
            if path is None:
                continue
            included[name] = text_of(path)
            waiting.append(included[name])
            if len(included) > MOST_FILES or size > MOST_BYTES:
                what = f"the kernel includes more than {MOST_FILES} files or {MOST_BYTES >> 20} MB"
                raise BadInput(what, allowed="include less of the library, or use a precompiled one")


def _existing(source: str | Path, folder: Path) -> Path:
    path = Path(source).expanduser()
    path = path if path.is_absolute() else folder / path
    if not path.is_file():
        raise BadInput(f"there is no file {path}", allowed="a path, or the source's text with language=")
    return path


def _folder(place: str | Path, folder: Path) -> Path:
    path = Path(place).expanduser()
    path = path if path.is_absolute() else folder / path
    if not path.is_dir():
        raise BadInput(f"include folder {path} does not exist", allowed="a folder")
    return path


def text_of(path: Path) -> str:
    """A source file's text."""
    try:
        return foreign.read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not text in UTF-8") from error


_COMMENTS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
_QUALIFIERS = re.compile(r"\b(const|volatile|restrict|__restrict__|__restrict|register|struct|__grid_constant__)\b")
_TENSORS = {
    "float": "f32", "double": "f64", "int": "i32", "int32_t": "i32", "int8_t": "i8", "signed char": "i8",
    "uint8_t": "u8", "unsigned char": "u8", "half": "f16", "__half": "f16", "_Float16": "f16", "__fp16": "f16",
    "__nv_bfloat16": "bf16", "__bf16": "bf16", "hip_bfloat16": "bf16", "int64_t": "i64", "long long": "i64",
}  # fmt: skip
# By kind and size: registers do not distinguish signed from unsigned integers.
_SCALARS = {
    "float": "f4", "double": "f8", "int": "i4", "unsigned": "i4", "unsigned int": "i4", "int32_t": "i4",
    "uint32_t": "i4", "long": "i8", "unsigned long": "i8", "long long": "i8", "unsigned long long": "i8",
    "int64_t": "i8", "uint64_t": "i8", "size_t": "i8", "ptrdiff_t": "i8", "short": "i2", "int16_t": "i2",
    "uint16_t": "i2", "char": "i1", "int8_t": "i1", "uint8_t": "i1",
}  # fmt: skip
_PASSED = {
    "f32": "f4", "f64": "f8", "i8": "i1", "u8": "i1", "i16": "i2", "u16": "i2", "i32": "i4", "u32": "i4",
    "i64": "i8", "u64": "i8",
}  # fmt: skip


def plain(text: str) -> str:
    """The text without comments and strings."""
    return _COMMENTS.sub(" ", text)


def names(texts: Iterable[str]) -> frozenset[str]:
    """All identifiers."""
    return frozenset(word for text in texts for word in re.findall(r"[A-Za-z_]\w*", plain(text)))


def external(text: str) -> bool:
    """Whether functions seem to be declared with C linkage."""
    return re.search(r'extern\s+"C"', text) is not None


def parameters(text: str, entry: str) -> list[str] | None:
    """The declarations of the entry's parameters; None if its definition is not found."""
    base = re.split(r"[<:]", entry.strip(":"))[0]
    bare = plain(text)
    for match in re.finditer(rf"\b{re.escape(base)}\s*\(", bare):
        inside, end = _balanced(bare, match.end())
        after = bare[end:].lstrip()
        before = bare[: match.start()].rstrip()
        if inside is not None and after.startswith("{") and before and (before[-1].isalnum() or before[-1] in "_*)>"):
            parts = _split(inside)
            return [] if parts in ([], ["void"]) else parts
    return None


def check(entry: str, where: str, text: str, arguments: Sequence[Argument]) -> None:
    """Raises BadInput if the entry's parameters and the arguments differ."""
    listed = parameters(text, entry)
    if listed is None:
        if re.search(rf"\b{re.escape(re.split(r'[<:]', entry.strip(':'))[0])}\b", plain(text)) is None:
            raise BadInput(f"{where} has no function {entry}", allowed="pass the kernel's name as entry=")
        return
    if len(listed) != len(arguments):
        passed = ", ".join(a.name for a in arguments) or "none"
        what = f"{entry} takes {len(listed)} parameters in {where}, but {len(arguments)} arguments are given: {passed}"
        raise BadInput(what, allowed="one for each of: " + (", ".join(listed) or "none"))
    for place, (declared, argument) in enumerate(zip(listed, arguments, strict=True)):
        wrong = _mismatch(declared, argument)
        if wrong is not None:
            what = f"argument {place} of {entry}, {argument.name}, is {wrong[0]}, and {where} has `{declared}` there"
            raise BadInput(what, allowed=wrong[1])


def _mismatch(declared: str, argument: Argument) -> tuple[str, str] | None:
    pointer = "*" in declared or "[" in declared
    kind = _type(declared)
    if isinstance(argument, ScalarArgument):
        if pointer:
            return "a number", "a tensor or a workspace"
        wanted = _SCALARS.get(kind)
        if wanted is not None and wanted != _PASSED[argument.ctype]:
            fitting = [name for name, one in _PASSED.items() if one == wanted]
            return argument.ctype, f"{' or '.join(fitting)}, for {kind}"
        return None
    if not pointer and kind in _SCALARS:
        return "a tensor" if isinstance(argument, TensorArgument) else "a workspace", "a scalar"
    stored = _TENSORS.get(kind)
    if isinstance(argument, TensorArgument) and stored is not None and stored != argument.dtype:
        tolerated = {stored, argument.dtype} in ({"f32", "tf32"}, {"i32", "u32"}, {"u8", "f8e4m3"}, {"u8", "f8e5m2"})
        return None if tolerated else (argument.dtype, stored)
    return None


def _type(declared: str) -> str:
    """The type of a declaration without its name, qualifiers and stars."""
    bare = _QUALIFIERS.sub(" ", declared.split("=", maxsplit=1)[0])
    words = bare.replace("*", " ").replace("&", " ").split("[")[0].split()
    joined = " ".join(words)
    if joined in _TENSORS or joined in _SCALARS:
        return joined  # unnamed
    return " ".join(words[:-1])


def _balanced(text: str, start: int) -> tuple[str | None, int]:
    """The text from `start`, just after an opening parenthesis, to the matching one, and where that ends."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return text[start:place], place + 1
    return None, len(text)


def _split(inside: str) -> list[str]:
    parts, depth, last = [], 0, 0
    for place, letter in enumerate(inside):
        depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(inside[last:place])
            last = place + 1
    parts.append(inside[last:])
    return [" ".join(part.split()) for part in parts if part.strip()]
