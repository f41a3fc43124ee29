"""A study's trials as a table: `export --as-csv`, `--as-perf-stats`, `study.rows()` and `study.table()`."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import deepgen as dg
from deepgen.tuning import Study
from deepgen.tuning.study.text import as_csv, as_perf_stats, trial_row
from deepgen.vocabulary import Measurement, Missing, Trial, Verdict


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    out = tmp_path_factory.mktemp("studies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(out / "config"))  # where the key that signs the winner is
        return dg.tune(dg.gemm(64, 64, 64), target="sim:faults=0.3", trials=12, keep_top=2, out=out / "studies")


def parsed(text: str) -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO(text))]


COUNTED = Trial(
    3, 9, {"BM": 64, "ORDER": ["m", "n", "k"]}, "k3",
    Measurement(Verdict.CORRECT, samples=(2e-3, 1e-3, 4e-3), counters={"l2_miss": 0.0, "cycles": 1e9}),
    {"registers": 96, "entries": {"main": {"spill_bytes": 0}}, "log": ["not", "a", "number"]},
)  # fmt: skip
WRONG = Trial(4, 10, {"BM": 32}, "k4", Measurement(Verdict.WRONG, "C[0] is off,\nby far"), {"registers": 40})


def test_every_trial_is_a_row_whatever_became_of_it(deepgen: Callable, study: Study) -> None:
    said = deepgen("export", str(study.folder), "--as-csv")
    rows = parsed(said.out)
    trials = study.trials()
    assert [row["verdict"] for row in rows] == [str(trial.measurement.verdict) for trial in trials]
    assert {row["verdict"] for row in rows} > {"correct"}
    for row, trial in zip(rows, trials, strict=True):
        assert row["seconds"] == ("" if trial.seconds is None else str(trial.seconds))
        assert all(row[f"knob.{name}"] == str(value) for name, value in trial.config.items())
    finals = study.finals()
    raced = finals.seconds() if finals is not None else {}
    assert {int(row["trial"]): float(row["finals_seconds"]) for row in rows if row["finals_seconds"]} == raced


def test_a_table_goes_to_a_file_too(deepgen: Callable, project: Path, study: Study) -> None:
    shown = deepgen("export", str(study.folder), "--as-csv").out
    said = deepgen("export", str(study.folder), "--as-csv", "-o", "trials.csv", "--json")
    assert said.json()["file"] == "trials.csv" and (project / "trials.csv").read_text() == shown
    said = deepgen("export", str(study.folder), "--as-csv", "--json")
    assert said.code == 2 and "-o FILE" in said.err
    assert deepgen("export", str(study.folder), "--as-csv", "--as-space").code == 2


def test_what_is_not_known_is_absent_and_never_0() -> None:
    rows = [trial_row(COUNTED, 1.5e9, 1.9e-3), trial_row(WRONG, None, None)]
    assert rows[0]["event.l2_miss"] == 0.0 and "event.l2_miss" not in rows[1]
    assert rows[0]["knob.ORDER"] == "m-n-k" and rows[0]["fact.entries.main.spill_bytes"] == 0
    counted, wrong = parsed(as_csv(rows))
    assert (counted["seconds"], counted["seconds_min"], counted["seconds_max"]) == ("0.002", "0.001", "0.004")
    assert (wrong["event.l2_miss"], wrong["seconds"], wrong["knob.ORDER"]) == ("", "", "")
    assert wrong["detail"] == WRONG.measurement.detail and wrong["fact.registers"] == "40"


def test_the_older_tools_columns() -> None:
    rows = [trial_row(COUNTED, 1.5e9, None), trial_row(WRONG, 1e30, None)]
    counted, wrong = parsed(as_perf_stats(rows))
    assert [*counted][:7] == [
        "Timestamp", "ELF Name", "BM", "ORDER", "Valid Output", "Kernel Time (s)", "Total Time (s)",
    ]  # fmt: skip
    assert (counted["Valid Output"], wrong["Valid Output"]) == ("YES", "NO")
    assert float(counted["Kernel Time (s)"]) == 2e-3
    assert (counted["u_mode_cycle"], counted["l2_miss(perf record)"]) == ("1000000000", "0")
    assert counted["vector_inst"] == wrong["u_mode_cycle"] == wrong["Timestamp"] == "N/A"


def test_perf_stats_of_a_study(deepgen: Callable, study: Study) -> None:
    rows = parsed(deepgen("export", str(study.folder), "--as-perf-stats").out)
    assert len(rows) == 12 and {row["Valid Output"] for row in rows} == {"YES", "NO"}


def test_a_data_frame_or_what_to_install(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    frame = study.table()
    assert len(frame) == 12 and frame.loc[study.best().trial.id, "verdict"] == "correct"
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(Missing, match=r"pandas is missing.*\[analysis\]"):
        study.table()
