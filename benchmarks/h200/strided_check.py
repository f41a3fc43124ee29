"""Are the defaults of all GEMM families right on tensors with room between their rows? On an NVIDIA GPU.

PYTHONPATH=src python benchmarks/h200/strided_check.py [--out benchmarks/h200/strided_check.json]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src")]

from deepgen import generators, targets  # noqa: E402
from deepgen.operators import gemm  # noqa: E402
from deepgen.run.measure.base import STRIDED, Task  # noqa: E402
from deepgen.tuning.engines import LocalEngine  # noqa: E402
from deepgen.vocabulary import DeepgenError, Verdict  # noqa: E402

DTYPES = ("f32", "f64", "f16", "bf16", "tf32", "i8", "f8e4m3")
SHAPES = ((512, 512, 512), (200, 136, 176), (16, 512, 512))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda:native")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    target, rows = targets.resolve(given.target), list[dict[str, Any]]()
    for dtype in DTYPES:
        for shape in SHAPES:
            operator = gemm(*shape, dtype=dtype, layout="nt")
            with LocalEngine().open(Task(operator, target)) as session:
                for family in generators.serving(operator, target):
                    try:
                        kernel = family.emit(operator, target, family.default(operator, target))
                        found = session.verify(kernel, 1, STRIDED)
                        verdict, detail = found.verdict, found.detail
                    except DeepgenError as error:
                        verdict, detail = Verdict.BUILD_FAILED, str(error)
                    ok = verdict in (Verdict.CORRECT, Verdict.REFUSED)
                    rows.append({"operator": operator.describe(), "family": family.name, "verdict": verdict.value})
                    told = f"{operator.describe():32} {family.name:12} {verdict.value} {detail[:80]}"
                    print(f"{'ok ' if ok else 'BAD'} {told}")
                    rows[-1] |= {"detail": detail, "ok": ok}
    bad = sum(not row["ok"] for row in rows)
    print(f"{len(rows)} rows, {bad} bad")
    if given.out:
        given.out.write_text(json.dumps({"device": target.describe(), "rows": rows}, indent=1))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
