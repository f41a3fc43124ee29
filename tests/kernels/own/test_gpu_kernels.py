"""A user's own CUDA and HIP sources are built without a GPU; C++ names are found in the binary."""

from __future__ import annotations

from pathlib import Path

import pytest

import deepgen as dg
from deepgen import targets
from deepgen.kernels.own import OwnKernel
from deepgen.kernels.own.arguments import Argument
from deepgen.vocabulary import Artifact, finding
from needs import built_here

EXAMPLES = Path(__file__).parents[3] / "examples" / "kernels"
TEMPLATE = """
template <typename T, int V>
__global__ void vadd(T *c, const T *a, const T *b, int n) {
    const int first = (blockIdx.x * blockDim.x + threadIdx.x) * V;
    for (int i = first; i < first + V; i++)
        if (i < n) c[i] = a[i] + b[i];
}
"""


def template(language: str) -> OwnKernel:
    arguments: list[Argument] = [
        dg.output("c", "n", "f32"),
        dg.input("a", "n", "f32"),
        dg.input("b", "n", "f32"),
        dg.scalar("n", "i32"),
    ]
    return dg.kernel(
        TEMPLATE,
        language=language,
        entry="vadd<float, VEC>",
        arguments=arguments,
        sizes={"n": 1000},
        knobs={"VEC": [1, 4]},
        grid="ceil_div(n, 64 * VEC)",
        block=64,
        reference=lambda a, b: a + b,
    )


def built(kernel: OwnKernel, name: str) -> Artifact:
    operator, target = kernel.operator(), targets.resolve(name)
    emitted = kernel.family.emit(operator, target, kernel.family.default(operator, target))
    return built_here(emitted, target)


def entry(artifact: Artifact) -> str:
    assert artifact.plan is not None
    return artifact.plan.steps[0].entry


def test_cuda() -> None:
    assert entry(built(finding.module_at(EXAMPLES / "vadd_cuda.py").kernel, "cuda:sm_90a")) == "_Z4vaddPfPKfS1_i"
    assert entry(built(template("cuda"), "cuda:sm_80")) == "_Z4vaddIfLi1EEvPT_PKS0_S3_i"


@pytest.mark.parametrize("target", ["hip:gfx906", "hip:gfx942", "hip:gfx1100"])
def test_hip(target: str) -> None:
    assert entry(built(finding.module_at(EXAMPLES / "vadd_hip.py").kernel, target)) == "_Z4vaddPfPKfS1_i"
    assert entry(built(template("hip"), target)) == "_Z4vaddIfLi1EEvPT_PKS0_S3_i"


def test_a_header_of_the_toolkit_is_found() -> None:
    kernel = dg.kernel(
        "#include <cuda_fp16.h>\n__global__ void k(__half *y, int n) { y[threadIdx.x] = __float2half(STEP + n); }",
        language="cuda",
        entry="k",
        arguments=[dg.output("y", "n", "f16"), dg.scalar("n", "i32")],
        sizes={"n": 32},
        knobs={"STEP": [1]},
        block="n",
    )
    assert entry(built(kernel, "cuda:sm_90a")) == "_Z1kP6__halfi"
