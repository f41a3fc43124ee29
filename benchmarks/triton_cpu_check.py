"""Triton kernels for another processor than this one: compiled here with Triton 3.9, run and verified there.

    python benchmarks/triton_cpu_check.py pack FOLDER x86:amx x86:avx512 x86:avx2
    python benchmarks/triton_cpu_check.py run FOLDER

These are the small kernels of `tests/triton_cpu`, and products of narrow numbers in all sizes. Of targets whose
instructions the processor lacks nothing is run.
"""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src"), str(HERE.parent / "tests" / "triton_cpu")]

from common import run_main  # noqa: E402
from deepgen import targets  # noqa: E402

NAMES = "targets.json"


def groups() -> dict[str, tuple[list[Any], str]]:
    """Cases by name, and lines of C before them: which numbers are multiplied in tiles."""
    from kernel_calls import CASES, NARROW_PRODUCTS
    from user_calls import CASES as USERS

    return {
        "kernels": (CASES, ""),
        "users": (USERS, ""),
        "products_bf16": (NARROW_PRODUCTS["bf16"], "#define TILES_OF_BF16\n"),
        "products_i8": (NARROW_PRODUCTS["i8"], "#define TILES_OF_I8\n"),
    }


def pack(folder: Path, names: list[str]) -> int:
    from harness import compile_cases

    for name in names:
        for group, (cases, given) in groups().items():
            into = folder / name.replace(":", "_") / group
            into.mkdir(parents=True, exist_ok=True)
            compile_cases(cases, into, targets.resolve(name), "-O3", given=given)
    (folder / NAMES).write_text(json.dumps(names))
    return 0


def run(folder: Path) -> int:
    from harness import Compiled, check

    here = set(getattr(targets.resolve("cpu"), "isa", ()))
    failed = 0
    for name in json.loads((folder / NAMES).read_text()):
        lacking = set(getattr(targets.resolve(name), "isa", ())) - here
        if lacking:
            print(f"{name}: not run, this processor lacks {', '.join(sorted(lacking))}")
            continue
        for group, (cases, _) in groups().items():
            wrong = []
            compiled = Compiled(cases, folder / name.replace(":", "_") / group)
            for case in cases:
                try:
                    check(compiled, case)
                except AssertionError as error:
                    wrong.append(case.name)
                    print(str(error)[:600])
            failed += len(wrong)
            print(
                f"{name} {group}: {len(cases) - len(wrong)} of {len(cases)} right; wrong: {wrong or 'none'}", flush=True
            )
    return int(failed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["pack", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("targets", nargs="*", default=["cpu"])
    given = parser.parse_args()
    return pack(given.folder, given.targets) if given.what == "pack" else run(given.folder)


if __name__ == "__main__":
    run_main(main)
