"""What each benchmark answers: `python -m benchmarks` lists them, `python -m benchmarks NAME ...` runs one."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# By subject. Files that are not benchmarks by themselves are not listed.
SUBJECTS: dict[str, tuple[str, ...]] = {
    "Kernels beside other libraries": (
        "gemm", "any_shape", "any_conv", "any_rows", "attention", "attention_backward", "four_bits", "grouped",
        "fused", "block_scaled", "kernelbench", "triton_examples", "models", "riscv", "triton_calls",
    ),
    "Calls": ("call_costs", "torch_calls"),
    "Search": ("search", "record"),
    "Are results right?": ("device_check", "sanitize", "judgement", "judge_cost", "tolerance", "triton_suite"),
    "Does it survive?": ("chaos", "damaged_journals", "fuzz"),
    "What deepgen itself costs": ("first_seconds", "compile_speed", "times_before_after"),
    "The README": ("readme_results", "readme_terminal"),
}  # fmt: skip


def answer(name: str) -> str:
    """The first line of a benchmark's docstring."""
    text = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8")))
    return (text or "").splitlines()[0]


def main() -> None:
    if len(sys.argv) == 1 or sys.argv[1] in ("-h", "--help"):
        print("python -m benchmarks NAME [OPTIONS]; `--help` behind a name shows its options.")
        for subject, names in SUBJECTS.items():
            print(f"\n{subject}")
            for name in names:
                print(f"  {name:18} {answer(name)}")
        return
    name = sys.argv[1].removesuffix(".py")
    if not any(name in names for names in SUBJECTS.values()):
        raise SystemExit(f"there is no benchmark {name!r}: `python -m benchmarks` lists them")
    sys.path.insert(0, str(HERE))
    sys.argv[:2] = [str(HERE / f"{name}.py")]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
