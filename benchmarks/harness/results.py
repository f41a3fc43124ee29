"""Result files and tables: results with their conditions as JSON, and printed tables of 80 columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from harness.conditions import Conditions

WIDTH = 80


def plain(value: Any) -> Any:
    """Dataclasses, tuples and paths as JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def save(path: Path | None, results: Any, **where: Any) -> None:
    """Write results with their conditions and further information about the run. Does nothing without a path."""
    if path is not None:
        keep(path, results, **where)
        print(f"written to {path}", flush=True)


def keep(path: Path | None, results: Any, **where: Any) -> None:
    """The same, silently: for runs that are not over."""
    if path is not None:
        conditions = {**asdict(Conditions.now()), **where}
        write(path, json.dumps(plain({"conditions": conditions, "results": results}), indent=1) + "\n")


def write(path: Path, text: str) -> None:
    """Write atomically: an interrupted run leaves the earlier results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def read(path: Path) -> Any:
    """The results in a file written by `save`; None if it does not exist."""
    return json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else None


def by_lines(members: Mapping[str, Any]) -> str:
    """JSON with one line for each member, and for each item of a member that is a list.

    For files with many results: measuring one again changes one line, and a whole file can be skimmed.
    """
    return (
        "{\n" + ",\n".join(f"{json.dumps(name)}: {_lines(plain(value))}" for name, value in members.items()) + "\n}\n"
    )


def _lines(value: Any) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], width: int = WIDTH) -> str:
    """Columns as wide as their cells; the first is cut if the total would exceed the page width."""
    cells = [list(heads), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    widths[0] = max(8, min(widths[0], width - sum(widths[1:]) - 2 * (len(heads) - 1)))
    lines = []
    for row in cells:
        first = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 1] + "…"
        rest = (text.rjust(size) for text, size in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *rest]).rstrip())
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return "-" if value is None else str(value)


def markdown(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
