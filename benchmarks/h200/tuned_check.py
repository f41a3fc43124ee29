"""What the checks of operators on a device share: a short study of each problem, of which every trial must be right."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

import deepgen as dg  # noqa: E402
from deepgen.operators import Operator  # noqa: E402


def check_all(problems: Sequence[Operator], about: str, name: str) -> int:
    """Tunes each, prints a table and writes NAME.json; the exit status is 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda:native")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=480.0, help="no study begins later")
    parser.add_argument("--out", type=Path, default=HERE / f"{name}.json")
    options = parser.parse_args()
    begin, rows = time.monotonic(), list[dict[str, Any]]()
    with TemporaryDirectory() as folder:
        for problem in problems:
            if time.monotonic() - begin > options.seconds:
                break
            rows.append(_checked(problem, options.target, options.trials, Path(folder)))
            print(_line(rows[-1]), flush=True)
            options.out.write_text(json.dumps({"problems": len(problems), "rows": rows}, indent=1) + "\n")
    wrong = [row["operator"] for row in rows if row["wrong"] or not row["microseconds"]]
    print(f"{len(rows)} of {len(problems)} problems; something is wrong with: {', '.join(wrong) or 'none'}")
    return int(bool(wrong) or len(rows) < len(problems))


def _checked(problem: Operator, target: str, trials: int, folder: Path) -> dict[str, Any]:
    # Every kernel is run: what is slow may still be wrong.
    study = dg.tune(
        problem, target=target, trials=trials, strategy="random", second_look=False, transfer=False, out=folder
    )
    told: Any = study.summary()
    winner = told["winner"]
    wrong = [
        {"config": dict(t.config), "verdict": t.measurement.verdict.value, "detail": t.measurement.detail}
        for t in study.trials()
        if t.measurement is not None and t.measurement.verdict is not dg.Verdict.CORRECT
    ]
    seconds = winner["seconds"] if winner else None
    return {
        "operator": problem.describe(),
        "trials": told["trials"],
        "wrong": wrong,
        "microseconds": round(seconds * 1e6, 2) if seconds else None,
        "gb_per_second": round(problem.least_bytes() / seconds * 1e-9, 1) if seconds else None,
        "config": winner["config"] if winner else None,
    }


def _line(row: dict[str, Any]) -> str:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in row["trials"].items())
    speed = f"{row['microseconds']:10.2f} us {row['gb_per_second']:8.1f} GB/s" if row["microseconds"] else "no winner"
    return f"{row['operator']:40} {speed:30} {counts}"
