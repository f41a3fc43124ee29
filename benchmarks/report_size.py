"""What the report of a long study costs: seconds to make it, seconds until Chromium has opened it, and bytes.

    python benchmarks/report_size.py [--trials 10000] [--json FILE]

The study is synthetic, with the knobs of a tiled kernel, a hundred samples of each trial, counted events and failures;
everything after that is done by `deepgen report`. Without Chromium the page is generated, but not opened.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import deepgen as dg
from deepgen.kernels.sim import SimTiles
from deepgen.targets import resolve
from deepgen.tuning import Request, Study
from deepgen.tuning.request import plan
from deepgen.tuning.study.journal import Journal, Proposal
from deepgen.vocabulary import Measurement, Trial, Verdict
from harness import parser, processor_seconds, run_main, save, table

BARS = {"made, s": 10.0, "opened, s": 3.0, "megabytes": 2.5}
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


def opened(file: Path) -> dict[str, float]:
    """Seconds until Chromium has loaded the page, and until the charts in view are drawn."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        return {}
    in_view = "[...document.querySelectorAll('[data-chart]')].some((one) => one.dataset.drawn)"
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        began = time.perf_counter()
        page.goto(file.as_uri())
        page.wait_for_function("document.documentElement.dataset.ready")
        ready = time.perf_counter() - began
        page.wait_for_function(in_view)
        seen = time.perf_counter() - began
        browser.close()
    return {"opened, s": ready, "first chart, s": seen}


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--trials", type=int, default=10_000)
    options = words.options()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        study = made_up(options.trials, scratch / "studies")
        file = scratch / "report.html"
        results: dict[str, float] = {"trials": options.trials}
        # The first report on a machine also bundles Vega, which is cached for later ones.
        environment = {**os.environ, "XDG_CACHE_HOME": str(scratch / "cache")}
        command = [sys.executable, "-m", "deepgen", "report", str(study.folder), "-o", str(file)]
        for name in ("made first, s", "made, s"):
            began = time.perf_counter()
            busy = processor_seconds(
                lambda: subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
            )
            results[name] = time.perf_counter() - began
            results[name.replace(", s", ", processor s")] = busy
        results |= opened(file)
        results["megabytes"] = file.stat().st_size / 1e6
    results = {name: round(value, 2) for name, value in results.items()}
    print(table(("what", "measured", "bar"), [(name, value, BARS.get(name)) for name, value in results.items()]))
    save(options.json, results)


if __name__ == "__main__":
    run_main(main)
