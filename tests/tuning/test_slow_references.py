"""A user's slow reference: computed once, and a budget ends with what could be verified in time."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pool.emulated import emulated
from pool.runner import Place

import deepgen as dg
from deepgen.kernels.own import OwnKernel
from deepgen.operators import record
from deepgen.run.measure import handed
from deepgen.targets import host, resolve
from deepgen.toolchains import Cache
from deepgen.tuning.finals.plan import no_time
from deepgen.tuning.progress import Clock
from deepgen.vocabulary import DeepgenError
from needs import toolchain

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
BUDGET = 12.0  # seconds; the machine may be shared
TEXT = "{entry} twice(float *y, const float *x, int n) {{\n    for (int i = 0; i < n; i++) y[i] = FACTOR * x[i];\n}}\n"


class Slow:
    """Doubles its argument and counts its calls by argument. From the third call on it does something else first."""

    def __init__(self, first: Callable[[], object]) -> None:
        self.calls: Counter[bytes] = Counter()
        self._first, self._lock = first, threading.Lock()

    def __call__(self, x: Any) -> Any:
        with self._lock:
            self.calls[np.asarray(x).tobytes()] += 1
            call = self.calls.total()
        if call > 2:  # two sets of inputs alternate
            self._first()
        return 2 * x


def twice(reference: Any, language: str = "c") -> OwnKernel:
    entry = "ENTRY" if language == "cuda" else "void"
    gpu: dict[str, Any] = {"grid": 1, "block": 1} if language == "cuda" else {}
    return dg.kernel(
        TEXT.format(entry=entry),
        language=language,
        entry="twice",
        arguments=[dg.output("y", "n", "f32"), dg.input("x", "n", "f32"), dg.scalar("n", "i32")],
        sizes={"n": 500},
        knobs={"FACTOR": ["2", "2.0f", "2.0"]},
        reference=reference,
        tolerance=(1e-6, 1e-6),  # so that it is called once for each set of inputs
        **gpu,
    )


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    toolchain(resolve("cuda:sm_90a"), "cuda")
    with emulated(tmp_path_factory.mktemp("gpu")) as place:
        yield place


@pytest.fixture(scope="module")
def cache(shared_cache: Path) -> Path:
    return shared_cache / "deepgen"


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))


def tuned(kernel: OwnKernel, target: str, out: Path, cache: Path, **words: Any) -> dg.Study:
    engine = dg.LocalEngine(jobs=2, cache=cache)
    return dg.tune(kernel.operator(), target=target, out=out, engine=engine, baselines=False, **words)


def test_on_a_gpu_the_first_kernel_waits_for_its_own_inputs_alone(
    gpu: Place, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With idle cores all sets of inputs are computed ahead: here none ends before that kernel was measured."""
    monkeypatch.setattr(host, "usable_cores", lambda: 16)
    measured = threading.Event()
    in_time: list[bool] = []
    reference = Slow(lambda: in_time.append(measured.wait(60)))

    def watch(progress: Any) -> None:
        if progress.done:
            measured.set()

    study = tuned(twice(reference, "cuda"), gpu.target, tmp_path, cache, watch=watch)
    assert study.finals().winner is not None and all(in_time)  # type: ignore[union-attr]
    assert in_time and set(reference.calls.values()) == {1}


def test_a_budget_ends_with_what_could_be_verified(tmp_path: Path, cache: Path) -> None:
    """References for the finals' inputs take longer than the budget."""
    reference = Slow(lambda: time.sleep(600))
    study = tuned(twice(reference), "cpu", tmp_path, cache, time_budget=BUDGET)
    finals = study.finals()
    assert finals is not None and finals.winner is not None and finals.finalists[0].default
    assert "all sets of other inputs" in finals.left_out and any("other shape" in text for text in finals.left_out)
    assert finals.serves is not None and finals.serves.only == ({"n": 500},)
    assert set(reference.calls.values()) == {1}


def test_where_not_even_the_first_fits_it_is_said_what_would_do(tmp_path: Path, cache: Path) -> None:
    kernel = twice(lambda x: time.sleep(600))
    with pytest.raises(DeepgenError, match=r"the reference took more than \d.* s .*; set it to at least \d+ seconds"):
        tuned(kernel, "cpu", tmp_path, cache, time_budget=2.0)


def test_what_would_do_is_more_than_there_was() -> None:
    clock = Clock(10.0, started=time.monotonic() - 10.0)
    assert "increase the budget" in no_time(clock) and "reference" not in no_time(clock, 0.1)
    for seconds, ended in ((9.0, True), (9.0, False)):
        words = no_time(clock, seconds, ended)
        assert "9.0 s" in words and int(words.split()[-2]) > 20 and ("at least" in words) is not ended


def test_what_took_long_is_kept_for_other_runs_by_what_it_was_computed_from(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, pack, computed = Cache(tmp_path / "kept"), handed._pack, []
    monkeypatch.setattr(handed, "_SLOW_SECONDS", 0.0)
    monkeypatch.setattr(handed, "_pack", lambda *words: (computed.append(words), time.sleep(0.05), pack(*words)))

    def handing(folder: str, factor: int, n: int = 500) -> list[float]:
        place = tmp_path / folder
        place.mkdir()
        operator = twice(lambda x: x * factor).operator(n=n)
        handed.Handing(place, kept).now(operator, 0, "normal")
        while len([*kept.folder.glob("??/*")]) < len(computed):
            time.sleep(0.01)  # it is stored while others are still running
        inputs, answers = handed.read(record(operator), 0, "normal", place)
        return (answers["y"].values / inputs["x"]).tolist()  # type: ignore[no-any-return]

    assert set(handing("first", 2)) == {2.0} and len(computed) == 1
    assert set(handing("again", 2)) == {2.0} and len(computed) == 1
    assert set(handing("another", 4)) == {4.0} and len(computed) == 2
    assert len(handing("larger", 2, 600)) == 600 and len(computed) == 3
