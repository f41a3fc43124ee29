"""A study of a user's own code is found again anywhere, runs no other code, and detects changes of its kernels."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import own_code
import preloaded
import pytest
from preloaded import deepgen

import deepgen as dg
from deepgen.operators import Gemm
from deepgen.tuning import Study
from deepgen.tuning.study import trust
from deepgen.vocabulary import BadInput, DeepgenError
from deepgen.vocabulary.code_digest import code_digest


def tuned(folder: Path, trials: int = 24, more: str = "") -> Path:
    """A study tuned in a separate process."""
    script = own_code.RUN.format(folder=str(folder), trials=trials, out=str(folder / "studies"), more=more)
    done = preloaded.python(script)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def test_a_new_process_reads_and_goes_on_with_it(tmp_path: Path) -> None:
    own_code.write(tmp_path)
    folder = tuned(tmp_path)
    (tmp_path / "own.py").unlink()  # the study has a copy
    assert folder.joinpath("code", "own.py").is_file()
    done = deepgen("resume", str(folder), "--trials", "30", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"] == {"correct": 30}
    study = Study.open(folder)
    assert study.operator.to_json() == {"name": "twice", "n": 1000}
    assert study.kernel(study.best().trial).id == study.best().trial.kernel_id


def test_a_strategy_of_ones_own_is_found_again(tmp_path: Path) -> None:
    own_code.write(tmp_path)
    folder = tuned(tmp_path, more=", strategy=own.Backwards")
    (tmp_path / "own.py").unlink()
    done = deepgen("resume", str(folder), "--trials", "30", "--json")
    assert done.returncode == 0, done.stderr
    study = Study.open(folder)
    ranks = [trial.rank for trial in study.trials()]
    assert study.definition["strategy"] == "Backwards" and ranks == sorted(ranks, reverse=True) and len(ranks) == 30


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        (len, "is not a strategy"),
        (type("model", (), {"OPTIONS": {}}), "deepgen already has one called that"),
        ("nope", "nope"),
    ],
)
def test_what_is_no_strategy_is_refused(strategy: object, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        dg.tune(dg.gemm(8, 8, 8), target="sim", strategy=strategy)  # type: ignore[arg-type]


def test_looking_at_a_study_imports_none_of_its_code(tmp_path: Path) -> None:
    own_code.write(tmp_path)
    folder = tuned(tmp_path)
    (folder / "code" / "own.py").write_text("raise SystemExit('it ran')")
    for words in (("status", str(folder)), ("top", str(folder)), ("show", str(folder))):
        done = deepgen(*words)
        assert done.returncode == 0, done.stderr
        assert "twice f32 n=1000" in done.stdout


def test_changed_and_missing_code_is_told_in_a_sentence(tmp_path: Path) -> None:
    own_code.write(tmp_path)
    folder = tuned(tmp_path)
    (folder / "code" / "own.py").write_text("raise SystemExit('it ran')")
    done = deepgen("resume", str(folder), "--trials", "30")
    assert done.returncode == 2 and "own.py has changed since the study was started" in done.stderr
    (folder / "code" / "own.py").unlink()
    done = deepgen("resume", str(folder), "--trials", "30")
    assert done.returncode == 2 and "own.py is missing" in done.stderr


def test_code_of_somebody_else_runs_only_when_it_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_code.write(tmp_path)
    folder = tuned(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    with pytest.raises(trust.Untrusted, match=r"own.py:Twice that this user's deepgen did not write.*--trust"):
        _ = Study.open(folder).operator
    assert Study.open(folder, trust=True).operator.to_json() == {"name": "twice", "n": 1000}


def test_a_comment_changes_no_kernel_and_the_study_goes_on(tmp_path: Path) -> None:
    own_code.write(tmp_path)
    folder = tuned(tmp_path)
    own_code.write(tmp_path, comment="# only a comment\n")
    assert tuned(tmp_path, trials=28) == folder
    assert len(Study.open(folder).trials()) == 28


def test_other_kernels_make_a_new_study_that_learns_from_the_old_one(tmp_path: Path) -> None:
    own_code.write(tmp_path)
    folder = tuned(tmp_path)
    own_code.write(tmp_path, version=2)
    after = tuned(tmp_path)
    assert after != folder and after.name.startswith(folder.name)
    notes = " ".join(text for _, text in Study.open(after).notes())
    assert f"no longer emits the kernels that {folder.name} measured" in notes
    assert f"the search starts from the results of earlier studies: {folder.name}" in notes
    assert tuned(tmp_path) == after  # and the next run continues with it
    assert len(Study.open(folder).trials()) == 24, "the old one is as it was"
    own_code.write(tmp_path, version=1)
    assert tuned(tmp_path, trials=26) == folder, "as soon as the kernels are its own again, it goes on"


def test_objects_that_no_file_holds_are_asked_for(tmp_path: Path) -> None:
    own_code.write(tmp_path)
    text = (tmp_path / "own.py").read_text()
    run = "\nimport deepgen as dg\nprint(dg.tune(Twice(9), target='sim', generator=Family(), trials=4).folder)"
    done = subprocess.run([sys.executable, "-c", text + run], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    study = Study.open(tmp_path / done.stdout.strip())
    assert study.about.describe() == "twice f32 n=9"
    with pytest.raises(BadInput, match=r"whose code is not available.*operator="):
        _ = study.operator
    with pytest.raises(BadInput, match="generator="):
        _ = study.generator


def test_the_key_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    signature = trust.sign({"a": 1})
    key = tmp_path / "config" / "deepgen" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert trust.is_own({"a": 1}, signature)
    assert not trust.is_own({"a": 2}, signature) and not trust.is_own({"a": 1}, None)
    assert not trust.is_own({"a": 1}, "0" * 64)
    key.chmod(0o644)
    trust._read_or_make.cache_clear()
    with pytest.raises(DeepgenError, match="chmod 600"):
        trust.sign({"a": 1})


def test_without_a_place_for_a_key_nothing_is_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert trust.sign({"a": 1}) is None
    assert not trust.is_own({"a": 1}, "0" * 64)


def test_another_reference_begins_a_new_study_and_says_so(tmp_path: Path) -> None:
    own_code.write(tmp_path)
    folder = tuned(tmp_path)
    path = tmp_path / "own.py"
    mended = path.read_text().replace("Answer(2.0 *", "Answer(2.5 *")
    own_code.write_text(tmp_path, mended)
    after = tuned(tmp_path)
    assert after != folder and after.name.startswith(folder.name)
    notes = " ".join(text for _, text in Study.open(after).notes())
    assert f"reference of twice f32 n=1000 changed since {folder.name} was verified" in notes
    assert "earlier studies" not in notes, "what another reference called wrong may be right"
    own_code.write_text(tmp_path, "# a comment\n" + mended)
    assert tuned(tmp_path, trials=26) == after, "a comment is no other reference"
    own_code.write(tmp_path)
    assert tuned(tmp_path, trials=26) == folder


@pytest.mark.parametrize(
    "method",
    [
        "signature",
        "reference",
        "reference_at",
        "answer_of",
        "tolerance",
        "tolerance_on",
        "inputs",
        "changeable",
        "probes",
        "float_probes",
        "neighbours",
        "variants",
    ],
)
def test_each_method_that_decides_what_is_right_is_part_of_a_study(method: str) -> None:
    def digests(number: int) -> dict[str, str]:
        kind = type("Own", (Gemm,), {method: lambda self, *values: number, "__module__": __name__})
        judging = object.__new__(kind).judged_by()
        return {part: code_digest(value, kind) for part, value in judging.items()}

    assert set(digests(1)) == {method} and digests(1) == digests(1) != digests(2)
