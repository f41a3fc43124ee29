"""A fake GPU for tests: a driver library on host memory, and kernels in C that it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from deepgen.operators import Gemm
from deepgen.run.measure.base import Helper, Policy, RunnerOptions, Task
from deepgen.run.measure.helpers import build_helpers
from deepgen.run.measure.supervisor import Supervisor
from deepgen.targets import resolve
from deepgen.toolchains import build_once, default_cache_folder
from deepgen.vocabulary import Arg, Artifact, Kernel, LaunchPlan, Missing, ScalarArg, Source, Step, TensorArg, finding

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
# The reference like the operator's own kernel, for f32 in layout nt.
_REFERENCE = """
int gemm_reference(void** p, const unsigned* grid, const unsigned* block) {
    const float *A = *(float**)p[0], *B = *(float**)p[1];
    double* want = *(double**)p[7];
    float* size = *(float**)p[8];
    int M = *(int*)p[9], N = *(int*)p[10], K = *(int*)p[11];
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0, a = 0, b = 0;
            for (int k = 0; k < K; k++) {
                double x = A[i * K + k], y = B[j * K + k];
                sum += x * y, a += x * x, b += y * y;
            }
            want[i * N + j] = sum;
            a = __builtin_sqrt(a * b) / K;
            size[i * N + j] = __builtin_isfinite(a) ? a : 0;
        }
    MORE
    return 0;
}
"""
ARGUMENTS: tuple[Arg, ...] = (
    *(TensorArg(name) for name in ("A", "B", "C")),
    *(ScalarArg("i32", size) for size in ("M", "N", "K", "lda", "ldb", "ldc")),
)
_RETAKES = 20


class OnDevice:
    """A numpy array that claims to be on a device, which the fake driver accepts."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.array.__array_interface__


def build_driver(folder: Path) -> Path | None:
    """A folder for the loader's path; None if there is no compiler."""
    return folder if _shared(HERE / "fake_cuda.c", folder / "libcuda.so.1") else None


@contextmanager
def supervised(
    operator: Gemm, folder: Path, own: Mapping[str, finding.CodeSource] | None = None, **helpers: Helper
) -> Iterator[Supervisor]:
    """A supervisor whose worker finds the fake driver in the folder. Skips the test if either cannot be built.

    `helpers` replace our own code for the device, of which the fake driver only runs the harness; `own` are baselines.
    """
    policy = Policy(timeout_seconds=1.0, max_samples=8)
    task = Task(operator, resolve("cuda:sm_90a"), policy=policy, own_baselines=own or {})
    built = build_or_skip(task, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(folder))  # not before: NVRTC itself queries a driver that it finds
        # It runs on the CPU, next to other tests, whose load would not disturb a GPU.
        made = Supervisor(task, RunnerOptions(helpers={**built, **helpers}))
        made._retakes = _RETAKES
        yield made
        made.close()


def build_or_skip(task: Task, folder: Path) -> dict[str, Helper]:
    """The fake driver in that folder, and our own code for the device. Skips the test if one cannot be built."""
    if build_driver(folder) is None:
        pytest.skip("there is no C compiler to build the fake driver with")
    try:
        return build_helpers(task, lambda kernel: build_once(kernel, task.target), needed=("harness",))
    except Missing as error:
        pytest.skip(str(error))


def kernel(folder: Path, name: str, more: str = "", numbers: str = FLOATS, **step: object) -> tuple[Kernel, Artifact]:
    """A GEMM of layout nt on such inputs, with extra code at its end."""
    text = numbers + _GEMM.replace("MORE", more)
    cubin = image(folder, name, text)
    plan = LaunchPlan((Step("entry", ARGUMENTS, **step),))  # type: ignore[arg-type]
    made = Kernel(name, "cuda", (Source("k.cu", text),), (), plan)
    return made, Artifact(made.id, str(cubin), "cubin", "fake", {}, 0.0)


def reference(operator: Gemm, folder: Path, name: str = "reference", more: str = "") -> Helper:
    """The operator's reference kernel, with extra code at its end."""
    made = operator.reference_kernel("cuda")
    assert made is not None
    return Helper(made, image(folder, name, _REFERENCE.replace("MORE", more)))


def image(folder: Path, name: str, text: str) -> Path:
    """The module that the driver loads: functions in C that get a launch's arguments, grid and block."""
    source, library, cubin = (folder / file for file in (f"{name}.c", f"lib{name}.so", f"{name}.cubin"))
    source.write_text(text)
    assert _shared(source, library)
    cubin.write_bytes(f"FAKE:{library}".encode() + b"\0")
    return cubin


def _shared(source: Path, library: Path) -> bool:
    """The same text is compiled only once per test run."""
    compiler = shutil.which("gcc") or shutil.which("clang") or shutil.which("clang-19")
    if compiler is None:
        return False
    kept = default_cache_folder().parent / "fakes" / f"{sha256(source.read_bytes()).hexdigest()}.so"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", str(part), str(source), "-ldl"], check=True)
        part.replace(kept)
    library.unlink(missing_ok=True)  # a loaded library stays unchanged
    shutil.copyfile(kept, library)
    return True
