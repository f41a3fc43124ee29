"""A reference is computed once, and never read from a damaged file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from deepgen.operators import Answer, Array, Gemm
from deepgen.run.measure.references import reference


class Counted(Gemm):
    """Counts how often its reference is computed."""

    computed = 0

    def reference(self, inputs: Mapping[str, Array]) -> dict[str, Answer]:
        Counted.computed += 1
        return super().reference(inputs)


OPERATOR = Counted(8, 9, 10)


def get(folder: Path, seed: int = 0, probe: str = "normal") -> Array:
    return reference(OPERATOR, seed, probe, OPERATOR.inputs(seed, probe), folder)["C"].values


def test_it_is_computed_once_for_each_seed_and_probe(tmp_path: Path) -> None:
    Counted.computed = 0
    first, again = get(tmp_path), get(tmp_path)
    assert (Counted.computed, first.tolist()) == (1, again.tolist())
    assert get(tmp_path, seed=1).tolist() != first.tolist()
    assert get(tmp_path, probe="zeros").tolist() != first.tolist()
    assert Counted.computed == 3


def test_nobody_can_write_to_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        get(tmp_path)[0, 0] = 1.0


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "pickle"])
def test_a_damaged_file_is_not_believed(harm: str, tmp_path: Path) -> None:
    right = get(tmp_path).copy()
    [file] = tmp_path.glob("*.C.npy")
    content = file.read_bytes()
    if harm == "pickle":
        np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    else:
        harmed = {"flip": content[:-1] + bytes([content[-1] ^ 1]), "cut": content[:-8], "empty": b""}
        file.write_bytes(harmed[harm])
    assert np.array_equal(get(tmp_path), right)


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert np.array_equal(get(tmp_path / "file" / "below"), get(tmp_path))


def test_a_changed_reference_is_computed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "operator.py"
    source.write_text("# one way")
    monkeypatch.setattr(sys.modules[__name__], "__file__", str(source))
    Counted.computed = 0
    get(tmp_path)
    get(tmp_path)
    assert Counted.computed == 1
    other = tmp_path / "again.py"
    other.write_text("# another way")
    monkeypatch.setattr(sys.modules[__name__], "__file__", str(other))
    get(tmp_path)
    assert Counted.computed == 2
