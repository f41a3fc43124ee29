"""The examples in Triton on RISC-V vectors: each verified under qemu, and its instructions counted.

    python benchmarks/triton_riscv.py                                       at 128 and at 256 bits
    python benchmarks/triton_riscv.py --target riscv:rv64gcv_zvl512b --only softmax

Both widths come from the same source, each with a program of its own. Sizes are small, and no block divides them. A
kernel is run on all inputs of a search (random ones and special ones) between guard zones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import triton_calls
from common import by_lines, conditions, run_main
from deepgen import targets
from deepgen.run.measure import Task, open_runner
from deepgen.toolchains import build_once

RESULTS = Path(__file__).parent / "results" / "triton_riscv.json"
TARGETS = ("riscv:rv64gcv_zvl128b", "riscv:rv64gcv_zvl256b")


def main() -> int:
    asked = _arguments()
    rows = []
    for name in asked.only or triton_calls.NAMES:
        own, _ = triton_calls.example(name)
        operator = own.operator(**triton_calls.SMALL[name])
        for spelled in asked.target or TARGETS:
            target = targets.resolve(spelled)
            kernel = own.family.emit(operator, target, own.family.default(operator, target))
            runner = open_runner(Task(operator, target))
            try:
                measured = runner.measure(kernel, build_once(kernel, target))
            finally:
                runner.close()
            counted = float(str(measured.conditions["instructions"])) if measured.ok else None
            rows.append({"example": name, "target": spelled, "right": measured.ok, "instructions": counted})
            asked.output.write_text(by_lines({"conditions": conditions(), "results": rows}))
            told = f"right, {counted:.0f} instructions" if measured.ok else f"wrong: {measured.detail}"
            print(f"{name:14s} {spelled:24s} {told}", flush=True)
    right = sum(row["right"] is True for row in rows)
    print(f"{right} of {len(rows)} right")
    return int(right < len(rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", help="may be given several times")
    parser.add_argument("--only", action="append", choices=triton_calls.NAMES, help="an example")
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
