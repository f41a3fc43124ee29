"""Reads files that someone else may have written, within fixed limits.

Input that exceeds a limit is refused with BadInput before it costs much time or memory. Within all limits, text and
parsed values together stay below half a gigabyte.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any, NoReturn

from deepgen.vocabulary.errors import BadInput

MOST_BYTES = 48 << 20  # of JSON, after decompression
MOST_VALUES = 3_000_000
_BYTES_EACH = 8  # least bytes per value in large files of results
MOST_DEPTH = 64  # nested objects and lists; deepgen's own files reach 18
MOST_DIGITS = 300  # of an integer, so that it always fits into a float
# Whole strings, including unterminated ones: a pattern that can fail there would take quadratic time.
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# Errors that reading a value of the wrong shape may raise. A KeyError's text is the key.
_SHAPE = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, ZeroDivisionError, RecursionError)


def read_bytes(path: Path, *, most: int = MOST_BYTES, plain: bool = False) -> bytes:
    """The content of a file of at most that many bytes.

    `plain`: refuse pipes, which would block; for files found in a folder rather than named by the user.
    """
    try:
        if plain and path.exists() and not path.is_file():
            raise BadInput("is not a regular file", where=str(path))
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise BadInput(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=str(path)) from error
    if len(data) > most:
        raise too_large(most, str(path))
    return data


def read_json(path: Path, *, most: int = MOST_BYTES, values: int = MOST_VALUES, plain: bool = False) -> Any:
    """The JSON value in a file."""
    return parse(read_bytes(path, most=most, plain=plain), str(path), most=most, values=values)


def parse_lines(data: bytes, where: str) -> list[Any]:
    """The JSON values of a text with one per line, limited to as many values as our own texts of that length have."""
    _check_structure(data, where, max(MOST_VALUES // 3, len(data) // _BYTES_EACH))
    return [parse(line, where) for line in data.splitlines()]


def parse(data: bytes | str, where: str, *, most: int = MOST_BYTES, values: int = MOST_VALUES) -> Any:
    """Parse a JSON value within the limits, without NaN, infinity, duplicate keys or invalid Unicode."""
    data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if len(data) > most:
        raise too_large(most, where)
    _check_structure(data, where, values)
    halves = _SURROGATE.search(data) is not None
    try:
        text = data.decode("utf-8-sig")
        del data
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_refuse, parse_float=_finite, parse_int=_whole
        )
        if halves:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadInput(f"is not JSON: {error}", where=where) from error
    return value


def unpacked(data: bytes, where: str, *, most: int = MOST_BYTES) -> bytes:
    """Decompress gzip data, up to that many bytes."""
    out = b""
    while data:  # a file may contain several consecutive streams
        stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            out += stream.decompress(data, most + 1 - len(out))
        except zlib.error as error:
            raise BadInput(f"is damaged: {error}", where=where) from error
        if len(out) > most:
            raise too_large(most, where)
        if not stream.eof:
            raise BadInput("is damaged: it ends too early", where=where)
        data = stream.unused_data
    return out


def check_limits(value: Any, where: str) -> None:
    """Apply the limits of JSON to a value from another parser."""
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        if any(isinstance(v, int) and abs(v) >= 10**MOST_DIGITS for v in level):
            raise BadInput("holds a number that is too large", where=where, allowed=f"at most {MOST_DIGITS} digits")
        level = [
            inner for v in level if isinstance(v, (dict, list)) for inner in (v.values() if isinstance(v, dict) else v)
        ]
        if not level:
            return
    raise BadInput("is nested too deeply", where=where, allowed=f"at most {MOST_DEPTH} levels")


def too_large(most: int, where: str) -> BadInput:
    size = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most >> 10} KiB"
    return BadInput("is too large", where=where, allowed=f"at most {size}")


@contextmanager
def shaped(where: str, what: str, *, allowed: str | None = None) -> Iterator[None]:
    """For code that takes a parsed value apart: a value of another shape raises BadInput with `where: what`."""
    try:
        yield
    except _SHAPE as error:
        words = f"{error!s:.200}" or type(error).__name__
        raise BadInput(f"{what}: {words}", where=where, allowed=allowed) from error


def _check_structure(data: bytes, where: str, values: int) -> None:
    """Check the number of values and the nesting depth before the parser builds anything."""
    import numpy as np  # imported late: commands without such files do not wait for it

    marks = np.frombuffer(_STRING.sub(b"", data).translate(None, _NOT_STRUCTURE), np.uint8)
    opening = (marks == ord("[")) | (marks == ord("{"))
    if int(np.count_nonzero(opening)) + int(np.count_nonzero(marks == ord(","))) > values:
        raise BadInput("holds too many values", where=where, allowed=f"at most {values:,}")
    closing = (marks == ord("]")) | (marks == ord("}"))
    depth = np.cumsum(opening.astype(np.int32) - closing.astype(np.int32))
    if marks.size and int(depth.max()) > MOST_DEPTH:
        raise BadInput("is nested too deeply", where=where, allowed=f"at most {MOST_DEPTH} levels")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:60]!r} appears twice")
    return result


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]} is too large for a float")
    return value


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits (at most {MOST_DIGITS} are read)")
    return int(text)


def printable(text: str) -> str:
    r"""The text with control characters escaped, such as \x1b; line ends and tabs stay.

    Names and messages may come from someone else's study. An escape sequence in them could hide text, change the
    terminal's title or fake a prompt.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def html_table(title: str, rows: Mapping[str, str]) -> str:
    """HTML for notebooks: a heading and a row per fact. Everything may come from someone else, so it is all escaped."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in rows.items()
    )
    return f"<b>{escape(title)}</b><table>{cells}</table>"
