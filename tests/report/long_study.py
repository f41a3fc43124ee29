"""A synthetic study of many trials: the knobs of a tiled kernel, samples, counted events and failures."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import deepgen as dg
from deepgen.kernels.sim import SimTiles
from deepgen.targets import resolve
from deepgen.tuning import Request, Study
from deepgen.tuning.request import plan
from deepgen.tuning.study.journal import Journal, Proposal
from deepgen.vocabulary import Measurement, Trial, Verdict

BATCH = 500
FAILURES = (
    (Verdict.BUILD_FAILED, "kernel.cu(17): error: expression must have a constant value"),
    (Verdict.WRONG, "C[3, 5] is 1.25, not 1.5"),
    (Verdict.TIMED_OUT, "no end after 10 s"),
    (Verdict.CRASHED, "signal 11 at address 0x10"),
)


def made_up(trials: int, out: Path, seed: int = 0) -> Study:
    """A study of the simulated device, with a journal written directly."""
    planned = plan(Request(dg.gemm(512, 512, 512), resolve("sim"), out=out, trials=trials, generator=SimTiles()))
    rng = random.Random(seed)
    configs = planned.space.sample(trials, seed)
    with Journal(planned.folder, write=True) as journal:
        journal.define(planned.definition)
        journal.keep_space(planned.space)
        journal.begin_run({"trials": trials})
        for first in range(0, trials, BATCH):
            some = configs[first : first + BATCH]
            proposals = [Proposal(first + i, planned.space.rank(c), dict(c)) for i, c in enumerate(some)]
            journal.ask(first, len(proposals), proposals)
            journal.finish([_trial(p, rng) for p in proposals])
        spent: dict[str, Any] = {"building": 900.0, "measuring": 2000.0, "verifying": 9.0, "waiting": 3.0}
        journal.add_time({**spent, "search": 80.0, "total": 3000.0})
    return Study.open(planned.folder)


def _trial(proposal: Proposal, rng: random.Random) -> Trial:
    config = proposal.config
    kernel = f"{rng.getrandbits(256):064x}"
    if rng.random() < 0.1:
        return Trial(proposal.id, proposal.rank, config, kernel, Measurement(*rng.choice(FAILURES)))
    work = abs(config["BLOCK_M"] - 64) / 64 + abs(config["BLOCK_N"] - 64) / 90 + 0.3 * (config["STAGES"] == 1)
    usual = 1e-4 * (1.0 + work) * rng.lognormvariate(0.0, 0.1)
    samples = tuple(usual * (1.0 + abs(rng.gauss(0.0, 0.02))) for _ in range(100))
    conditions: dict[str, Any] = {"cold": True, "load": round(rng.uniform(0.0, 2.0), 2), "builds": 0}
    counters = {"l2_miss": usual * 1e9 * rng.lognormvariate(0.0, 0.2), "vector_inst": rng.uniform(1e6, 2e6)}
    facts: dict[str, Any] = {"code_bytes": rng.randrange(9999), "build_seconds": rng.random()}
    measured = Measurement(Verdict.CORRECT, "", samples, 0.1, counters, conditions)
    return Trial(proposal.id, proposal.rank, config, kernel, measured, facts)
