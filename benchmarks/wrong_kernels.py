"""Does any wrong kernel win, and is any right one called wrong? Faults in every dtype they concern, through `tune`.

    PYTHONPATH=src python benchmarks/wrong_kernels.py --json benchmarks/h200/wrong_kernels.json

For each dtype one search holds all faulty kernels and their right twins: each has its verdict, from its trial or from
the finals. A second search has only the kernel that is wrong where N is odd: if it wins, it must refuse such shapes. A
third has only the right kernel, which must serve them. `--target cpu` does the same on a processor.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deepgen as dg
from deepgen import targets
from deepgen.operators import Array, Gemm, gemm
from deepgen.operators.compare import compare
from deepgen.run.measure.base import Policy
from deepgen.targets import Cuda, Target
from deepgen.tuning.engines import LocalEngine
from deepgen.vocabulary import BadInput, DeepgenError, Verdict
from harness import parser, run_main, save
from wrong_family import DTYPES, RIGHT, SHAPES, WrongGemm, faults

SIZES = (128, 128, 160)
ODD = (128, 127, 160)
POLICY = Policy(max_samples=10, max_seconds=0.05)


@dataclass(frozen=True)
class Row:
    """What became of one kernel, and whether that is as it should be."""

    dtype: str
    kernel: str
    verdict: str
    detail: str
    ok: bool


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
    finals = study.finals()
    dropped = {row.trial: row for row in (finals.dropped if finals is not None else ())}
    for trial in study.trials():
        kind, measured = trial.config["FAULT"], trial.measurement
        verdict, detail = str(measured.verdict), measured.detail
        if trial.id in dropped:
            verdict, detail = str(dropped[trial.id].verdict), "finals: " + dropped[trial.id].detail
        # Only a wrong result will do: that something crashed or did not build shows nothing of its fault.
        wanted = Verdict.CORRECT if kind in RIGHT else Verdict.WRONG
        yield Row(dtype, str(kind), verdict, detail, verdict == str(wanted))


def odd_shapes(dtype: str, target: Target, kind: str, folder: Path) -> Row:
    """What a user gets who loads the winner and gives it an odd N."""
    name = f"{kind} at N={ODD[1]}"
    try:
        call = tuned(dtype, target, (kind,), folder).best().load()
    except DeepgenError as error:
        return Row(dtype, name, "no winner", str(error), kind not in RIGHT)
    operator = gemm(*ODD, dtype=dtype)
    passed = operator.inputs(7)
    try:
        got = _called(call, operator, passed, gpu=isinstance(target, Cuda))
    except BadInput as error:
        return Row(dtype, name, "refused", str(error), kind not in RIGHT)
    results = compare(got, operator.reference(passed)["C"], operator.dtypes[2], operator.tolerance("C"))
    detail = "" if results.ok else f"{results.wrong} of {results.size} elements wrong, and served"
    return Row(dtype, name, "correct" if results.ok else "wrong", detail, results.ok)


def _called(call: Any, operator: Gemm, passed: dict[str, Array], *, gpu: bool) -> Array:
    if not gpu:
        result: Array = call(passed["A"], passed["B"])
        return result
    import torch

    def moved(array: Array) -> Any:
        there = torch.from_numpy(array.view("int16") if operator.a == "bf16" else array).cuda()
        return there.view(torch.bfloat16) if operator.a == "bf16" else there

    built = call(moved(passed["A"]), moved(passed["B"]))
    torch.cuda.synchronize()
    plain = built.view(torch.int16) if operator.a == "bf16" else built
    fetched: Array = plain.cpu().numpy()
    return fetched.view("uint16") if operator.a == "bf16" else fetched


def rows(dtype: str, target: Target, folder: Path) -> Iterator[Row]:
    yield from verdicts(dtype, target, folder)
    for kind in (*SHAPES, RIGHT[0]):
        yield odd_shapes(dtype, target, kind, folder)


def checked(dtype: str, target: Target, folder: Path) -> Iterator[Row]:
    """The rows of a dtype; an error ends them and is the last: the other dtypes go on."""
    try:
        yield from rows(dtype, target, folder)
    except DeepgenError as error:
        yield Row(dtype, "", "error", str(error), False)


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--target", default="cuda:native", help="[cuda:native]")
    options = words.options()
    target, every = targets.resolve(options.target), list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        for dtype in options.chosen(DTYPES):
            for row in checked(dtype, target, Path(folder)):
                every.append(row)
                mark = "ok " if row.ok else "BAD"
                print(f"{mark}  {dtype:5}  {row.kernel:18}  {row.verdict:10}  {row.detail[:80]}", flush=True)
            save(options.json, every, target=target.name, sizes=SIZES)
    bad = [row for row in every if not row.ok]
    print(f"{len(every)} rows, {len(bad)} bad")
    return int(bool(bad))


if __name__ == "__main__":
    run_main(main)
