"""The harness of the benchmarks: turns, ratios, tables, options, and what a file of results holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
from harness import Deadline, alternate, parser, save, table  # noqa: E402
from harness.cases import draw, shape, shape_text, size, suite  # noqa: E402


def test_every_round_has_all_contenders_and_ratios_are_of_the_same_round() -> None:
    turns: list[str] = []

    def contender(name: str, seconds: float) -> float:
        turns.append(name)
        return seconds * (1 + len(turns) // 2)  # the machine gets slower

    pair = {"old": lambda: contender("old", 2.0), "new": lambda: contender("new", 1.0)}
    taken = alternate(pair, 20, seed=1)
    rounds = [set(turns[i : i + 2]) for i in range(0, len(turns), 2)]
    assert len(rounds) == 21 and all(one == {"old", "new"} for one in rounds), "one more round warms up"
    assert len({tuple(turns[i : i + 2]) for i in range(0, len(turns), 2)}) == 2, "in random order"
    timed = taken.beside("new", "old")
    assert 0.4 < timed.low <= timed.ratio <= timed.high < 0.6 and timed.rounds == 20


def test_a_deadline_ends_the_rounds_but_not_all_of_them() -> None:
    assert len(alternate({"a": lambda: 1.0}, 50, deadline=Deadline(0.0)).of["a"]) == 3


def test_tables_fit_a_page() -> None:
    shown = table(("case", "seconds", "ratio"), [("x" * 200, 1234.5678, 0.98765), ("y", None, 1e-9)])
    assert max(map(len, shown.splitlines())) <= 80 and "…" in shown and "0.9877" in shown


def test_options_choose_cases_and_say_what_there_is() -> None:
    options = parser("About.").options(["--only", "conv", "--seed", "7"])
    assert options.chosen(["gemm", "conv 1", "conv 2"]) == ["conv 1", "conv 2"] and options.seed == 7
    with pytest.raises(SystemExit, match="they are called gemm"):
        options.chosen(["gemm"])


def test_cases_are_drawn_by_a_seed_and_more_begin_with_the_same() -> None:
    few, more = (draw(3, count, lambda chance: size(chance, 16, 4096)) for count in (5, 9))
    assert more[:5] == few and len(set(more)) == 9 and all(16 <= one <= 4096 for one in more)
    assert shape("64b32x16x8") == (64, 32, 16, 8) and shape_text((64, 32, 16, 8)) == "64b32x16x8"
    assert len(suite("gpu")) == 26


def test_results_stand_with_their_conditions(tmp_path: Path) -> None:
    save(tmp_path / "out.json", [Deadline(2.0, 1.0)], target="sim")
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["results"] == [{"seconds": 2.0, "begun": 1.0}] and content["conditions"]["target"] == "sim"
    assert {"date", "hardware", "load", "versions", "command"} <= set(content["conditions"])


@pytest.mark.slow
def test_two_source_trees_are_compared(tmp_path: Path) -> None:
    """The old one does nothing: what a study takes there says nothing more."""
    out, old = tmp_path / "times.json", tmp_path / "old" / "src" / "deepgen"
    old.mkdir(parents=True)
    for name in ("__init__.py", "__main__.py", "settings.py"):
        (old / name).touch()
    words = ["--target", "sim", "--only", "study", "--rounds", "1", "--trials", "3", "--json", str(out)]
    command = [sys.executable, "benchmarks/times_before_after.py", str(tmp_path / "old"), ".", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [row] = json.loads(out.read_text())["results"]
    assert row["seconds"] > 0 and row["low"] <= row["ratio"] <= row["high"] and "new/old" in done.stdout
