"""CUTLASS's profiler on matrix products: its fastest kernel for each shape, beside a study's winner.

    python benchmarks/cutlass_profiler.py --profiler PATH/cutlass_profiler --shapes 4096x4096x4096 --json cutlass.json

The profiler times its own kernels by its own clock, with warm caches unless told otherwise, so this is no paired race:
compare it with `deepgen tune --warm`. It is built from CUTLASS's sources (`make cutlass_profiler`).
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from common import run_main, save  # noqa: E402
from deepgen.operators import Gemm, gemm  # noqa: E402
from deepgen.vocabulary import BadInput, Missing  # noqa: E402

_NAMES = {"bf16": "bf16", "f16": "f16", "f32": "f32", "tf32": "tf32", "f8e4m3": "e4m3", "i8": "s8"}
_SIDES = {"n": ("row", "row"), "t": ("column", "column")}  # of A, of B, as the profiler calls them


@dataclass(frozen=True)
class Fastest:
    """The fastest kernel that the profiler found right."""

    operator: str
    kernel: str
    seconds: float
    gflops: float


def command(profiler: Path, operator: Gemm, out: Path) -> list[str]:
    """What profiles all kernels of the library for a product."""
    if operator.a not in _NAMES or operator.a != operator.b:
        raise BadInput(f"the profiler is not asked for {operator.describe()}", allowed=", ".join(_NAMES))
    sides = (_SIDES[operator.layout[0]][0], _SIDES[operator.layout[1]][1])
    tensors = [f"--{name}={_NAMES[operator.a]}:{side}" for name, side in zip("AB", sides, strict=True)]
    sizes = {"m": operator.m, "n": operator.n, "k": operator.k, "batch_count": operator.batch}
    return [
        str(profiler), "--operation=Gemm", *(f"--{name}={size}" for name, size in sizes.items()), *tensors,
        "--verification-enabled=true", f"--output={out}",
    ]  # fmt: skip


def fastest(text: str, operator: Gemm) -> Fastest | None:
    """The fastest row of the profiler's table that was not found wrong."""
    rows = [row for row in csv.DictReader(text.splitlines()) if row.get("Disposition") in ("passed", "not_verified")]
    times = [(float(row["Runtime"]), row) for row in rows if float(row["Runtime"] or 0) > 0]
    if not times:
        return None
    milliseconds, row = min(times, key=lambda pair: pair[0])
    return Fastest(operator.describe(), row["Operation"], milliseconds * 1e-3, operator.flops() / milliseconds / 1e6)


def profiled(profiler: Path, operator: Gemm) -> Fastest | None:
    if not profiler.is_file():
        raise Missing(str(profiler), blocks="CUTLASS cannot be profiled", remedy="Build it, and give its path.")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command(profiler, operator, Path(folder) / "found"), capture_output=True, text=True, check=False
        )
        tables = sorted(Path(folder).glob("found*.csv"))
        if done.returncode != 0 or not tables:
            raise BadInput(
                f"{profiler} failed: {(done.stderr or done.stdout).strip()[-300:]}", allowed="see its --help"
            )
        return fastest(tables[0].read_text(encoding="utf-8"), operator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiler", type=Path, required=True)
    parser.add_argument("--shapes", nargs="+", default=["4096x4096x4096"], metavar="MxNxK")
    parser.add_argument("--dtype", choices=(*_NAMES,), default="bf16")
    parser.add_argument("--layout", choices=("nn", "nt", "tn", "tt"), default="nt")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for shape in given.shapes:
        operator = gemm(*map(int, shape.split("x")), dtype=given.dtype, layout=given.layout)
        found = profiled(given.profiler, operator)
        print(f"{operator.describe()}: " + ("nothing served" if found is None else
              f"{found.seconds * 1e6:.2f} us, {found.gflops:.0f} GFLOP/s, {found.kernel}"))  # fmt: skip
        rows += [] if found is None else [asdict(found)]
    if given.json is not None:
        save(given.json, rows)


if __name__ == "__main__":
    run_main(main)
