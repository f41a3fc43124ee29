"""The README's picture of a terminal (the live view of a run and what it printed at its end) and the words below it.

python benchmarks/readme_terminal.py --run     run the README's demo, record it, and write both; needs a quiet machine
python benchmarks/readme_terminal.py           write docs/terminal.svg and README.md from the recording

`--machine "a Xeon (Cascade Lake)"` gives the processor's name where the system's own says little.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import tempfile
import textwrap
import time
from dataclasses import asdict
from importlib import import_module
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
EXAMPLE, BUDGET, KEEP_TOP = "examples/kernels/distances.py", 30, 4
COMMAND = f"deepgen tune {EXAMPLE} --time-budget {BUDGET}s --keep-top {KEEP_TOP}"
TITLE = "deepgen tune"
BEGIN = "<!-- demo -->\n"


def record(machine: str | None) -> dict[str, Any]:
    """Run the demo; record the progress of its search and the text of its result."""
    moments: list[Progress] = []
    shown = io.StringIO()
    sys.path.insert(0, str((ROOT / EXAMPLE).parent))  # a study records where the code of its baseline is
    kernel = import_module((ROOT / EXAMPLE).stem).kernel
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # so that the study's folder is printed as a user would see it
        study = dg.tune(kernel, time_budget=BUDGET, keep_top=KEEP_TOP, watch=moments.append)
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
        "machine": f"{chip.cores} cores of {machine or 'a ' + chip.model}",
        "command": COMMAND,
        "seconds": seconds,
        "over_default": summary["winner"]["over_default"],
        "baselines": {row["name"]: row["ratio"] for row in summary["baselines"]},
        "title": title,
        "live": asdict(searching[len(searching) * 2 // 3]),
        "result": shown.getvalue(),
    }


def sentence(recording: dict[str, Any]) -> str:
    """A description of the picture for the README."""
    gain = speedup(recording["over_default"]["ratio"])
    (ratio,) = recording["baselines"].values()
    results = f"in {recording['seconds']:.0f} seconds the search found a kernel {gain} than the default"
    beside = f"It is {speedup(ratio)} than the same in numpy"
    text = f"The picture shows the demo on {recording['machine']}: {results}. {beside}."
    text = f"{text} {recording.get('note', '')}".rstrip()
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
    words.add_argument("--machine", help="the processor's name, with its article")
    options = words.options()
    if options.run:
        RECORDING.write_text(json.dumps(record(options.machine), indent=1) + "\n")
    recording = json.loads(RECORDING.read_text())
    PICTURE.write_text(draw(recording))
    README.write_text(written(README.read_text(), sentence(recording), BEGIN))


if __name__ == "__main__":
    run_main(main)
