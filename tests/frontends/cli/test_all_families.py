"""`--family all`: every family that serves has its own study, and the result says whose kernel is the fastest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deepgen.frontends.cli import requests
from deepgen.frontends.cli.result import print_ranking
from deepgen.operators import gemm
from deepgen.run.measure.base import Policy
from deepgen.settings import Settings


def _wanted(*words: str, **options: str) -> list[Any]:
    given: dict[str, Any] = {**dict.fromkeys(("dtype", "layout", "target", "trials")), **options}
    return requests.from_words(words, given, Settings(), Policy()).requests


def test_every_family_that_serves_has_a_study() -> None:
    wanted = _wanted("gemm", "M=16", "N=4096", "K=4096", dtype="bf16", layout="nt", target="cuda:h200", family="all")
    names = [request.generator.name for request in wanted]
    assert {"skinny_gemm", "sm90_gemm", "mma_gemm"} <= set(names)
    assert len(set(names)) == len(names) and len({request.operator for request in wanted}) == 1


def test_what_is_slower_is_there_for_who_asks() -> None:
    for family in ("x86_amx_gemm", "x86_vector_dot_gemm"):
        (wanted,) = _wanted("gemm", "M=1", "N=512", "K=512", dtype="bf16", layout="nn", target="x86:amx", family=family)
        assert wanted.generator.refuses(wanted.operator, wanted.target) is None


def _study(family: str, seconds: float | None, m: int = 64, *, ahead: bool = False) -> Any:
    winner = None if seconds is None else {"seconds": seconds}
    plan = SimpleNamespace(prepare=("pack",) if ahead else ())
    return SimpleNamespace(
        describe=gemm(m, 64, 64).describe,
        definition={"generator": family},
        summary=lambda: {"winner": winner},
        best=lambda: SimpleNamespace(kernel=SimpleNamespace(plan=plan)),
    )


def test_the_fastest_family_is_told_first(capsys: pytest.CaptureFixture[str]) -> None:
    print_ranking([_study("slow", 2e-3), _study("quick", 1e-3), _study("none", None), _study("alone", 1e-3, m=32)])
    told = capsys.readouterr().out.splitlines()
    assert "64x64x64" in told[0] and [line.split(":")[0] for line in told[1:]] == ["quick", "slow"]


def test_what_packs_ahead_is_not_ranked_with_what_packs_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    print_ranking([_study("packs", 2e-3), _study("ahead", 1e-3, ahead=True), _study("slow", 3e-3)])
    told = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in told[1:]] == ["packs", "slow", "Not comparable with the above", "ahead"]
