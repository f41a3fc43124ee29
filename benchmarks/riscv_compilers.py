"""The same kernels for RISC-V by every compiler that is there: are they built, are they right, what do they execute?

    python benchmarks/riscv_compilers.py [--gcc riscv64-linux-gnu-gcc-14] [--qemu qemu-riscv64]

gcc needs version 14, and kernels of f16 a qemu with their vectors (10 has them). Counts are proxies, not times.
Writes benchmarks/results/riscv_compilers.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from common import run_main, save
from deepgen import generators, targets
from deepgen.kernels.base import Generator
from deepgen.operators import Operator, gemm
from deepgen.run.measure import Task, open_runner
from deepgen.targets import Target
from deepgen.toolchains import BuildError, build_once, programs
from deepgen.vocabulary import BadInput

RESULTS = Path(__file__).parent / "results" / "riscv_compilers.json"
CASES: tuple[tuple[str, str, Operator, Mapping[str, Any]], ...] = (
    ("riscv:rv64gcv_zvl256b", "rvv_gemm", gemm(33, 50, 20), {}),
    ("riscv:rv64gcv_zvl256b", "rvv_gemm", gemm(33, 50, 20), {"MR": 4, "NR": 1}),
    ("riscv:rv64gcv_zvl256b", "rvv_gemm", gemm(33, 50, 20, dtype="i8"), {"MR": 4, "NR": 1}),
    ("riscv:rv64gcv_zvl128b_zvfh", "rvv_gemm", gemm(33, 70, 60, dtype="f16"), {"MR": 4, "NR": 1}),
    ("riscv:rv64gcv_zvl256b", "c_gemm", gemm(33, 50, 20), {}),
)


def compilers(gcc: str | None) -> Iterator[tuple[str, str]]:
    """Their names in the settings, and their paths."""
    for name, path in (("clang", None), ("zig", None), ("riscv64-linux-gnu-gcc", gcc)):
        if found := path or programs.search(name):
            yield name, found


def config_of(family: Generator, operator: Operator, target: Target, part: Mapping[str, Any]) -> Mapping[str, Any]:
    """The default, or the first config of a sample that has these values."""
    if not part:
        return family.default(operator, target)
    drawn = family.space(operator, target).sample(3000, seed=1)
    return next(config for config in drawn if all(config[name] == value for name, value in part.items()))


def tried(
    case: tuple[str, str, Operator, Mapping[str, Any]], compiler: tuple[str, str], qemu: str | None
) -> dict[str, Any]:
    target, family, operator, part = targets.resolve(case[0]), generators.by_name(case[1]), case[2], case[3]
    kernel = family.emit(operator, target, config_of(family, operator, target, part))
    told = {"target": target.name, "family": family.name, "operator": operator.describe(), "tile": dict(part)}
    try:
        artifact = build_once(kernel, target, paths=dict((compiler,)))
    except (BuildError, BadInput) as error:
        return {**told, "compiler": compiler[0], "verdict": "build_failed", "detail": str(error)[:200]}
    runner = open_runner(Task(operator, target), toolchains={"qemu-riscv64": qemu} if qemu else None)
    try:
        found = runner.measure(kernel, artifact)
    finally:
        runner.close()
    counts = {name: found.conditions.get(name) for name in ("qemu", "instructions", "cycles")}
    return {**told, "compiler": artifact.toolchain, "verdict": found.verdict.value, "detail": found.detail, **counts}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--gcc")
    arguments.add_argument("--qemu")
    given = arguments.parse_args()
    rows = [tried(case, compiler, given.qemu) for case in CASES for compiler in compilers(given.gcc)]
    table = Table("operator", "family", "tile", "compiler", "verdict", "instructions", "weighted")
    for row in rows:
        tile = ", ".join(f"{name}={value}" for name, value in row["tile"].items()) or "the default"
        counted = (str(row.get(name) or "-") for name in ("instructions", "cycles"))
        table.add_row(row["operator"], row["family"], tile, row["compiler"], row["verdict"], *counted)
    Console(width=130).print(table)
    save(RESULTS, rows)


if __name__ == "__main__":
    run_main(main)
