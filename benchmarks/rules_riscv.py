"""Kernels by rules on RISC-V vectors, in instructions counted under qemu, beside plain loops as the compiler has them.

    python benchmarks/rules_riscv.py                        the default config of each operator, at 256 bits
    python benchmarks/rules_riscv.py --target riscv:rv64gcv_zvl128b --only softmax

The loops are those of the expression as it is written: an empty schedule, compiled as any kernel is (clang, -O3). Both
are verified. A ratio is of the loops over the rules: of instructions, and of their cost, in which an instruction on a
group of vector registers counts once for each register (docs/riscv.md).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from common import by_lines, conditions, run_main
from deepgen import generators, targets
from deepgen.compiler.passes.lower import lower
from deepgen.compiler.text.c import kernel as in_c
from deepgen.operators import OPERATORS, Operator
from deepgen.operators.expr.nodes import HasExpression
from deepgen.run.measure import Runner, Task, open_runner
from deepgen.targets import Target
from deepgen.toolchains import build_once
from deepgen.vocabulary import DeepgenError, Kernel

RESULTS = Path(__file__).parent / "results" / "rules_riscv.json"
DTYPES = ("f32", "f16", "i8")
COUNTED = ("instructions", "cycles")
CASES: dict[str, dict[str, Any]] = {
    "c2d": {"N": 1, "H": 14, "W": 14, "CI": 16, "CO": 32, "k": 3, "pad": 1, "layout": "nhwc"},
    "dep": {"N": 1, "H": 14, "W": 14, "C": 32, "k": 3, "pad": 1, "layout": "nhwc"},
    "gemv": {"M": 64, "K": 256},
    "softmax": {"rows": 16, "cols": 256},
}


def main() -> None:
    asked = _arguments()
    target, rows = targets.resolve(asked.target), []
    for name, words in CASES.items():
        for dtype in DTYPES:
            if (asked.only and name not in asked.only) or (name == "softmax" and dtype == "i8"):
                continue
            operator = OPERATORS.get(name).make({**words, "dtype": dtype})
            runner = open_runner(Task(operator, target))
            try:
                rules, loops = (_counted(runner, one, target) for one in (_rules(operator, target), _loops(operator)))
            finally:
                runner.close()
            rows.append({"operator": name, "dtype": dtype, "words": words, "rules": rules, "loops": loops})
            asked.output.write_text(by_lines({"conditions": conditions(), "results": rows}))
            told = [f"{rules[of] / 1e3:8.1f} {loops[of] / 1e3:8.1f} {loops[of] / rules[of]:6.2f}" for of in COUNTED]
            print(f"{name:8s} {dtype:4s} thousands of instructions {told[0]}   cost {told[1]}", flush=True)


def _rules(operator: Operator, target: Target) -> Kernel:
    family = generators.by_name("rules")
    return family.emit(operator, target, family.default(operator, target))


def _loops(operator: Operator) -> Kernel:
    assert isinstance(operator, HasExpression)
    return in_c(lower(operator.expression(), ()))


def _counted(runner: Runner, kernel: Kernel, target: Target) -> dict[str, float]:
    """What a call takes."""
    measured = runner.measure(kernel, build_once(kernel, target))
    if not measured.ok:
        raise DeepgenError(f"{kernel.name}: {measured.detail}")
    return {name: float(str(measured.conditions[name])) for name in COUNTED}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="riscv:rv64gcv_zvl256b")
    parser.add_argument("--only", action="append", help="an operator")
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
