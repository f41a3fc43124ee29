"""The page for developers names rooms and files that are there."""

from __future__ import annotations

import re
from pathlib import Path

from deepgen.compiler.passes import lower

ROOT = Path(__file__).parents[2]
PLACES = (ROOT / "src/deepgen", ROOT / "src", ROOT)
EXAMPLES = {"kernels/attention/sm90_attention/"}  # to be added by whoever reads the page


def test_every_path_exists() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    paths = set(re.findall(r"`([\w./-]+/[\w./-]*|\w+\.(?:py|md|h|toml))`", text)) - EXAMPLES
    missing = [path for path in sorted(paths) if "/" in path and not any((place / path).exists() for place in PLACES)]
    assert not missing


def test_every_room_is_named() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    rooms = [path.name for path in (ROOT / "src/deepgen").iterdir() if (path / "__init__.py").is_file()]
    assert [room for room in rooms if f"`{room}/" not in text] == []


def test_every_pass_has_a_row_with_its_file() -> None:
    rows = re.findall(r"(?m)^\| (\w+) \|.*\| (`[\w., `]+`) \|$", (ROOT / "docs/lowering.md").read_text())
    imports = re.findall(r"from deepgen\.compiler\.passes\.(\w+) import (.+)", Path(lower.__file__).read_text())
    own = {name: f"`{module}.py`" for module, names in imports for name in names.split(", ")}
    files = {name: own.get(name, file) for name, file in rows}
    assert {name for name, *_ in lower.PASSES} | {"build"} == {name for name, _ in rows}
    assert all(files[name] in file for name, file in rows)
