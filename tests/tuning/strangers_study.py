"""A study from an untrusted source: complete, readable, and with arbitrary content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import deepgen as dg
from deepgen import targets
from deepgen.toolchains import build_once
from deepgen.tuning import Study
from deepgen.tuning.request import Request, plan
from deepgen.tuning.study.finals import Finals, RacedTrial, Slower
from deepgen.tuning.study.journal import Journal, Proposal
from deepgen.tuning.study.winner import WINNER, write_winner
from deepgen.vocabulary import JsonObject, Kernel, Measurement, Trial, Verdict


def write(
    folder: Path,
    *,
    kernel: Callable[[Kernel], Kernel] = lambda kernel: kernel,
    config: Mapping[str, Any] | None = None,
    definition: Callable[[dict[str, Any]], JsonObject] = lambda definition: definition,
    winner: bool = True,
) -> Path:
    """A study of one trial and its finals. `kernel` is the kernel recorded for its trial and its winner."""
    operator, target = dg.gemm(32, 32, 32), targets.resolve("cpu")
    planned = plan(Request(operator=operator, target=target, study=folder))
    rank = planned.first or 0
    emitted = planned.generator.emit(operator, target, planned.space.at(rank))
    said = kernel(emitted)
    chosen = dict(config or planned.space.at(rank))
    measured = Measurement(Verdict.CORRECT, samples=(1e-5, 1.1e-5, 1.2e-5), error=0.1)
    samples, level = measured.samples, Slower(1.0, 1.0, 1.0)
    row = RacedTrial(0, rank, chosen, True, said.id, 1.1e-5, samples, level)
    with Journal(folder, write=True) as journal:
        journal.define(definition(dict(planned.definition)))
        journal.keep_space(planned.space)
        journal.ask(0, 1, [Proposal(0, rank, chosen)])
        journal.finish([Trial(0, rank, chosen, said.id, measured)])
        journal.add_finals(Finals(0, finalists=(row,), trials=1))
    if winner:
        artifact = build_once(emitted, target)
        write_winner(folder / WINNER, said, replace(artifact, kernel_id=said.id), "{}")
    return folder


def best(folder: Path, *, trust: bool = False) -> dg.Best:
    return Study.open(folder, trust=trust).best()
