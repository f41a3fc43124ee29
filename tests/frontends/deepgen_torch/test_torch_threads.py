"""Kernels in a torch process run on torch's threads: additional threads would compete for the cores."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import deepgen.torch as dt  # noqa: E402
from deepgen import generators  # noqa: E402
from deepgen.frontends.torch import race, routes  # noqa: E402
from deepgen.operators import Operator  # noqa: E402
from deepgen.run.call.loaded import load  # noqa: E402
from deepgen.run.call.native import torchs_threads  # noqa: E402
from deepgen.targets import Target  # noqa: E402
from deepgen.vocabulary.measurement import KEPT, Properties  # noqa: E402

_ON_THREADS = {"PARTITION": "n", "TASKS": 2, "THREADS": 4}


class Threaded:
    """A library with one four-thread kernel."""

    def choose(self, operator: Operator, target: Target, among: tuple[str, ...]) -> Any:
        def kernel() -> Any:
            family = generators.by_name("c_gemm")
            config = {**family.default(operator, target), **_ON_THREADS}
            return load(family.emit(operator, target, config), operator, target)

        entry = SimpleNamespace(config=_ON_THREADS, properties=Properties(KEPT, KEPT, KEPT))
        return SimpleNamespace(entry=entry, seconds=1e-3, considered=[], reason="", load=kernel)


def call() -> None:
    numbers = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=numbers) for _ in range(2))
    torch.testing.assert_close(torch.mm(a, b), torch.einsum("ik,kj->ij", a, b), atol=1e-3, rtol=1e-3)


@pytest.mark.skipif(torchs_threads() is None, reason="this torch has no OpenMP")
def test_a_kernel_in_torch_starts_no_threads_of_its_own() -> None:
    with torch.no_grad():
        torch.rand(1 << 20).exp_()  # torch's threads exist now
        before = len([*Path("/proc/self/task").iterdir()])
        with dt.use(Threaded(), race=False) as used:
            for _ in range(3):
                call()
        assert len([*Path("/proc/self/task").iterdir()]) <= before
    assert used.met[0].ours and used.met[0].calls.served


def test_where_threads_cannot_be_lent_a_race_counts_what_they_cost_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    raced: list[str] = []
    answer = race.TorchRace(1.0, 2.0, True)
    monkeypatch.setattr(routes, "race", lambda *_: raced.append("race") or answer)
    monkeypatch.setattr(routes, "race_for_cores", lambda *_: raced.append("for cores") or answer)
    monkeypatch.setattr(race, "several", lambda: True)
    for lent in (True, False):
        monkeypatch.setattr(routes, "lend", lambda kernel, lent=lent: lent)
        with torch.no_grad(), dt.use(Threaded()):
            call()
    assert raced == ["race", "for cores"]
