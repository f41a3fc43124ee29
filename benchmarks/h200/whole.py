"""All whole runs of gpu_gemm.py in one command that ends in time: every dtype, nn beside nt, both kinds of sums.

First a few configs of two shapes are built, checked and timed, in bf16; where anything is missing or wrong, nothing
else is begun. Triton's kernels are compiled meanwhile. Each run is a process of its own with a share of the time, after
which it tries less (`--seconds`) and, later, is stopped; its shapes are written as they are done. One that fails is
told and the others go on; what is left of the time then goes to those that failed, with known configs only. What the
runs print lies in OUT/whole.log.

    python benchmarks/h200/whole.py --out benchmarks/h200 --seconds 540
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

from steps import Clock, ended, started  # noqa: E402

from common import run_main  # noqa: E402
from deepgen.vocabulary import DeepgenError  # noqa: E402
from gpu_bench import suite  # noqa: E402

GEMM, TRITON = HERE.parent / "gpu_gemm.py", HERE.parent / "triton_gemm.py"
CHECK_SECONDS, TRITON_SECONDS = 60.0, 75.0  # the first import of torch may take half a minute
MOST_WRONG = 0.25  # of the configs that a check tries
CHECKED = ("0", "17")
FEW = ("--only", *CHECKED, "--known", "1", "--modelled", "1", "--near", "2")
KNOWN_ONLY = ("--known", "4", "--modelled", "0", "--near", "0")
MANY = ("--known", "8", "--modelled", "8", "--near", "16")
HARD, LEAST = 1.25, 30.0  # of its share, after which a run is stopped; seconds that are too few to begin one
TAIL = 3000  # characters of the log that are shown where nothing was begun


@dataclass(frozen=True)
class Job:
    """A run, the file that it writes, and the seconds that it takes when all goes well."""

    file: str
    words: tuple[str, ...]
    usual: float


# In this order: bf16 nn is timed beside what won in nt; what was run least lately goes before the rest.
JOBS = (
    Job("gemm_bf16_nt", ("--dtype", "bf16", "--triton"), 65.0),
    Job("gemm_bf16_nn", ("--dtype", "bf16", "--layout", "nn"), 45.0),
    Job("gemm_f16_nt", ("--dtype", "f16", "--triton"), 65.0),
    Job("gemm_f8e4m3_nt_fast", ("--dtype", "f8e4m3"), 50.0),
    Job("gemm_f8e4m3_nt_exact", ("--dtype", "f8e4m3", "--exact-sums"), 45.0),
    Job("gemm_tf32_nt", ("--dtype", "tf32"), 45.0),
    Job("gemm_i8_nt", ("--dtype", "i8"), 45.0),
)


def read(file: Path, since: float = 0.0) -> dict[str, Any] | None:
    """Results that were written since then."""
    return json.loads(file.read_text()) if file.exists() and file.stat().st_mtime >= since else None


def faults(found: dict[str, Any] | None, shapes: int) -> list[str]:
    """What is missing or wrong in a run, in words. Of the configs that were tried, a few may be wrong."""
    if found is None or len(found["rows"]) < shapes:
        return ["results are missing"]
    out = []
    for row in found["rows"]:
        out += [f"{row['shape']}: {name} is wrong" for name, right in row["correct"].items() if not right]
        out += [f"{row['shape']}: no {name}: {why}" for name, why in row["absent"].items()]
        if len(row["wrong"]) > MOST_WRONG * (len(row["wrong"]) + row["tried"]):
            out += [f"{row['shape']}: {told[-200:]}" for told in row["wrong"]]
    return out


def check(cache: Path, log: IO[str], seconds: float) -> None:
    """A small run. Raises what is wrong with it."""
    with tempfile.TemporaryDirectory() as folder:
        words = [str(GEMM), "--dtype", "bf16", *FEW, "--cache", str(cache), "--out", folder]
        with started(words, log) as child:
            why = ended(child, seconds)
        wrong = [*([why] if why else []), *faults(read(Path(folder) / "gemm_bf16_nt.json"), len(CHECKED))]
    if wrong:
        raise DeepgenError("the check failed, and nothing else was begun: " + "; ".join(wrong))


def run(job: Job, share: float, cache: Path, out: Path, log: IO[str], choices: Sequence[str] = MANY) -> str:
    words = [str(GEMM), *job.words, *choices, "--seconds", f"{share:.0f}", "--cache", str(cache), "--out", str(out)]
    with started(words, log) as child:
        return ended(child, HARD * share)


def line(job: Job, found: dict[str, Any] | None, why: str, seconds: float) -> str:
    if found is None or "cublaslt" not in found["summary"]:
        return f"{job.file:22} {seconds:4.0f} s  no results: {why or 'no rival'}"
    told = found["summary"]
    over = told["cublaslt"]
    words = f"mean {over['geomean']:.3f} least {over['least']:.3f} of {over['shapes']} shapes"
    words += ", the bar is reached" if told["reached"] else ", the bar is not reached"
    words += "" if told["all_correct"] else ", WRONG RESULTS"
    untried = sum(row["untried"] for row in found["rows"])
    return f"{job.file:22} {seconds:4.0f} s  {words}, {untried} configs left untried{'; ' + why if why else ''}"


def again(job: Job, share: float, cache: Path, out: Path, log: IO[str], since: float) -> str:
    """With known configs only; the results stay if they are of more shapes than there are."""
    with tempfile.TemporaryDirectory() as folder:
        why = run(job, share, cache, Path(folder), log, KNOWN_ONLY)
        fresh, had = read(Path(folder) / f"{job.file}.json"), read(out / f"{job.file}.json", since)
        if fresh and len(fresh["rows"]) > len(had["rows"] if had else ()):
            (out / f"{job.file}.json").write_text(json.dumps(fresh, indent=1) + "\n")
    return why


def prepare(jobs: Sequence[Job], cache: Path, log: IO[str], clock: Clock) -> None:
    """The check; and Triton's kernels, for which the runs would wait one after another."""
    dtypes = [job.words[1] for job in jobs if "--triton" in job.words]
    compiling = started([str(TRITON), *dtypes], log) if dtypes else nullcontext(None)
    with compiling as child:
        check(cache, log, CHECK_SECONDS)
        print(f"checked, {clock.spent():.0f} s", flush=True)
        if child is not None:
            why = ended(child, TRITON_SECONDS - clock.spent())
            print(f"Triton's kernels: {why or 'compiled'}, {clock.spent():.0f} s", flush=True)


def whole(jobs: Sequence[Job], out: Path, seconds: float, log: IO[str]) -> list[str]:
    """Names of the runs that are not complete."""
    clock, since, shapes = Clock(seconds), time.time(), len(suite())

    def results(job: Job) -> dict[str, Any] | None:
        return read(out / f"{job.file}.json", since)

    def incomplete(job: Job) -> bool:
        found = results(job)
        return found is None or len(found["rows"]) < shapes

    # Builds of a run that was killed may still write there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        cache = Path(folder)
        prepare(jobs, cache, log, clock)
        for place, job in enumerate(jobs):
            begun, share = clock.spent(), clock.left() * job.usual / sum(j.usual for j in jobs[place:])
            why = run(job, min(share, clock.left() / HARD), cache, out, log)
            print(line(job, results(job), why, clock.spent() - begun), flush=True)
        for job in filter(incomplete, jobs):
            if clock.left() > LEAST:
                begun = clock.spent()
                why = again(job, clock.left() / HARD, cache, out, log, since)
                print("again", line(job, results(job), why, clock.spent() - begun), flush=True)
    for part in out.glob("*.new"):  # of a run that was killed
        part.unlink()
    return [job.file for job in jobs if incomplete(job)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--seconds", type=float, default=540.0, help="for all of it")
    parser.add_argument("--runs", nargs="+", choices=[job.file for job in JOBS], help="only these")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    jobs = [job for job in JOBS if options.runs is None or job.file in options.runs]
    file = options.out / "whole.log"
    with file.open("w") as log:
        try:
            missing = whole(jobs, options.out, options.seconds, log)
        except DeepgenError:
            print(file.read_text()[-TAIL:], flush=True)
            raise
    if missing:
        raise DeepgenError(f"not complete: {', '.join(missing)}")


if __name__ == "__main__":
    run_main(main)
