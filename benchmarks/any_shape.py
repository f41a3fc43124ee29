"""Are our GEMMs ahead on untuned shapes? Shapes drawn by a seed: the default, and after some seconds.

    python benchmarks/any_shape.py --target cuda:native --seed 2 [--dtype bf16] [--json FILE]
    taskset -c 0,1 python benchmarks/any_shape.py --target cpu --seed 2 --seconds 20:12 --threads 2 [--warm]

Sizes are log-uniform from 1 to 16384; a third have rows that are not multiples of 16 bytes, a quarter are batches. The
default of each is raced against the baselines without a search (`--guesses` also races the best guess of every family);
subsets drawn by the seed are tuned by the plain command, with `--seconds S:N` for N of them. Cases in which a vendor
has only padded copies or less accurate results for a shape are counted separately.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import geometric_mean

from deepgen import baselines, generators, targets
from deepgen.baselines.base import PackedAhead
from deepgen.libraries.racing import Runners, opened
from deepgen.operators import Gemm, Operator, gemm
from deepgen.targets import Target
from deepgen.toolchains import build_once
from deepgen.vocabulary import DeepgenError, dtype
from first_seconds import Case, run
from harness import Deadline, Options, parser, run_main, save, table
from harness.cases import draw, size
from harness.options import Parser
from harness.race import DEFAULT, ROUGH, Choice, Place, race

LARGEST, MOST_FLOPS, MOST_BYTES = 16384, 2e12, 8 << 30
LARGEST_ON_CPU, MOST_FLOPS_ON_CPU = 4096, 4e9
SHORT_LINES, BATCHED = 1 / 3, 1 / 4  # shares of the cases
LAYOUTS = ("nt", "nn", "tn", "tt")
KERNEL, COPIES = "vendor's kernel", "padded copies"
OTHERS = (COPIES, ROUGH)  # counted separately
AHEAD = (PackedAhead.form, "x as u8", "sums as f32")  # remarks of those that count: the last two are oneDNN's in i8


@dataclass(frozen=True)
class Drawn:
    """An operator, the groups in which its ratios are counted, and the words for the command."""

    operator: Operator
    tags: tuple[str, ...]
    words: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """One shape: our speedup over the fastest baseline, by preference over one that counts."""

    shape: str
    dtype: str
    tags: tuple[str, ...]
    seconds: float  # time for tuning; 0: the default, without a search
    ratio: float | None = None
    over: str = ""  # the kind of baseline: KERNEL, COPIES, ROUGH
    time: float | None = None
    beside: tuple[tuple[str, float], ...] = ()  # speedup over each
    trials: int = 0
    error: str = ""  # or what a study skipped for lack of time


def drawn(options: Options, kind: str) -> list[Drawn]:
    """A larger count starts with the same cases."""
    on_cpu = options.target == "cpu"
    largest, most = (LARGEST_ON_CPU, MOST_FLOPS_ON_CPU) if on_cpu else (LARGEST, MOST_FLOPS)
    layouts = LAYOUTS if dtype(kind).bytes == 2 or kind == "f32" else LAYOUTS[:1]
    whole = max(1, 16 // dtype(kind).bytes)

    def make(chance: random.Random) -> Drawn:
        while True:
            m, n, k = (size(chance, 1, largest) for _ in range(3))
            batch = size(chance, 2, 512) if chance.random() < BATCHED else 1
            layout, short = chance.choice(layouts), chance.random() < SHORT_LINES
            if not short:
                m, n, k = (-(-one // whole) * whole for one in (m, n, k))
            operator = gemm(m, n, k, batch=batch, dtype=kind, layout=layout)
            if aligned(operator) != short and operator.flops() <= most and operator.least_bytes() <= MOST_BYTES:
                sizes = {"M": m, "N": n, "K": k, "batch": batch, "dtype": kind, "layout": layout}
                words = ("gemm", *(f"{name}={value}" for name, value in sizes.items()))
                return Drawn(operator, ("not aligned",) if short else (), words)

    return draw(options.seed, options.cases, make)


def aligned(operator: Gemm) -> bool:
    """Whether the row lengths of all three matrices are multiples of 16 bytes."""
    scalars = operator.scalars()
    sizes = {letter: dtype(getattr(operator, letter)).bytes for letter in "abc"}
    return all(int(scalars[f"ld{letter}"]) * each % 16 == 0 for letter, each in sizes.items())


def result(case: Drawn, seconds: float, **more: object) -> Result:
    of = case.operator.tensors()[0].dtype.name
    return Result(case.operator.describe(), of, case.tags, seconds, **more)  # type: ignore[arg-type]


def defaults(cases: Sequence[Drawn], options: Options, target: Target, deadline: Deadline) -> Iterator[Result]:
    """Kernels are built in parallel before the first race."""
    place = Place(target, not options.warm, options.threads)
    with opened() as runners, ThreadPoolExecutor(options.jobs) as pool:
        ready = [pool.submit(_build, case.operator, options, place) for case in cases]
        for case, built in zip(cases, ready, strict=True):
            if deadline.over:
                return
            try:
                yield _default(case, place, built.result(), runners, options.rounds)
            except DeepgenError as error:
                yield result(case, 0.0, error=str(error))


def _build(operator: Operator, options: Options, place: Place) -> dict[str, Choice]:
    """The default first, then other families' best guesses if requested."""
    named = options.family and [generators.find(operator, place.target, options.family)]
    able, choices = named or generators.serving(operator, place.target), {}
    for number, family in enumerate(able if options.guesses else able[:1]):
        choice = Choice(family, family.default(operator, place.limited()))
        build_once(family.emit(operator, place.target, choice.config), place.target)
        choices[family.name if number else DEFAULT] = choice
    return choices


def _default(case: Drawn, place: Place, choices: dict[str, Choice], runners: Runners, rounds: int | None) -> Result:
    raced = race(case.operator, place, choices, runners, rounds=rounds)
    beside = tuple((", ".join(filter(None, (name, one.remark))), one.ratio) for name, one in raced.beside.items())
    failed = "; ".join(f"{name} {why[:60]}" for name, why in raced.failed.items())
    rivals = [one for one in beside if one[0].partition(",")[0] in baselines.BASELINES]
    return result(case, 0.0, **counted(rivals), time=raced.seconds, beside=beside, error=failed)


def counted(beside: Sequence[tuple[str, float]]) -> dict[str, object]:
    """The ratio that counts, and the kind of baseline: a kernel, else padded copies, else a less accurate one."""
    for over, marks in ((KERNEL, ()), (COPIES, (COPIES,)), (ROUGH, (COPIES, ROUGH))):
        ratios = [ratio for name, ratio in beside if {*name.split(", ")[1:]} <= {*AHEAD, *marks}]
        if ratios:
            return {"over": over, "ratio": min(ratios)}
    return {}


def studies(cases: Sequence[Drawn], seconds: float, options: Options, deadline: Deadline) -> Iterator[Result]:
    """By the plain command, from empty caches."""
    given = {"--threads": options.threads, "--family": options.family}
    more = [word for name, value in given.items() if value for word in (name, str(value))]
    more += ["--warm"] if options.warm else []
    for case in cases:
        if deadline.over:
            return
        outcome = run(Case(case.operator.describe(), (*case.words, *more)), options, seconds)
        time = outcome.curve[-1][1] if outcome.curve else None
        why = outcome.error or ", ".join(outcome.left_out)
        found = {"beside": outcome.beside, "trials": outcome.trials, "error": why}
        yield result(case, seconds, **counted(outcome.beside), time=time, **found)


def summary(results: Sequence[Result]) -> list[tuple[object, ...]]:
    """Geometric means and minima for each format and time: over vendors' kernels, for all cases and for those with a
    tag, such as not aligned, and over the alternatives where vendors have no kernel.
    """
    rows: list[tuple[object, ...]] = []
    for kind, seconds in sorted({(one.dtype, one.seconds) for one in results}):
        mine = [one for one in results if (one.dtype, one.seconds) == (kind, seconds)]
        tags = sorted({tag for one in mine for tag in one.tags})
        tagged = ((tag, KERNEL, [one for one in mine if tag in one.tags]) for tag in tags)
        for what, over, some in (("all", KERNEL, mine), *tagged, *((o, o, mine) for o in OTHERS)):
            ratios = sorted(one.ratio for one in some if one.ratio and one.over == over)
            mean = geometric_mean(ratios) if ratios else None
            rows.append((kind, f"{seconds:g}", what, len(some), len(ratios), mean, *(ratios[:3] + [None] * 3)[:3]))
    return rows


def _subset(text: str) -> tuple[float, int]:
    seconds, _, count = text.partition(":")
    return float(seconds), int(count or 16)


def words_of_all(about: str | None) -> Parser:
    words = parser(about, seed=1)
    words.add_argument("--target", default="cpu", help="cpu or cuda:native [cpu]")
    words.add_argument("--dtype", action="append", help="a format, repeatedly")
    words.add_argument("--cases", type=int, default=48, help="of each format [48]")
    words.add_argument(
        "--seconds", type=_subset, action="append", default=[], metavar="S:N", help="tune N of them so long"
    )
    words.add_argument("--no-default", action="store_true", help="only what is tuned")
    words.add_argument("--guesses", action="store_true", help="the best guess of every family, too")
    words.add_argument("--rounds", type=int, help="of a default's race [as finals have]")
    words.add_argument("--threads", type=int, help="of kernels and baselines on a processor")
    words.add_argument("--warm", action="store_true", help="with data in the caches")
    words.add_argument("--family", help="such as rules_constant_weights [the fastest]")
    words.add_argument("--jobs", type=int, default=2, help="builds at a time [2]")
    words.set_defaults(no_bytecode=False)
    return words


def measured(groups: Mapping[str, Sequence[Drawn]], options: Options) -> list[Result]:
    """The defaults of each group, and the result of tuning some of them; printed one by one and in a table."""
    target, deadline, results = targets.resolve(options.target), options.deadline(), list[Result]()
    for name, every in groups.items():
        runs = [] if options.no_default else [defaults(every, options, target, deadline)]
        for seconds, count in options.seconds:
            some = random.Random(f"{options.seed} {name} {seconds}").sample(every, min(count, len(every)))
            runs.append(studies(some, seconds, options, deadline))
        for one in (row for rows in runs for row in rows):
            results.append(one)
            cells = (one.shape, f"{one.seconds:g}", one.ratio, one.over, one.time, one.trials, one.beside, one.error)
            print(*cells, flush=True)
    heads = ("format", "seconds", "which", "cases", "ratios", "mean", "least", "", "")
    print(table(heads, summary(results)))
    save(options.json, results, seed=options.seed, target=options.target)
    return results


def main() -> int:
    options = words_of_all(__doc__).options()
    measured({kind: drawn(options, kind) for kind in options.dtype or ["bf16"]}, options)
    return 0


if __name__ == "__main__":
    run_main(main)
