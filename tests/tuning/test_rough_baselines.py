"""A baseline less accurate than a kernel may be is timed and marked as such; a wrong one is rejected."""

from __future__ import annotations

from pathlib import Path

import pytest
from rough_baselines import Rough, TooRough

import deepgen as dg
from deepgen.frontends.cli.result import print_result
from deepgen.run.measure.entrant import ROUGH
from deepgen.tuning.study.finals import Finals
from deepgen.vocabulary import Verdict


def test_it_is_compared_and_said_to_be_less_accurate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = {"trials": 2, "baselines": [Rough, TooRough], "engine": dg.LocalEngine(), "out": tmp_path}
    study = dg.tune(dg.gemm(37, 29, 23), target="cpu", **words)
    finals = study.finals()
    assert finals is not None and Finals.from_json(finals.to_json()) == finals
    [rough], [wrong] = finals.baselines, finals.baselines_lost
    assert rough.name == "rough" and rough.error is not None and 1.0 < rough.error <= ROUGH and rough.ratio
    assert (wrong.name, wrong.verdict) == ("too rough", Verdict.WRONG) and (wrong.error or 0.0) > ROUGH
    print_result(study)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"less accurate, its error is {rough.error:.2g} times the tolerance" in printed
    faster = study.summary()["faster_baseline"]
    assert faster is None, "it is no match"
