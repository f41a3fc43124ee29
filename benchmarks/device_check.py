"""Is every kernel right on this device? Families and operators on odd sizes, in all formats and layouts.

    PYTHONPATH=src python benchmarks/device_check.py --target cuda:native [--only "conv2d"] [--trials 12] [--json FILE]

Each problem has a short random study (nothing is skipped for looking slow), of which every trial must be correct: a
wrong result, a crash or a kernel that hangs is shown with its config. The exit status is 1 if there is any, or if the
time limit left something out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import deepgen as dg
from deepgen import generators, targets
from deepgen.kernels import Generator
from deepgen.operators import OPERATORS, Operator, gemm
from deepgen.operators.conv2d import LAYOUTS as IMAGE_LAYOUTS
from deepgen.operators.softmax import DTYPES as ROW_DTYPES
from deepgen.operators.words import FORMATS
from deepgen.targets import Target
from deepgen.vocabulary import DeepgenError
from harness import parser, run_main, save, table

# N, H, W, CI, CO, k, stride, pad
IMAGES = (
    (16, 56, 56, 64, 64, 3, 1, 1), (3, 29, 37, 19, 45, 3, 2, 1), (2, 57, 31, 3, 65, 7, 2, 3),
    (5, 17, 23, 131, 33, 1, 1, 0), (1, 5, 6, 9, 7, 5, 3, 2),
)  # fmt: skip
ROWS = ((4096, 1024), (1000, 1001), (33, 50257), (100_003, 6), (3, 1_000_003), (777, 1))
MATRICES = ((200, 136, 264, 2), (37, 41, 1053, 1), (8, 1104, 1024, 1), (1031, 5, 777, 2))
OTHERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("grouped_gemm", {"E": 5, "M": 333, "N": 264, "K": 136}),
    ("grouped_gemm", {"E": 5, "M": 136, "N": 264, "K": 333, "layout": "tn"}),
    ("attention", {"B": 2, "H": 4, "HK": 2, "SQ": 37, "SK": 131, "D": 40, "DV": 24}),
    ("attention", {"B": 1, "H": 3, "S": 129, "D": 64, "causal": True}),
    ("attention", {"B": 3, "H": 8, "HK": 1, "SQ": 1, "SK": 1053, "D": 128}),
    ("attention", {"B": 5, "H": 8, "HK": 2, "SQ": 2, "SK": 700, "D": 64, "lengths": True, "causal": True}),
    ("attention", {"B": 5, "H": 8, "HK": 2, "SQ": 1, "SK": 1040, "D": 128, "lengths": True, "page": 16}),
    ("conv1d", {"N": 3, "L": 211, "CI": 24, "CO": 40, "k": 5, "stride": 2, "pad": 2}),
    ("conv3d", {"N": 1, "D": 5, "H": 9, "W": 11, "CI": 8, "CO": 24, "k": 3, "pad": 1}),
    ("dilated_conv2d", {"N": 2, "H": 17, "W": 13, "CI": 16, "CO": 24, "k": 3, "pad": 2, "groups": 2}),
    ("conv1d", {"N": 3, "L": 211, "CI": 24, "CO": 40, "k": 5, "pad": 2, "dilation": 3, "layout": "ncl"}),
    ("conv3d", {"N": 2, "D": 5, "H": 9, "W": 11, "CI": 8, "CO": 24, "k": 3, "pad": 1, "layout": "ncdhw"}),
    ("dilated_conv2d", {"N": 2, "H": 17, "W": 13, "CI": 16, "CO": 24, "k": 3, "pad": 2, "groups": 2, "layout": "nchw"}),
    ("conv_transpose2d", {"N": 2, "H": 7, "W": 9, "CI": 16, "CO": 24, "k": 3, "stride": 2, "layout": "nchw"}),
    ("conv_transpose2d", {"N": 1, "H": 7, "W": 9, "CI": 16, "CO": 24, "k": 3, "stride": 2, "pad": 1}),
)
FORMATS_OF_GEMM = ("f32", "tf32", "f64", "f16", "bf16", "f8e4m3", "f8e5m2", "i8")


@dataclass(frozen=True)
class Problem:
    name: str
    operator: Operator
    family: str | None = None


@dataclass(frozen=True)
class Row:
    problem: str
    trials: Mapping[str, int]
    wrong: Sequence[Mapping[str, Any]]
    microseconds: float | None

    @property
    def ok(self) -> bool:
        return not self.wrong and self.microseconds is not None


def served(operator: Operator, target: Target) -> list[Generator]:
    """The families that support it; none if the target lacks the format."""
    try:
        return generators.serving(operator, target)
    except DeepgenError:
        return []


def problems(target: Target) -> Iterator[Problem]:
    for dtype in FORMATS_OF_GEMM:
        for layout in ("nt", "nn", "tn", "tt"):
            for m, n, k, batch in MATRICES:
                operator: Operator = gemm(m, n, k, dtype=dtype, layout=layout, batch=batch)
                yield from (
                    Problem(f"{f.name} {operator.describe()}", operator, f.name) for f in served(operator, target)
                )
    for shape in IMAGES:
        for layout in IMAGE_LAYOUTS:
            for dtype in FORMATS:
                operator = dg.conv2d(*shape[:6], stride=shape[6], pad=shape[7], dtype=dtype, layout=layout)
                yield from (
                    Problem(f"{f.name} {operator.describe()}", operator, f.name) for f in served(operator, target)
                )
    for name, values in OTHERS:
        for dtype in next(word.choices for word in OPERATORS.get(name).words if word.name == "dtype"):
            operator = dg.operator(name, **values, dtype=dtype)
            yield from (Problem(f"{f.name} {operator.describe()}", operator, f.name) for f in served(operator, target))
    for rows, columns in ROWS:
        for dtype in ROW_DTYPES:
            operator = dg.softmax(rows, columns, dtype=dtype)
            yield Problem(operator.describe(), operator)


def checked(problem: Problem, target: Target, trials: int, seed: int, folder: Path) -> Row:
    study = dg.tune(
        problem.operator,
        target=target,
        family=problem.family,
        trials=trials,
        seed=seed,
        strategy="random",
        second_look=False,
        transfer=False,
        baselines=False,
        progress=False,
        out=folder,
    )
    wrong = [
        {"config": dict(t.config), "verdict": t.measurement.verdict.value, "detail": t.measurement.detail}
        for t in study.trials()
        if t.measurement is not None and t.measurement.verdict is not dg.Verdict.CORRECT
    ]
    summary: Any = study.summary()
    winner = summary["winner"]
    return Row(problem.name, summary["trials"], wrong, winner["seconds"] * 1e6 if winner else None)


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--target", default="cuda:native", help="[cuda:native]")
    words.add_argument("--trials", type=int, default=12, help="of each problem [12]")
    options = words.options()
    target, deadline = targets.resolve(options.target), options.deadline()
    todo, rows = options.chosen(problems(target), lambda one: one.name), list[Row]()
    with TemporaryDirectory() as folder:
        for problem in todo:
            if deadline.over:
                break
            rows.append(checked(problem, target, options.trials, options.seed, Path(folder)))
            counts = ", ".join(f"{count} {verdict}" for verdict, count in rows[-1].trials.items())
            print(f"{problem.name}: {counts}", flush=True)
            save(options.json, rows, problems=len(todo), target=target.name)
    bad = [row for row in rows if not row.ok]
    print(table(("something is wrong with", "wrong"), [(row.problem, len(row.wrong)) for row in bad]))
    print(f"{len(rows)} of {len(todo)} problems, {len(bad)} with something wrong")
    return int(bool(bad) or len(rows) < len(todo))


if __name__ == "__main__":
    run_main(main)
