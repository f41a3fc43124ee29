"""Studies on the simulated VTA: exact times, verdicts on wrong programs, and the best of a space."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import deepgen as dg
from deepgen import targets
from deepgen.build import build_once
from deepgen.generators.rules.vta.family import VtaRules
from deepgen.generators.rules.vta.program import Gemm, Program
from deepgen.measure import Task, open_runner
from deepgen.measure.vta.timeline import timeline
from deepgen.operators import gemm
from deepgen.targets import Vta
from deepgen.tuning import Study
from deepgen.vocabulary import Source, Verdict

PYNQ = targets.resolve("vta")
assert isinstance(PYNQ, Vta)
PRODUCT = gemm(4, 32, 32, dtype="i8", c="i32", layout="nt")


def test_a_study_ends_with_the_best_of_its_space(tmp_path: Path) -> None:
    family = VtaRules()
    space = family.space(PRODUCT, PYNQ)
    cycles = {
        space.rank(config): timeline(Program.from_text(family.emit(PRODUCT, PYNQ, config).sources[0].text, "x"), PYNQ)
        for config in space
    }
    best = min(one.cycles for one in cycles.values())
    study = dg.tune(PRODUCT, target="vta", strategy="constrained_ga", trials=len(cycles), out=tmp_path / "s")
    assert len(study.trials()) == len(cycles) and all(trial.measurement.ok for trial in study.trials())
    winner = study.summary()["winner"]
    assert winner is not None and round(winner["seconds"] * PYNQ.mhz * 1e6) == best
    assert study.trials()[0].measurement.conditions["simulated"] is True


def test_a_wrong_program_is_called_wrong() -> None:
    kernel = VtaRules().emit(PRODUCT, PYNQ, VtaRules().default(PRODUCT, PYNQ))
    made = Program.from_text(kernel.sources[0].text, "x")
    never_reset = tuple(one for one in made.instructions if not (isinstance(one, Gemm) and one.reset))
    no_tokens = tuple(replace(one, waits=(), signals=()) for one in made.instructions)
    runner = open_runner(Task(PRODUCT, PYNQ))
    for instructions, says in ((never_reset, "C["), (no_tokens, "race")):
        text = replace(made, instructions=instructions).to_text()
        wrong = replace(kernel, sources=(Source("program.json", text),))
        measured = runner.measure(wrong, build_once(wrong, PYNQ))
        assert measured.verdict is Verdict.WRONG and says in measured.detail


def test_a_case_file_is_tuned(deepgen: Callable, project: Path) -> None:
    config = {
        "out_name": "OPS/GEMM", "method": "CGA", "max_trials": 4, "runner_number": 3, "runner_repeat": 4,
        "runner_timeout": 50, "build_timeout": 50, "in_dtype": "int8", "out_dtype": "int32",
        "cases": {"G1": ["gemm", [16, 32, 16]]},
    }  # fmt: skip
    (project / "quick_start.json").write_text(json.dumps({"config": config}))
    said = deepgen("tune", "quick_start.json", "--target", "vta", "--out", "s")
    assert said.code == 0, said.err
    assert "simulated" in said.out
    (folder,) = (project / "s").iterdir()
    assert Study.open(folder).target.name == "vta:pynq" and len(Study.open(folder).trials()) == 4
