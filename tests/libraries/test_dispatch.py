"""Untuned shapes: what a library measures on request."""

from __future__ import annotations

import ctypes
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import deepgen as dg
from deepgen import generators, targets
from deepgen.frontends.cli.main import main
from deepgen.kernels import Generator
from deepgen.libraries import Choice, Library, first_use, racing
from deepgen.libraries.c import export
from deepgen.libraries.entry import Rival, Times
from deepgen.libraries.first_use import time_chosen
from deepgen.run.measure.base import Contender
from deepgen.vocabulary import BadInput, Kernel, Measurement, Missing, Verdict

UNSEEN = dg.gemm(52, 70, 33)
CPU = targets.resolve("cpu")


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here depends on exact times."""
    monkeypatch.setattr("deepgen.libraries.racing._ROUNDS", 3)


def ours_is_behind(library: Library) -> None:
    """Make numpy appear ten times as fast at every tuned shape."""
    for entry in library.list():
        fast = {name: Rival(entry.seconds / 10, 0.1, (0.09, 0.11)) for name in entry.timed[0].baselines}
        behind = replace(entry, timed=(replace(entry.timed[0], baselines=fast),))
        (library.path_of(entry) / "about.json").write_text(json.dumps(behind.to_json()))
    library.reload()


@pytest.mark.slow
def test_the_first_use_of_a_shape_is_measured_and_kept(library: Library) -> None:
    ours_is_behind(library)
    assert library.choose(UNSEEN, "cpu").how == "vendor", "as predicted"
    measuring = dg.library(library.folder, dispatch="measure")
    choice = measuring.choose(UNSEEN, "cpu")
    [times] = dg.library(library.folder).content().times
    assert times.operator == UNSEEN and "numpy" in times.baselines
    entries = [entry for entry in library.list() if entry.operator.name == "gemm"]
    assert len(entries) == 2 and {entry.kernel_id for entry in entries} <= set(times.kernels)
    made = [entry.kernel_id for entry in dg.library(library.folder).list() if entry.operator == UNSEEN]
    assert set(times.kernels) == {*made, *(entry.kernel_id for entry in entries)}
    assert made in ([], [min(times.kernels, key=times.kernels.__getitem__)]), "kept where it is the fastest"
    best = min({**times.kernels, **times.baselines}.items(), key=lambda row: row[1])
    assert choice.seconds == best[1] and "measured at this shape" in choice.reason
    assert (choice.how == "exact") == (best[0] in times.kernels)
    assert library.choose(UNSEEN, "cpu").how == "vendor", "a library that is open reads its folder once"
    assert dg.library(library.folder).choose(UNSEEN, "cpu").seconds == best[1], "and another process measures nothing"


@pytest.mark.slow
def test_times_are_known_where_the_folder_cannot_be_written(library: Library) -> None:
    measuring = dg.library(library.folder, dispatch="measure")
    with library.store.changing():
        assert "measured at this shape" in measuring.choose(UNSEEN, "cpu").reason
    assert not dg.library(library.folder).content().times
    measuring.reload()
    assert len(measuring.content().times) == 1


def test_kernels_that_fail_at_a_shape_do_not_serve_it(library: Library) -> None:
    entry = next(e for e in library.list() if e.operator.name == "gemm")
    with library.store.changing():
        library.store.write_times(Times(UNSEEN, *entry.conditions, {}, {"numpy": 1e-6}))
    library.reload()
    choice = library.choose(UNSEEN, "cpu")
    assert (choice.how, choice.vendor) == ("vendor", "numpy")
    assert "it failed when it was timed at this shape" in choice.reason


def test_nothing_is_measured_where_nothing_serves(library: Library) -> None:
    measuring = dg.library(library.folder, dispatch="measure")
    assert measuring.choose(dg.gemm(64, 64, 64, dtype="f8e4m3"), "cpu").how == "none"
    assert not measuring.content().times


def test_another_word_for_dispatch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="dispatch is 'guess'"):
        dg.library(tmp_path, dispatch="guess")


@pytest.mark.slow
def test_why_can_measure_first(library: Library, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["library", "why", "gemm", "M=52", "N=70", "K=33", "--target", "cpu", "--library", str(library.folder)]
    assert main([*words, "--measure"]) == 0
    assert "measured at this shape" in capsys.readouterr().out
    a, b = np.ones((52, 33), np.float32), np.ones((33, 70), np.float32)
    choice = dg.library(library.folder).choose(UNSEEN, "cpu")
    assert choice.entry is None or (choice.load()(a, b) == 33).all()


def serves_one_row_only(library: Library) -> None:
    """Make all tuned kernels serve only a single row."""
    for entry in [e for e in library.list() if e.operator.name == "gemm"]:
        few = replace(entry, requires=(("M == 1", "a single row"),))
        (library.path_of(entry) / "about.json").write_text(json.dumps(few.to_json()))
    library.reload()


@pytest.mark.slow
def test_what_is_made_for_a_shape_is_raced_and_kept_where_it_is_the_fastest(library: Library, tmp_path: Path) -> None:
    serves_one_row_only(library)
    assert library.choose(UNSEEN, "cpu").entry is None
    choice = dg.library(library.folder, dispatch="measure").choose(UNSEEN, "cpu", ())
    later = dg.library(library.folder)
    [entry] = [e for e in later.list() if e.operator == UNSEEN]
    assert choice.how == "exact" and choice.entry is not None and choice.entry.name == entry.name
    assert entry.provenance["origin"] == "made for the shape, measured at first use"
    assert entry.timed[0].baselines["numpy"].ratio, "it was timed beside the vendor's library"
    a, b = np.ones((52, 33), np.float32), np.ones((33, 70), np.float32)
    assert (later.choose(UNSEEN, "cpu", ()).load()(a, b) == 33).all(), "another process has it"
    assert "not verified at any other shape" in str(entry.serves(dg.gemm(52, 70, 34)))
    assert all(entry.name != row.name for row in later.prune(dry_run=True))
    [times] = later.content().times
    with later.store.changing():
        later.store.write_times(replace(times, baselines={"numpy": 1.0}))  # regardless of which was faster
    later.reload()
    made = export(later, tmp_path / "out")
    assert (made.folder / "lib" / made.name / f"{entry.name}.so").exists()
    assert ctypes.CDLL(str(made.library)).deepgen_gemm_f32_nn_served(*map(ctypes.c_int64, (52, 70, 33))) == 0


def test_without_a_compiler_nothing_is_made(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object, **named: object) -> None:
        raise Missing("a C compiler", blocks="building kernels", remedy="install gcc")

    monkeypatch.setattr("deepgen.libraries.first_use.build_once", missing)
    choice = dg.library(library.folder, dispatch="measure").choose(UNSEEN, "cpu")
    assert choice.measured and "no kernel was made for it" in choice.reason and "install gcc" in choice.reason
    assert "install gcc" in dg.library(library.folder).why(UNSEEN, "cpu"), "as kept"


@pytest.mark.slow
def test_a_kernel_made_for_a_shape_that_is_wrong_does_not_serve(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = type(generators.find(UNSEEN, CPU))
    emit = family.emit

    def with_relu(self: Generator, operator: dg.Gemm, *args: Any) -> Kernel:
        """Ends with a relu that the operator does not have."""
        return emit(self, replace(operator, activation="relu"), *args)

    monkeypatch.setattr(family, "emit", with_relu)
    serves_one_row_only(library)
    choice = dg.library(library.folder, dispatch="measure").choose(UNSEEN, "cpu")
    assert choice.entry is None and choice.measured and "should be" in choice.reason
    assert all(entry.operator != UNSEEN for entry in dg.library(library.folder).list())


def rank_some(monkeypatch: pytest.MonkeyPatch, count: int) -> list[Mapping[str, Any]]:
    """Make the family rank more than one config."""
    family = generators.find(UNSEEN, CPU)
    ranked = [family.default(UNSEEN, CPU), *family.space(UNSEEN, CPU).neighbors(family.default(UNSEEN, CPU))][:count]
    monkeypatch.setattr(type(family), "ranked", lambda self, operator, target: iter(ranked), raising=False)
    return ranked


def test_all_that_a_family_ranks_is_made_and_raced(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    ranked = rank_some(monkeypatch, 3)
    monkeypatch.setattr(first_use, "_VARIED", 2)
    raced = time_chosen(library, library.choose(UNSEEN, "cpu"))
    assert raced is not None and raced.times.not_made is None
    tried = [dict(one.config) for one, _ in raced.tried]
    assert tried[:3] == ranked and 3 < len(tried) <= 3 + 3 * 2, "and variants of the fastest"
    fastest = min(at.seconds for _, at in raced.tried if at.ok and at.seconds)
    if raced.fastest is not None:
        assert raced.times.kernels[raced.fastest[0].kernel_id] == min(raced.times.kernels.values()) == fastest


def test_where_the_fastest_is_wrong_on_other_inputs_the_next_serves(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_some(monkeypatch, 2)
    monkeypatch.setattr(first_use, "varied_candidates", lambda best, known: [])
    serves_one_row_only(library)
    words = iter(["wrong on large inputs"])
    asked: list[str] = []

    def first_wrong(runner: object, task: object, contender: Contender) -> str | None:
        asked.append(contender.name)
        return next(words, None)

    monkeypatch.setattr("deepgen.libraries.first_use.first_wrong", first_wrong)
    raced = time_chosen(library, library.choose(UNSEEN, "cpu"))
    assert raced is not None and raced.fastest is not None and len(asked) == 2
    assert raced.fastest[0].kernel_id == asked[1] and list(raced.times.kernels) == [asked[1]]


def test_where_a_vendor_is_faster_within_the_noise_ours_serves(library: Library) -> None:
    entry = next(e for e in library.list() if e.operator.name == "gemm")

    def told(*ties: str) -> Choice:
        with library.store.changing():
            library.store.write_times(Times(UNSEEN, *entry.conditions, {entry.kernel_id: 1.01}, {"numpy": 1.0}, ties))
        library.reload()
        return library.choose(UNSEEN, "cpu", ("numpy",))

    assert told().how == "vendor"
    level = told("numpy")
    assert level.entry == entry and "equal within noise" in level.reason
    with library.store.changing():  # so noisy that nothing is certain; yet 3 s differ from 1 s
        library.store.write_times(Times(UNSEEN, *entry.conditions, {entry.kernel_id: 1.0}, {"numpy": 3.0}, ("numpy",)))
    library.reload()
    ahead = library.choose(UNSEEN, "cpu", ("numpy",))
    assert ahead.entry == entry and "numpy takes 3 s" in ahead.reason and "noise" not in ahead.reason


def test_an_operator_by_rules_gets_a_kernel_for_its_shape(expressed_ones: Path, tmp_path: Path) -> None:
    """Its kernels serve one shape each: if others are tuned, one is generated at the first use of this shape. Without
    baselines: torch, if installed, would serve it in the meantime.
    """
    folder = shutil.copytree(expressed_ones, tmp_path / "library")
    unseen = dg.operator("mean", rows=3, cols=10)
    unserved = dg.library(folder).choose(unseen, "cpu", ())
    assert unserved.how == "none" and "each support a single shape" in unserved.reason
    assert "mean f32 rows=2 cols=6" in unserved.reason
    choice = dg.library(folder, dispatch="measure").choose(unseen, "cpu", ())
    assert choice.how == "exact"
    x = np.arange(30, dtype=np.float32).reshape(3, 10)
    assert np.allclose(choice.load()(x).ravel(), x.mean(axis=1))
    assert dg.library(folder).choose(unseen, "cpu", ()).how == "exact", "and another process has it"
    other = dg.library(folder).choose(dg.operator("mean", rows=3, cols=10, dtype="f64"), "cpu", ())
    assert other.how == "none" and "at any shape" in other.reason


def test_a_shape_is_measured_once_even_where_the_vendor_won(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = next(e for e in library.list() if e.operator.name == "gemm")
    with library.store.changing():
        library.store.write_times(Times(UNSEEN, *entry.conditions, {entry.kernel_id: 1.0}, {"numpy": 1e-6}))
    monkeypatch.setattr("deepgen.libraries.first_use.time_chosen", lambda *args: pytest.fail("it was measured again"))
    assert dg.library(library.folder, dispatch="measure").choose(UNSEEN, "cpu").how == "vendor"


def test_a_winner_that_is_added_after_its_shape_was_measured_takes_part(library: Library) -> None:
    small, large = [e for e in library.list() if e.operator.name == "gemm"]
    with library.store.changing():
        library.store.write_times(Times(small.operator, *small.conditions, {large.kernel_id: 1.0}, {}))
    library.reload()
    assert library.choose(small.operator, "cpu", ()).entry == small


def test_a_predicted_lead_must_exceed_the_errors_of_predictions(library: Library) -> None:
    """Shapes at which ours is 20% ahead of numpy, as predicted; if leads vary, the same lead may be insufficient."""
    small, large = [e for e in library.list() if e.operator.name == "gemm"]

    def told(*leads: float) -> Choice:
        with library.store.changing():
            for operator, lead in zip((small.operator, large.operator, dg.gemm(60, 60, 40)), leads, strict=True):
                kernels = {entry.kernel_id: float(operator.flops()) for entry in (small, large)}
                rival = {"numpy": lead * operator.flops()}
                library.store.write_times(Times(operator, *small.conditions, kernels, rival))
        library.reload()
        return library.choose(UNSEEN, "cpu", ("numpy",))

    assert told(1.2, 1.2, 1.2).how == "neighbour"
    unsure = told(1.3, 0.5, 1.3)
    assert unsure.how == "vendor" and "numpy may be faster" in unsure.reason and "optimistic by" in unsure.reason


def test_what_is_made_for_one_shape_has_its_sizes_compiled_in() -> None:
    operator, target = dg.gemm(3904, 6144, 1392, dtype="bf16", layout="nt"), targets.resolve("cuda:sm_90a")
    family = generators.find(operator, target)
    config = first_use.sized(family.space(operator, target), family.default(operator, target))
    assert config == {**family.default(operator, target), "FIXED": True}
    assert ("M == 3904", "M = 3904, for which it was made") in family.emit(operator, target, config).requirements


def test_a_slow_start_does_not_cost_a_race_its_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A baseline's framework may take longer to import than all rounds together."""
    now = 0.0

    class Runner:
        def compare(self, contenders: list[Contender], rounds: int, seed: int) -> list[Measurement]:
            nonlocal now
            now += 30.0 if seed == 0 else 0.01 * rounds
            return [Measurement(Verdict.CORRECT, "", (1.0,) * rounds) for _ in contenders]

    monkeypatch.setattr(racing, "_ROUNDS", 20)
    monkeypatch.setattr("deepgen.run.measure.race.time.monotonic", lambda: now)
    [measured] = racing.compared(cast(Any, Runner()), [Contender("kernel")])
    assert len(measured.samples) == 20
