"""Names that are imported on first use, and files that are written atomically."""

from __future__ import annotations

from pathlib import Path

import pytest

import deepgen
import deepgen.space
import deepgen.tuning
from deepgen.vocabulary.folders import write_whole
from deepgen.vocabulary.registry import lazy


@pytest.mark.parametrize("package", [deepgen, deepgen.space, deepgen.tuning])
def test_every_public_name_can_be_had_and_is_listed(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    assert [name for name in names if not hasattr(package, name)] == []
    assert set(names) <= set(dir(package))


def test_modules_may_be_named_from_the_package_on() -> None:
    find, listed = lazy("deepgen.vocabulary", {".json": "Json JsonObject", "deepgen.vocabulary.errors": "Missing"})
    assert find("Missing") is deepgen.vocabulary.errors.Missing and "JsonObject" in listed()
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        find("nothing")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    write_whole(path, "one\n")
    write_whole(path, "ä\n")
    assert path.read_text(encoding="utf-8") == "ä\n" and [*path.parent.iterdir()] == [path]
