"""Reference answers sent to other processes and machines take no more room than their tolerance needs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

import deepgen as dg
from deepgen.operators import Operator, record
from deepgen.run.measure import handed
from deepgen.vocabulary.dtypes import least

SOURCE = "void twice(const float *x, float *y, int n) { for (int i = 0; i < n; i++) y[i] = 2 * x[i]; }"


def _operator(relative: float, factor: float) -> Operator:
    arguments = [dg.input("x", "n", "f32"), dg.output("y", "n", "f32"), dg.scalar("n", "i32")]
    kernel = dg.kernel(
        SOURCE, entry="twice", language="c", arguments=arguments, sizes={"n": 4096}, reference=lambda x: x * factor,
        tolerance=(1e-7, relative),
    )  # fmt: skip
    return kernel.operator()


@pytest.mark.parametrize(("relative", "factor", "bytes_each"), [(1e-5, 2.0, 4), (1e-8, 2.0, 8), (1e-5, 1e39, 8)])
def test_they_are_as_wide_as_the_tolerance_and_their_size_ask_for(
    relative: float, factor: float, bytes_each: int, tmp_path: Path
) -> None:
    operator = _operator(relative, factor)
    handed.hand_over(operator, 0, "normal", tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size < 2 * 4096 * (4 + bytes_each) + 4096, "inputs and answers of two sets"
    inputs, answers = handed.read(record(operator), 0, "normal", tmp_path)
    assert answers["y"].values.dtype == np.float64
    want = inputs["x"].astype(np.float64) * factor
    np.testing.assert_allclose(answers["y"].values, want, rtol=2**-24 if bytes_each == 4 else 1e-15)


def test_numbers_that_a_smaller_format_would_change_stay() -> None:
    for kept in ([1e-40], [1e300], [1.0, 5e-324]):
        assert least(np.array(kept)).dtype == np.float64
    for small in ([0.0, -0.0, 1.5], [np.nan, np.inf, -np.inf], []):
        assert least(np.array(small)).dtype == np.float32
    for numbers, of in (
        ([1, -128], "int8"),
        ([128], "int16"),
        ([1 << 20], "int32"),
        ([1 << 40], "int64"),
        ([], "int8"),
    ):
        assert least(np.array(numbers, np.int64)).dtype == of


def _recorded(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object] = lambda: None) -> list[tuple[int, str]]:
    """The sets that are computed, in order; `then` is called for each."""
    computed: list[tuple[int, str]] = []
    pack = handed._pack

    def recording(operator: Operator, seed: int, probe: str, file: BinaryIO) -> None:
        computed.append((seed, probe))
        then()
        pack(operator, seed, probe, file)

    monkeypatch.setattr(handed, "_pack", recording)
    return computed


def test_sets_are_computed_ahead_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = _recorded(monkeypatch)
    operator, handing = _operator(1e-5, 2.0), handed.Handing(tmp_path)
    handing.ahead(operator, [(0, "normal"), (2, "normal"), (0, "zeros")])
    for seed, probe in ((0, "normal"), (0, "zeros"), (2, "normal"), (0, "normal")):
        handing.now(operator, seed, probe)
        assert (tmp_path / handed.name(operator, seed, probe)).exists()
    assert sorted(computed) == [(0, "normal"), (0, "zeros"), (2, "normal")]


def test_nobody_waits_for_what_is_computed_ahead_but_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Computed sets are available at once, and a requested one is computed next, before the rest."""
    begun, go_on = threading.Event(), threading.Event()
    computed = _recorded(monkeypatch, lambda: (begun.set(), go_on.wait()) if computed[-1][1] == "zeros" else None)
    operator, handing = _operator(1e-5, 2.0), handed.Handing(tmp_path)
    handing.ahead(operator, [(0, "normal"), (0, "zeros"), (2, "normal"), (4, "normal")])
    assert begun.wait(60)
    handing.now(operator, 0, "normal")
    assert computed == [(0, "normal"), (0, "zeros")]
    asking = threading.Thread(target=handing.now, args=(operator, 6, "normal"))
    asking.start()
    while not handing._waiting:
        time.sleep(0.001)
    go_on.set()
    asking.join(60)
    handing.now(operator, 4, "normal")
    assert computed[2] == (6, "normal") and len(set(computed)) == len(computed)


def test_a_file_that_is_not_whole_is_refused_in_words(tmp_path: Path) -> None:
    operator = _operator(1e-5, 2.0)
    handed.hand_over(operator, 0, "normal", tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[:100], whole[: len(whole) // 2], whole[:-5000], b"x" * len(whole), whole[64:]):
        file.write_bytes(damaged)
        with pytest.raises(dg.DeepgenError, match="not passed on completely"):
            handed.read(record(operator), 1, "normal", tmp_path)


def test_what_goes_wrong_ahead_shows_when_it_is_asked_for(tmp_path: Path) -> None:
    operator, handing = _operator(1e-5, "two"), handed.Handing(tmp_path)  # type: ignore[arg-type]
    handing.ahead(operator, [(0, "normal")])
    with pytest.raises(dg.DeepgenError, match="its reference raised"):
        handing.now(operator, 0, "normal")
