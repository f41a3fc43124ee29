"""CUTLASS's profiler: what it is asked, and what is taken from its table. A script stands in for it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from deepgen.operators import gemm
from deepgen.vocabulary import DeepgenError

FILE = Path(__file__).parents[2] / "benchmarks" / "cutlass_profiler.py"
TABLE = """Problem,Provider,OperationKind,Operation,Disposition,Status,Runtime,GFLOPs
1,CUTLASS,gemm,slow_kernel,passed,success,0.50,1
1,CUTLASS,gemm,wrong_kernel,incorrect,success,0.10,1
1,CUTLASS,gemm,fast_kernel,passed,success,0.25,1
"""


@pytest.fixture(scope="module")
def profiler() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cutlass_profiler", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cutlass_profiler"] = module
    spec.loader.exec_module(module)
    return module


def test_the_fastest_right_kernel_is_taken(profiler: ModuleType, tmp_path: Path) -> None:
    operator = gemm(256, 512, 128, dtype="bf16", layout="nt")
    stand_in = tmp_path / "cutlass_profiler"
    stand_in.write_text(
        "#!/bin/sh\n"
        "for word; do case $word in --output=*) out=${word#--output=};; esac; done\n"
        f"cat > $out.gemm.csv <<'END'\n{TABLE}END\n"
        f"echo $* > {tmp_path}/asked\n"
    )
    stand_in.chmod(0o755)
    found = profiler.profiled(stand_in, operator)
    assert (found.kernel, found.seconds) == ("fast_kernel", 0.25e-3)
    assert found.gflops == pytest.approx(2 * 256 * 512 * 128 / 0.25e-3 / 1e9)
    asked = (tmp_path / "asked").read_text()
    assert "--m=256 --n=512 --k=128 --batch_count=1 --A=bf16:row --B=bf16:column" in asked


def test_what_is_missing_or_wrong_is_said(profiler: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(DeepgenError, match="Build it"):
        profiler.profiled(tmp_path / "none", gemm(8, 8, 8))
    assert profiler.fastest(TABLE.replace("passed", "failed"), gemm(8, 8, 8)) is None
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho no device >&2\nexit 3\n")
    failing.chmod(0o755)
    with pytest.raises(DeepgenError, match="no device"):
        profiler.profiled(failing, gemm(8, 8, 8))
