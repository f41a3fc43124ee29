"""A kernel family and a number of threads can be chosen for every command that tunes, builds or shows something."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import deepgen as dg
from deepgen.frontends.cli import requests
from deepgen.run.measure.base import Policy
from deepgen.settings import Settings

FILE = """operator = "gemm"
shapes = [{ MNK = 64 }]
target = "cpu"
"""


def _requests(file: Path, **options: object) -> list:
    given = {**dict.fromkeys(("target", "trials")), **options}
    return requests.from_words([str(file)], given, Settings(), Policy()).requests


def test_a_config_file_names_them(tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text(FILE + 'family = "c_gemm"\nthreads = 1\n')
    (request,) = _requests(file)
    assert request.generator.name == "c_gemm"
    assert request.policy.threads == 1 and request.domains["THREADS"] == [1]


def test_an_option_comes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text(FILE + 'family = "sim_tiles"\n')
    (request,) = _requests(file, family="c_gemm")
    assert request.generator.name == "c_gemm"


def test_knobs_of_a_file_are_those_of_its_family(tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text(FILE + 'family = "c_gemm"\n[knobs]\nTHREADS = [1]\n')
    assert _requests(file)[0].domains["THREADS"] == [1]
    file.write_text(FILE + 'family = "c_gemm"\n[knobs]\nBLOCK_Q = [1]\n')
    with pytest.raises(dg.BadInput, match="BLOCK_Q"):
        _requests(file)


@pytest.mark.parametrize("line", ['family = "nobody"', "family = 3", "threads = 0", 'threads = "two"'])
def test_a_mistake_is_named_with_its_file(tmp_path: Path, line: str) -> None:
    file = tmp_path / "one.toml"
    file.write_text(FILE + line + "\n")
    with pytest.raises(dg.BadInput, match=f"one.toml: {line.split(maxsplit=1)[0]}"):
        _requests(file)


def test_python_takes_both(tmp_path: Path) -> None:
    study = dg.tune(
        dg.gemm(32, 32, 32), target="cpu", family="c_gemm", threads=1, trials=1, baselines=False, out=tmp_path
    )
    assert study.definition["generator"] == "c_gemm" and study.definition["policy"]["threads"] == 1
    assert study.best().trial.config["THREADS"] == 1


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"family": "nobody"}, "unknown kernel family 'nobody'"),
        ({"family": "simt_gemm"}, "simt_gemm does not support"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": True}, "threads is True"),
        ({"family": "c_gemm", "generator": object()}, "both given"),
    ],
)
def test_python_says_what_is_wrong(tmp_path: Path, given: dict, match: str) -> None:
    with pytest.raises(dg.BadInput, match=match):
        dg.tune(dg.gemm(32, 32, 32), target="cpu", trials=1, out=tmp_path, **given)
    assert not [*tmp_path.iterdir()]


def test_build_and_space_take_both(deepgen: Callable, project: Path) -> None:
    chosen = ("gemm", "MNK=64", "--target", "cpu", "--family", "c_gemm", "--threads", "1")
    about = deepgen("space", *chosen, "--json").json()
    assert [knob["values"] for knob in about["knobs"] if knob["name"] == "THREADS"] == [[1]]
    said = deepgen("build", *chosen, "-o", "built")
    assert said.code == 0, said.err
    built = json.loads((project / "built" / "build.json").read_text())
    assert built["generator"] == "c_gemm" and built["config"]["THREADS"] == 1
    assert deepgen("build", *chosen[:5], "nobody", "-o", "other").code == 2
