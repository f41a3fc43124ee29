"""Shared by all benchmarks: options, drawn cases, interleaved timing, conditions, result files and tables."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
RESULTS, H200 = BENCHMARKS / "results", BENCHMARKS / "h200"
if find_spec("deepgen") is None:  # a source tree without an installation, as on a borrowed machine
    sys.path.insert(0, str(ROOT / "src"))

from harness.conditions import Conditions  # noqa: E402
from harness.options import Deadline, Options, parser, run_main  # noqa: E402
from harness.results import by_lines, markdown, plain, read, save, table, write  # noqa: E402
from harness.turns import Samples, Timed, alternate, per_call, processor_seconds  # noqa: E402

__all__ = (
    "BENCHMARKS", "H200", "RESULTS", "ROOT", "Conditions", "Deadline", "Options", "Samples", "Timed", "alternate",
    "by_lines", "markdown", "parser", "per_call", "plain", "processor_seconds", "read", "run_main",
    "save", "table", "write",
)  # fmt: skip
