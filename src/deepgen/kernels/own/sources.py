"""The files of a user's own kernel: the source, and what it includes from the user's folders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from deepgen.vocabulary import BadInput, Source, foreign

LANGUAGES = {
    ".c": "c",
    ".cc": "c++",
    ".cpp": "c++",
    ".cxx": "c++",
    ".cu": "cuda",
    ".hip": "hip",
}
SUFFIXES = {"c": ".c", "c++": ".cpp", "cuda": ".cu", "hip": ".hip"}
MOST_FILES, MOST_BYTES = 2000, 32 << 20  # that one kernel may consist of
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.M)


def is_path(source: str) -> bool:
    """Whether a text names a file rather than being a program itself."""
    return "\n" not in source and len(source) < 1000 and Path(source).suffix in LANGUAGES


def language_of(source: str | Path, given: str | None) -> str:
    """The language by the file's suffix, unless it is given."""
    if given is not None:
        known = {**{name: name for name in SUFFIXES}, "cpp": "c++"}
        if given.lower() not in known:
            raise BadInput(f"language is {given!r}", allowed="one of " + ", ".join(SUFFIXES))
        return known[given.lower()]
    suffix = Path(source).suffix if isinstance(source, Path) or is_path(source) else ""
    if suffix not in LANGUAGES:
        raise BadInput("the source does not say its language", allowed="language=" + ", ".join(SUFFIXES))
    return LANGUAGES[suffix]


def read(
    source: str | Path,
    language: str,
    name: str,
    folder: Path,
    include: Sequence[str | Path],
    more: Sequence[str | Path],
) -> tuple[Source, ...]:
    """The source and all that it includes from the `include` folders and from beside it, the source first.

    `more` are sources of their own. They become part of the first one: a kernel is one translation unit.
    """
    if isinstance(source, Path) or is_path(source):
        path = _found(source, folder)
        first, beside = Source(path.name, text_of(path)), [path.parent]
    else:
        first, beside = Source(name + SUFFIXES[language], source), []
    others = [_found(one, folder) for one in more]
    if others:
        # By name from the same folder: compilers then report errors with the file that they are in.
        joined = "".join(f'\n#include "{path.name}"' for path in others)
        first = Source(first.name, f"{first.text}\n{joined}\n")
    places = [*beside, *(path.parent for path in others), *(_folder(one, folder) for one in include)]
    included = {path.name: text_of(path) for path in others}
    _follow([first.text, *included.values()], places, included)
    return first, *(Source(file, text) for file, text in sorted(included.items()) if file != first.name)


def _follow(texts: Iterable[str], places: Sequence[Path], included: dict[str, str]) -> None:
    """Add what the texts include, and what that includes in turn. System headers are left to the compiler."""
    waiting, size = list(texts), 0
    while waiting:
        text = waiting.pop()
        size += len(text)
        for name in _INCLUDE.findall(text):
            if name in included or ".." in Path(name).parts or Path(name).is_absolute():
                continue
            found = next((place / name for place in places if (place / name).is_file()), None)
            if found is None:
                continue
            included[name] = text_of(found)
            waiting.append(included[name])
            if len(included) > MOST_FILES or size > MOST_BYTES:
                what = f"the kernel includes more than {MOST_FILES} files or {MOST_BYTES >> 20} MB"
                raise BadInput(what, allowed="a smaller part of the library, or a precompiled one")


def _found(source: str | Path, folder: Path) -> Path:
    path = Path(source).expanduser()
    path = path if path.is_absolute() else folder / path
    if not path.is_file():
        raise BadInput(f"there is no file {path}", allowed="a path, or the source's text with language=")
    return path


def _folder(given: str | Path, folder: Path) -> Path:
    path = Path(given).expanduser()
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
