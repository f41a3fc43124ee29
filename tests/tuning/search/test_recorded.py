from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from recordings import made_up

from deepgen.tuning.search.recorded import RecordedSpace, from_trials, read
from deepgen.vocabulary import BadInput, Verdict


def test_a_recording_gives_its_configs_times_and_failures(recording: Path) -> None:
    recorded = read(recording)
    cache = made_up()["cache"]
    assert recorded.space.count() == len(cache)
    fast = min((r for r in cache.values() if not isinstance(r["time"], str)), key=lambda r: r["time"])
    config = {k: v for k, v in fast.items() if k != "time"}
    assert recorded.measure(config).seconds == pytest.approx(fast["time"] * 1e-3)
    assert recorded.best == pytest.approx(fast["time"] * 1e-3)
    broken = next(r for r in cache.values() if isinstance(r["time"], str))
    assert recorded.measure(broken).verdict is Verdict.CRASHED


def test_packed_recordings_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "packed.json.gz"
    path.write_bytes(gzip.compress(json.dumps(made_up()).encode()))
    assert read(path).name == "packed"


def test_very_long_times_of_older_files_are_failures(tmp_path: Path) -> None:
    data = {"tune_params_keys": ["A"], "cache": {"1": {"A": 1, "time": 1e20}, "2": {"A": 2, "time": 3.0}}}
    path = tmp_path / "old.json"
    path.write_text(json.dumps(data))
    recorded = read(path)
    assert not recorded.measure({"A": 1}).ok
    assert recorded.best == pytest.approx(3e-3)


def test_failures_of_newer_caches_stand_under_a_key_of_their_own(tmp_path: Path) -> None:
    cache = {"1": {"A": 1, "__error__": "CompilationFailedConfig"}, "2": {"A": 2, "time": 3.0}}
    path = tmp_path / "new.json"
    path.write_text(json.dumps({"tune_params_keys": ["A"], "cache": cache}))
    assert read(path).measure({"A": 1}).verdict is Verdict.BUILD_FAILED


def test_t4_files_are_recordings(tmp_path: Path) -> None:
    measured = {"measurements": [{"name": "time", "value": 3.0, "unit": "ms"}], "objectives": ["time"]}
    rows = [
        {"configuration": {"A": 1}, "times": {}, "invalidity": "correct", "correctness": 1, **measured},
        {"configuration": {"A": 2}, "times": {}, "invalidity": "correctness", "correctness": 0},
        {"configuration": {"A": 3}, "times": {}, "invalidity": "constraints", "correctness": 1},
    ]
    path = tmp_path / "t4.json"
    path.write_text(json.dumps({"schema_version": "1.0.0", "results": rows}))
    recorded = read(path)
    assert recorded.best == pytest.approx(3e-3)
    assert recorded.measure({"A": 2}).verdict is Verdict.WRONG and recorded.measure({"A": 3}).verdict is Verdict.REFUSED


def test_a_knob_that_a_config_does_not_have_is_recorded_as_null(tmp_path: Path) -> None:
    cache = {"1": {"A": 1, "B": None, "time": 2.0}, "2": {"A": 2, "B": 8, "time": 3.0}}
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({"tune_params_keys": ["A", "B"], "cache": cache}))
    recorded = read(path)
    assert {frozenset(c) for c in map(recorded.space.at, range(2))} == {frozenset("A"), frozenset("AB")}
    assert recorded.measure({"A": 1}).seconds == pytest.approx(2e-3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"cache": {}}',
        '{"tune_params_keys": ["A"], "cache": {"1": {}}}',
        '{"results": [{"configuration": {"A": 1}}]}',
    ],
)
def test_what_is_no_recording_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"odd\.json"):
        read(path)


def test_a_missing_file_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nothing"):
        read(tmp_path / "nothing.json")


def test_the_trials_of_a_study_are_a_recording(recorded: RecordedSpace) -> None:
    some = list(recorded.past.trials)[:50]
    again = from_trials("study", some)
    assert again.space.count() == 50
    assert again.measure(some[7].config) == some[7].measurement
