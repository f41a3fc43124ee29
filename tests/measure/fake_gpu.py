"""A GPU for tests: a driver library over host memory, and kernels in C that it runs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deepgen.build import Cache, build_once
from deepgen.measure import gpu_checks
from deepgen.measure.base import Policy, Task
from deepgen.measure.supervisor import Supervisor
from deepgen.operators import Gemm
from deepgen.targets import resolve
from deepgen.vocabulary import Arg, Artifact, Kernel, LaunchPlan, Missing, ScalarArg, Source, Step, TensorArg

HERE = Path(__file__).parent
FLOATS = """
typedef float number;
static float value(number x) { return x; }
"""
EIGHT_BITS = """
typedef unsigned char number;  // f8e4m3
static float value(number code) {
    int exponent = code >> 3 & 15, fraction = code & 7;
    float size = exponent ? __builtin_ldexpf(8 + fraction, exponent - 10) : __builtin_ldexpf(fraction, -9);
    if ((code & 127) == 127) size = __builtin_nanf("");
    return code & 128 ? -size : size;
}
"""
_GEMM = """
int entry(void** p, const unsigned* grid, const unsigned* block) {
    const number *A = *(number**)p[0], *B = *(number**)p[1];
    float* C = *(float**)p[2];
    int M = *(int*)p[3], N = *(int*)p[4], K = *(int*)p[5], lda = *(int*)p[6], ldb = *(int*)p[7], ldc = *(int*)p[8];
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int k = 0; k < K; k++) sum += value(A[i * lda + k]) * value(B[j * ldb + k]);
            C[i * ldc + j] = sum;
        }
    MORE
    return 0;
}
"""
ARGUMENTS: tuple[Arg, ...] = (
    *(TensorArg(name) for name in ("A", "B", "C")),
    *(ScalarArg("i32", size) for size in ("M", "N", "K", "lda", "ldb", "ldc")),
)


def build_driver(folder: Path) -> Path | None:
    """A folder to be put on the loader's path; None where there is no compiler."""
    return folder if _shared(HERE / "fake_cuda.c", folder / "libcuda.so.1") else None


@contextmanager
def supervised(operator: Gemm, folder: Path) -> Iterator[Supervisor]:
    """A supervisor whose worker finds the fake driver in the folder. Skips the test where either cannot be built."""
    target = resolve("cuda:sm_90a")
    if build_driver(folder) is None:
        pytest.skip("there is no C compiler to build the fake driver with")
    try:
        build_once(gpu_checks.source("cuda"), target, cache=Cache(folder))
    except Missing as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(folder))  # not before: NVRTC itself asks a driver that it finds
        made = Supervisor(Task(operator, target, policy=Policy(timeout_seconds=1.0, max_samples=8)), cache=folder)
        yield made
        made.close()


def kernel(folder: Path, name: str, more: str = "", numbers: str = FLOATS, **step: object) -> tuple[Kernel, Artifact]:
    """A GEMM of layout nt on such inputs, with something more to do at its end."""
    source = folder / f"{name}.c"
    source.write_text(numbers + _GEMM.replace("MORE", more))
    library = folder / f"lib{name}.so"
    assert _shared(source, library)
    image = folder / f"{name}.cubin"
    image.write_bytes(f"FAKE:{library}".encode() + b"\0")
    plan = LaunchPlan((Step("entry", ARGUMENTS, **step),))  # type: ignore[arg-type]
    made = Kernel(name, "cuda", (Source("k.cu", source.read_text()),), (), plan)
    return made, Artifact(made.id, str(image), "cubin", "fake", {}, 0.0)


def _shared(source: Path, library: Path) -> bool:
    compiler = shutil.which("gcc") or shutil.which("clang") or shutil.which("clang-19")
    if compiler is None:
        return False
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", str(library), str(source), "-ldl"], check=True)
    return True
