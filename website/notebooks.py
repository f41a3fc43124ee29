"""Notebooks as pages: their text, and their code without outputs."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


def pages() -> dict[str, str]:
    return {f"notebooks/{path.stem.replace('_', '-')}.md": _page(path) for path in NOTEBOOKS}


def _page(path: Path) -> str:
    title, *cells = (("".join(cell["source"]), cell["cell_type"]) for cell in json.loads(path.read_text())["cells"])
    place = f"[{path.name}](../../{path.relative_to(ROOT).as_posix()})"
    shown = [title[0], f"This page is the notebook {place}: download it and run it in Jupyter."]
    shown += [text if kind == "markdown" else f"```python\n{text}\n```" for text, kind in cells]
    return "\n\n".join(shown) + "\n"
