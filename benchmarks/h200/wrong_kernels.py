"""Does any wrong kernel win, and is any right one called wrong? Faults in every dtype they concern, through `tune`.

    PYTHONPATH=src python benchmarks/h200/wrong_kernels.py --out benchmarks/h200/wrong_kernels.json

For each dtype one search holds all faulty kernels and their right twins: each has its verdict, from its trial or from
the finals. A second search has only the kernel that is wrong where N is odd: if it wins, it must refuse such shapes. A
third has only the right kernel, which must serve them. `--target cpu` does the same on a processor.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE)]

from wrong_family import DTYPES, RIGHT, SHAPES, WrongGemm, faults  # noqa: E402

import deepgen as dg  # noqa: E402
from deepgen import targets  # noqa: E402
from deepgen.operators import Array, Gemm, gemm  # noqa: E402
from deepgen.operators.compare import compare  # noqa: E402
from deepgen.run.measure.base import Policy  # noqa: E402
from deepgen.targets import Cuda, Target  # noqa: E402
from deepgen.tuning.engines import LocalEngine  # noqa: E402
from deepgen.vocabulary import BadInput, DeepgenError, Verdict  # noqa: E402

SIZES = (128, 128, 160)
ODD = (128, 127, 160)
POLICY = Policy(max_samples=10, max_seconds=0.05)

Row = dict[str, Any]


def tuned(dtype: str, target: Target, kinds: tuple[str, ...], folder: Path) -> dg.Study:
    """All these kernels tried, and as many as are right in the finals."""
    return dg.tune(
        gemm(*SIZES, dtype=dtype),
        target=target,
        trials=len(kinds),
        generator=WrongGemm(*kinds),
        policy=POLICY,
        keep_top=len(kinds),
        transfer=False,
        second_look=False,
        baselines=False,
        out=folder / "-".join((dtype, kinds[-1])),
        engine=LocalEngine(cache=folder / "cache"),
    )


def verdicts(dtype: str, target: Target, folder: Path) -> Iterator[Row]:
    """What became of each kernel: its trial's verdict, or that of the finals."""
    study = tuned(dtype, target, (*RIGHT, *faults(dtype)), folder)
    finals: Row = dict(study.finals() or {})
    dropped = {row["trial"]: row for row in finals.get("dropped", [])}
    for trial in study.trials():
        kind, measured = trial.config["FAULT"], trial.measurement
        verdict, detail = str(measured.verdict), measured.detail
        if trial.id in dropped:
            verdict, detail = dropped[trial.id]["verdict"], "finals: " + dropped[trial.id]["detail"]
        # Only a wrong result will do: that something crashed or did not build shows nothing of its fault.
        wanted = Verdict.CORRECT if kind in RIGHT else Verdict.WRONG
        yield {"dtype": dtype, "kernel": kind, "verdict": verdict, "detail": detail, "ok": verdict == str(wanted)}


def odd_shapes(dtype: str, target: Target, kind: str, folder: Path) -> Row:
    """What a user gets who loads the winner and gives it an odd N."""
    row = {"dtype": dtype, "kernel": f"{kind} at N={ODD[1]}"}
    try:
        call = tuned(dtype, target, (kind,), folder).best().load()
    except DeepgenError as error:
        return {**row, "verdict": "no winner", "detail": str(error), "ok": kind not in RIGHT}
    operator = gemm(*ODD, dtype=dtype)
    given = operator.inputs(7)
    try:
        got = _called(call, operator, given, gpu=isinstance(target, Cuda))
    except BadInput as error:
        return {**row, "verdict": "refused", "detail": str(error), "ok": kind not in RIGHT}
    found = compare(got, operator.reference(given)["C"], operator.dtypes[2], operator.tolerance("C"))
    detail = "" if found.ok else f"{found.wrong} of {found.size} elements wrong, and served"
    return {**row, "verdict": "correct" if found.ok else "wrong", "detail": detail, "ok": found.ok}


def _called(call: Any, operator: Gemm, given: dict[str, Array], *, gpu: bool) -> Array:
    if not gpu:
        result: Array = call(given["A"], given["B"])
        return result
    import torch

    def moved(array: Array) -> Any:
        there = torch.from_numpy(array.view("int16") if operator.a == "bf16" else array).cuda()
        return there.view(torch.bfloat16) if operator.a == "bf16" else there

    made = call(moved(given["A"]), moved(given["B"]))
    torch.cuda.synchronize()
    plain = made.view(torch.int16) if operator.a == "bf16" else made
    fetched: Array = plain.cpu().numpy()
    return fetched.view("uint16") if operator.a == "bf16" else fetched


def rows(dtype: str, target: Target, folder: Path) -> Iterator[Row]:
    yield from verdicts(dtype, target, folder)
    for kind in (*SHAPES, RIGHT[0]):
        yield odd_shapes(dtype, target, kind, folder)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda:native", help="[cuda:native]")
    parser.add_argument("--dtypes", nargs="*", choices=DTYPES, default=DTYPES, help="these only")
    parser.add_argument("--out", type=Path, default=Path("wrong_kernels.json"))
    options = parser.parse_args(argv)
    target = targets.resolve(options.target)
    record: Row = {"target": target.to_json(), "sizes": SIZES, "rows": [], "seconds": {}}
    with tempfile.TemporaryDirectory() as folder:
        for dtype in options.dtypes:
            started = time.monotonic()
            for row in _told(dtype, target, Path(folder)):
                record["rows"].append(row)
                mark = "ok " if row["ok"] else "BAD"
                line = f"{mark}  {dtype:5}  {row['kernel']:18}  {row['verdict']:10}  {row['detail'][:110]}"
                print(line, flush=True)
            record["seconds"][dtype] = round(time.monotonic() - started, 1)
            options.out.write_text(json.dumps(record, indent=1) + "\n")
    bad = [row for row in record["rows"] if not row["ok"]]
    print(f"{len(record['rows'])} rows, {len(bad)} bad; seconds: {record['seconds']}")
    return 1 if bad else 0


def _told(dtype: str, target: Target, folder: Path) -> Iterator[Row]:
    """The rows of a dtype; an error ends them and is the last: the other dtypes go on."""
    try:
        yield from rows(dtype, target, folder)
    except DeepgenError as error:
        yield {"dtype": dtype, "kernel": "", "verdict": "error", "detail": str(error), "ok": False}


if __name__ == "__main__":
    sys.exit(main())
