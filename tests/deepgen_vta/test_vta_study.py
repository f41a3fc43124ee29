"""Studies on the simulated VTA: exact times, verdicts on wrong programs, and the best of a space."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import deepgen as dg
from deepgen.operators import gemm
from deepgen.run.measure import Task, open_runner
from deepgen.toolchains import build_once
from deepgen.vocabulary import Source, Verdict
from deepgen_vta.chip import parse_vta
from deepgen_vta.family import VtaRules
from deepgen_vta.program import Gemm, Program
from deepgen_vta.simulator import timeline

PYNQ = parse_vta("pynq")
PRODUCT = gemm(2, 32, 32, dtype="i8", c="i32", layout="nt")


def test_a_study_ends_with_the_best_of_its_space(tmp_path: Path) -> None:
    family = VtaRules()
    space = family.space(PRODUCT, PYNQ)
    texts = [family.emit(PRODUCT, PYNQ, config).sources[0].text for config in space]
    cycles = [timeline(Program.from_text(text, "program"), PYNQ).cycles for text in texts]
    study = dg.tune(
        PRODUCT, target="vta", strategy="constrained_ga", trials=len(cycles), second_look=False, out=tmp_path
    )
    assert len(study.trials()) == len(cycles) and all(trial.measurement.ok for trial in study.trials())
    winner: Any = study.summary()["winner"]
    assert round(winner["seconds"] * PYNQ.mhz * 1e6) == min(cycles)
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
