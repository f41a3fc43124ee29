"""How many instructions do kernels take on RISC-V vectors? Counted under qemu, beside plain loops; not times.

    python benchmarks/riscv.py                                                    everything, at 128 and 256 bits
    python benchmarks/riscv.py --target riscv:rv64gcv_zvl512b --only softmax

GEMM is tuned for some trials; rules and the Triton examples use their default configs. All are verified. The plain
loops are the expression as written: an empty schedule, compiled like any kernel (clang, -O3). A ratio is the loops'
count over ours: of instructions, and of their cost, in which an instruction on a group of vector registers counts once
for each register (docs/riscv.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import deepgen as dg
from deepgen import generators, targets
from deepgen.compiler.passes.lower import lower
from deepgen.compiler.text.c import kernel as in_c
from deepgen.operators import OPERATORS, Operator, gemm
from deepgen.operators.expr.nodes import HasExpression
from deepgen.run.measure import Task, open_runner
from deepgen.targets import Target
from deepgen.toolchains import build_once
from deepgen.vocabulary import DeepgenError, Kernel
from harness import parser, run_main, save, table

TARGETS = ("riscv:rv64gcv_zvl128b", "riscv:rv64gcv_zvl256b")
SIZE, TRIALS = 256, 60
RULES: dict[str, dict[str, Any]] = {
    "conv2d": {"N": 1, "H": 14, "W": 14, "CI": 16, "CO": 32, "k": 3, "pad": 1, "layout": "nhwc"},
    "depthwise_conv2d": {"N": 1, "H": 14, "W": 14, "C": 32, "k": 3, "pad": 1, "layout": "nhwc"},
    "gemv": {"M": 64, "K": 256},
    "softmax": {"rows": 16, "cols": 256},
}


@dataclass(frozen=True)
class Counts:
    instructions: float
    cost: float


@dataclass(frozen=True)
class Row:
    case: str
    target: str
    ours: Counts
    loops: Counts | None


@dataclass(frozen=True)
class Case:
    name: str
    operator: Operator
    kernel: Callable[[Target], Kernel]


def counted(operator: Operator, kernel: Kernel, target: Target) -> Counts:
    """The counts of one call. Raises if the kernel is wrong."""
    runner = open_runner(Task(operator, target))
    try:
        measured = runner.measure(kernel, build_once(kernel, target))
    finally:
        runner.close()
    if not measured.ok:
        raise DeepgenError(f"{kernel.name}: {measured.verdict}: {measured.detail}")
    conditions = measured.conditions
    return Counts(float(str(conditions["instructions"])), float(str(conditions["cycles"])))


def loops(operator: Operator) -> Kernel | None:
    return in_c(lower(operator.expression(), ())) if isinstance(operator, HasExpression) else None


def all_cases(trials: int) -> Iterator[Case]:
    square = gemm(SIZE, SIZE, SIZE)

    def tuned(target: Target) -> Kernel:
        with TemporaryDirectory() as out:
            study = dg.tune(square, target=target, trials=trials, out=out, transfer=False, second_look=False)
            family = generators.find(square, target)
            return family.emit(square, target, study.best().trial.config)

    yield Case(f"gemm {SIZE}, tuned", square, tuned)
    rules = generators.by_name("rules")
    for name, words in RULES.items():
        for dtype in ("f32", "f16", "i8"):
            if (name, dtype) != ("softmax", "i8"):
                operator = OPERATORS.get(name).make({**words, "dtype": dtype})
                yield Case(f"rules {name} {dtype}", operator, _default(rules, operator))
    try:
        from triton_calls import NAMES, SMALL, example
    except ImportError as error:
        print(f"without Triton: {error}")
        return
    for name in NAMES:
        own, _ = example(name)
        operator = own.operator(**SMALL[name])
        yield Case(f"triton {name}", operator, _default(own.family, operator))


def _default(family: generators.Generator, operator: Operator) -> Callable[[Target], Kernel]:
    return lambda target: family.emit(operator, target, family.default(operator, target))


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--target", action="append", help=f"may be repeated [{' '.join(TARGETS)}]")
    words.add_argument("--trials", type=int, default=TRIALS, help=f"of GEMM [{TRIALS}]")
    options = words.options()
    deadline, rows, wrong = options.deadline(), list[Row](), 0
    for case in options.chosen(all_cases(options.trials), lambda one: one.name):
        plain = loops(case.operator)
        for name in options.target or TARGETS:
            if deadline.over:
                break
            target = targets.resolve(name)
            try:
                ours = counted(case.operator, case.kernel(target), target)
                beside = counted(case.operator, plain, target) if plain is not None else None
            except DeepgenError as error:
                print(f"{case.name} on {name}: {error}", flush=True)
                wrong += 1
                continue
            rows.append(Row(case.name, name, ours, beside))
            save(options.json, rows)
    heads = ("case", "target", "instructions", "loops / ours", "cost", "loops / ours")
    print(table(heads, [(row.case, row.target.rpartition("_")[2], *_cells(row)) for row in rows]))
    return int(wrong > 0)


def _cells(row: Row) -> Iterator[str]:
    for of in ("instructions", "cost"):
        yield f"{getattr(row.ours, of):.0f}"
        yield f"{getattr(row.loops, of) / getattr(row.ours, of):.2f}" if row.loops else "-"


if __name__ == "__main__":
    run_main(main)
