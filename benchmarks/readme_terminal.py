"""The README's picture of a terminal (the live view of a run and what it printed at its end) and the words below it.

python benchmarks/readme_terminal.py --run     run the README's demo, record it, and write both; wants a calm machine
python benchmarks/readme_terminal.py           write docs/terminal.svg and README.md from the recording
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tempfile
import textwrap
import time
from dataclasses import asdict
from typing import Any

from rich.console import Console

import deepgen as dg
from deepgen.frontends.cli.result import print_result
from deepgen.report.view.block import render
from deepgen.targets import host
from deepgen.tuning import Progress
from deepgen.vocabulary import DeepgenError
from harness import RESULTS, ROOT, Conditions, parser, run_main
from readme_results import README, speedup, written

RECORDING, PICTURE = RESULTS / "readme_terminal.json", ROOT / "docs/terminal.svg"
# `make demo` runs this.
COMMAND = "deepgen tune gemm MNK=64 B=64 --trials 60 --time-budget 20 --keep-top 4"
TITLE = "deepgen tune"
BEGIN = "<!-- demo -->\n"


def record() -> dict[str, Any]:
    """Run the demo; keep the moments of its search and the text of its result."""
    moments: list[Progress] = []
    shown = io.StringIO()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # so that the study's folder is shown as a user would see it
        study = dg.tune(dg.gemm(64, 64, 64, batch=64), trials=60, time_budget=20, keep_top=4, watch=moments.append)
        seconds = time.monotonic() - begin
        with contextlib.redirect_stdout(shown):
            print_result(study)
        title = f"{study.describe()} on {study.target.name}"
        summary: dict[str, Any] = study.summary()
        os.chdir(ROOT)
    if summary["doubts"]:
        raise DeepgenError("nothing was recorded, because the result is doubted: " + "; ".join(summary["doubts"]))
    chip = host.processor()
    searching = [moment for moment in moments if moment.phase == "searching" and moment.best_seconds is not None]
    return {
        "conditions": asdict(Conditions.now()),
        "machine": f"{chip.cores} cores of a {chip.model}",
        "command": COMMAND,
        "seconds": seconds,
        "over_default": summary["winner"]["over_default"],
        "baselines": {row["name"]: row["ratio"] for row in summary["baselines"]},
        "title": title,
        "live": asdict(searching[len(searching) * 2 // 3]),
        "result": shown.getvalue(),
    }


def sentence(recording: dict[str, Any]) -> str:
    """What the picture shows, for the README."""
    gain = speedup(recording["over_default"]["ratio"])
    others = " and ".join(f"{speedup(ratio)} than {name}" for name, ratio in recording["baselines"].items())
    results = f"in {recording['seconds']:.0f} seconds the search found a kernel {gain} than the default"
    text = f"The picture shows the demo on {recording['machine']}: {results}. The kernel is {others}."
    text = text.replace("equal than", "as fast as").replace("as fast than", "as fast as")
    return textwrap.fill(text, 120) + "\n"


def draw(recording: dict[str, Any]) -> str:
    """The recording as an SVG."""
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(f"[bold]$[/bold] {recording['command']}", highlight=False)
    console.print()
    console.print(render(recording["title"], Progress(**recording["live"])))
    console.print()
    console.print(recording["result"].rstrip(), highlight=False, markup=False)
    drawn = console.export_svg(title=TITLE, unique_id="deepgen")
    return re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # fonts that would be fetched from a server


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--run", action="store_true", help="run the demo first, and keep what it showed")
    if words.options().run:
        RECORDING.write_text(json.dumps(record(), indent=1) + "\n")
    recording = json.loads(RECORDING.read_text())
    PICTURE.write_text(draw(recording))
    README.write_text(written(README.read_text(), sentence(recording), BEGIN))


if __name__ == "__main__":
    run_main(main)
