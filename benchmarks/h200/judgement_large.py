"""Are right results called right and wrong ones wrong on an NVIDIA GPU? Large results and every probe, in four minutes.

    PYTHONPATH=src python benchmarks/h200/judgement_large.py --seconds 220 --out benchmarks/h200/judgement_large.json

`large`: results of 1e8 and of 2e7 elements from torch, cuBLASLt and the defaults of our families: none may be wrong.
`probes`: the defaults of all families that serve a format, on all inputs that finalists must be right on: none may be
wrong. `faults`: kernels that add up in 16 bits, lose one product or take denormal numbers for zero: all must be wrong.

A problem that the time does not suffice for is left out and told.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src")]

from deepgen import generators, targets  # noqa: E402
from deepgen.operators import Gemm, gemm  # noqa: E402
from deepgen.run.measure import handed  # noqa: E402
from deepgen.run.measure.base import Contender, Policy, Task  # noqa: E402
from deepgen.targets import Target  # noqa: E402
from deepgen.toolchains import BuildError  # noqa: E402
from deepgen.tuning.engines import LocalEngine  # noqa: E402
from deepgen.tuning.engines.local import LocalSession  # noqa: E402
from deepgen.tuning.finals import OTHER_SEEDS  # noqa: E402
from deepgen.vocabulary import (  # noqa: E402
    Arg,
    DeepgenError,
    Kernel,
    LaunchPlan,
    Measurement,
    ScalarArg,
    Source,
    Step,
    TensorArg,
    Verdict,
)

LARGE = (
    gemm(10000, 10000, 2560, layout="nt"),
    gemm(10000, 10000, 4096, dtype="bf16", layout="nt"),
    gemm(12500, 8000, 1000, dtype="f16", layout="nt"),
    gemm(5000, 4000, 2560, layout="nt"),
    gemm(2500, 8000, 7000),
    gemm(20000, 1000, 257, layout="tn"),
    gemm(5000, 4000, 2560, dtype="bf16", layout="nt"),
    gemm(1000, 20000, 7000, dtype="bf16"),
    gemm(5000, 4000, 4096, dtype="f16", layout="nt"),
    gemm(8000, 2500, 1760, dtype="f16", c="f32", layout="nt"),
)
NEEDED = {10**8: 5, 2 * 10**7: 20}  # results of so many elements that must have been judged
FORMATS = ("f32", "f16", "bf16", "i8", "f64", "tf32", "f8e4m3", "f8e5m2")
ODD = (1000, 1112, 1232)
FAULTS = {"f32": ("flushed",), "f16": ("lost",), "bf16": ("lost",), "i8": ("narrow",)}
FLAGS = {"flushed": ("--ftz=true",), "lost": ("-DLOST",), "narrow": ("-DNARROW",)}
SECONDS = 8.0  # that a problem may take
NAIVE = r"""
#if defined(I8)
typedef signed char in; typedef int out;
#define NUMBER(x) ((int)(x))
#define STORED(x) (x)
#elif defined(F32)
typedef float in; typedef float out;
#define NUMBER(x) (x)
#define STORED(x) (x)
#elif defined(F16)
typedef unsigned short in; typedef unsigned short out;
__device__ static float NUMBER(in x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
__device__ static out STORED(float x) { out y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
#else
typedef unsigned short in; typedef unsigned short out;
__device__ static float NUMBER(in x) { return __uint_as_float((unsigned)x << 16); }
__device__ static out STORED(float x) {
    unsigned bits = __float_as_uint(x);
    return x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
#endif
#ifdef NARROW
typedef short total;
#elif defined(I8)
typedef int total;
#else
typedef float total;
#endif
extern "C" __global__ void entry(const in* A, const in* B, out* C, int M, int N, int K) {
    int i = blockIdx.y * 16 + threadIdx.y, j = blockIdx.x * 16 + threadIdx.x;
    if (i >= M || j >= N) return;
    total sum = 0;
    for (int k = 0; k < K; k++) {
#ifdef LOST
        if (i == M / 2 && j == N / 2 && k == K / 2) continue;
#endif
        sum += NUMBER(A[(long long)i * K + k]) * NUMBER(B[(long long)j * K + k]);
    }
    C[(long long)i * N + j] = STORED(sum);
}
"""

Row = dict[str, Any]


def naive(of: str, *flags: str) -> Kernel:
    """One thread for each element, in layout nt."""
    args: tuple[Arg, ...] = (*(TensorArg(name) for name in "ABC"), *(ScalarArg("i32", size) for size in "MNK"))
    step = Step("entry", args, grid=("ceil_div(N, 16)", "ceil_div(M, 16)", 1), block=(16, 16, 1))
    return Kernel("naive", "cuda", (Source("naive.cu", NAIVE),), (f"-D{of.upper()}", *flags), LaunchPlan((step,)))


def defaults(operator: Gemm, target: Target) -> dict[str, Kernel]:
    """The default of each family that serves."""
    families = generators.serving(operator, target)
    return {f.name: f.emit(operator, target, f.default(operator, target)) for f in families}


def told(measured: Measurement) -> Row:
    return {"verdict": measured.verdict.value, "share": measured.error, "detail": measured.detail}


def large(operator: Gemm, target: Target, session: LocalSession) -> Iterator[Row]:
    """All contenders in one race of one round: each is judged before and after it."""
    contenders = [Contender(name) for name in session.baselines()]
    contenders += [Contender(name, kernel) for name, kernel in defaults(operator, target).items()]
    elements = operator.m * operator.n
    for one, measured in zip(contenders, session.compare(contenders, 1, 1), strict=True):
        row = {"kernel": one.name, "elements": elements, **told(measured)}
        yield {**row, "ok": measured.verdict is not Verdict.WRONG, "judged": measured.verdict is Verdict.CORRECT}


def tried(session: LocalSession, kernel: Kernel, tests: Sequence[tuple[int, str]]) -> dict[str, Measurement]:
    """The verdicts on each kind of inputs that are not right, or the build's."""
    try:
        found = {f"{probe} {seed}": session.verify(kernel, seed, probe) for seed, probe in tests}
    except BuildError as error:
        return {"build": Measurement(error.verdict, error.detail)}
    return {name: measured for name, measured in found.items() if not measured.ok}


def probes(operator: Gemm, target: Target, session: LocalSession) -> Iterator[Row]:
    tests = [(0, "normal"), *handed.sets(operator, 0, OTHER_SEEDS)]
    for name, kernel in defaults(operator, target).items():
        wrong = tried(session, kernel, tests)
        verdicts = {key: told(measured) for key, measured in wrong.items()}
        yield {"kernel": name, "inputs": [probe for _, probe in tests], "not_right": verdicts, "ok": not wrong}
    for fault in FAULTS.get(operator.a, ()) if target.computes else ():
        right, wrong = (tried(session, naive(operator.a, *flags), tests) for flags in ((), FLAGS[fault]))
        found = bool(wrong) and {m.verdict for m in wrong.values()} == {Verdict.WRONG}
        yield {"kernel": f"naive, {fault}", "found_on": sorted(wrong), "ok": found and not right}


def problems(only: Sequence[str]) -> Iterator[tuple[str, Gemm]]:
    parts = {"probes": [gemm(*ODD, dtype=of, layout="nt") for of in FORMATS], "large": [*LARGE]}
    for part in only:
        yield from ((part, operator) for operator in parts[part])


def words(row: Row) -> str:
    if "share" in row:
        share = f"{row['share']:.3f} of the tolerance" if row["share"] is not None else row["detail"][:60]
        return f"{row['elements']:.1e} elements, {row['verdict']}, {share}"
    if "found_on" in row:
        return "found on " + (", ".join(row["found_on"]) or "nothing")
    bad = "; ".join(f"{key}: {m['verdict']} {m['detail'][:80]}" for key, m in row["not_right"].items())
    return bad or f"right on {len(row['inputs'])} sets of inputs"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=220.0, help="no problem begins that would end later [220]")
    parser.add_argument("--target", default="cuda:native", help="[cuda:native]")
    parser.add_argument("--only", nargs="*", choices=("large", "probes"), default=("large", "probes"))
    parser.add_argument("--out", type=Path, default=Path("judgement_large.json"))
    given = parser.parse_args(argv)
    target = targets.resolve(given.target)
    end = time.monotonic() + given.seconds
    rows: list[Row] = []
    left_out: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for part, operator in problems(given.only):
            if time.monotonic() + SECONDS > end:
                left_out.append(operator.describe())
                continue
            started = time.monotonic()
            for row in _judged(part, operator, target, Path(folder)):
                rows.append({"part": part, "problem": operator.describe(), **row})
                mark = "ok " if row["ok"] else "BAD"
                print(f"{part:7} {mark} {operator.describe():34} {row['kernel']:18} {words(row)}", flush=True)
            print(f"{part:7}     {operator.describe():34} {time.monotonic() - started:.1f} s", flush=True)
            summary = {"target": target.to_json(), "rows": rows, "left_out": left_out}
            given.out.write_text(json.dumps(summary, indent=1) + "\n")
    judged = {size: sum(r.get("judged", False) and r["elements"] == size for r in rows) for size in NEEDED}
    bad = sum(not row["ok"] for row in rows)
    counts = ", ".join(f"{count} of {size:.0e} elements" for size, count in judged.items())
    print(f"{len(rows)} rows, {bad} bad; right results: {counts}; left out: {', '.join(left_out) or 'none'}")
    few = "large" in given.only and any(judged[size] < count for size, count in NEEDED.items())
    return 1 if bad or left_out or few else 0


def _judged(part: str, operator: Gemm, target: Target, folder: Path) -> list[Row]:
    try:
        with LocalEngine(cache=folder / "cache").open(Task(operator, target, policy=Policy(cold=False))) as session:
            return list((large if part == "large" else probes)(operator, target, session))
    except DeepgenError as error:
        return [{"kernel": "", "verdict": "error", "share": None, "detail": str(error), "elements": 0, "ok": False}]


if __name__ == "__main__":
    sys.exit(main())
