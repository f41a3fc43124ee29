"""CUDA kernels built without a GPU: for every architecture, with their resources, and with clear failures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import needs
from deepgen import targets
from deepgen.kernels.gemm.simt_gemm import SimtGemm
from deepgen.operators import gemm
from deepgen.targets import Cuda
from deepgen.toolchains import BuildError, BuildLimits, BuildPool, Cache, Group, build_once, toolchain_for
from deepgen.toolchains.compilers.nvrtc import Nvrtc
from deepgen.toolchains.find import examine
from deepgen.vocabulary import BadInput, Kernel, LaunchPlan, Source, Step, Verdict

_SOURCE = """
#include "scale.h"
extern "C" __global__ void __launch_bounds__(128) entry(float* x, int n) {
    __shared__ float s[256];
    int i = blockIdx.x * 128 + threadIdx.x;
    s[threadIdx.x] = i < n ? x[i] : 0.f;
    __syncthreads();
    if (i < n) x[i] = SCALE * s[127 - threadIdx.x];
}
extern "C" __global__ void helper(float* x) { x[threadIdx.x] = 0.f; }
"""


def kernel(text: str = _SOURCE, *flags: str) -> Kernel:
    sources = (Source("entry.cu", text), Source("scale.h", "#define SCALE FACTOR\n"))
    plan = LaunchPlan((Step("entry", (), block=(128, 1, 1), shared_bytes=1024),))
    return Kernel("entry", "cuda", sources, ("-DFACTOR=2.f", *flags), plan)


def found(name: str) -> tuple[Nvrtc, Cuda]:
    target = targets.resolve(name)
    toolchain = needs.toolchain(target, "cuda")
    assert isinstance(toolchain, Nvrtc) and isinstance(target, Cuda)
    return toolchain, target


@pytest.mark.parametrize("name", ["cuda:sm_70", "cuda:sm_80", "cuda:sm_90a", "cuda:sm_120"])
def test_a_machine_without_a_gpu_builds_for_any(name: str, tmp_path: Path) -> None:
    toolchain, target = found(name)
    with Group() as group:
        built = toolchain.build(kernel(), target, tmp_path, BuildLimits(), group)
    assert built.format == "cubin" and (tmp_path / built.binary).read_bytes()[:4] == b"\x7fELF"
    facts = dict(built.facts)
    assert 8 <= int(str(facts["registers"])) <= 40 and facts["spill_bytes"] == 0
    assert facts["shared_bytes"] == 1024 + 1024  # static and dynamic
    assert facts["occupancy"] == 1.0 and int(str(facts["code_bytes"])) > 100
    entries = facts["entries"]
    assert isinstance(entries, dict) and set(entries) == {"entry", "helper"}
    assert "ptxas" not in built.log


def test_spilled_registers_are_told(tmp_path: Path) -> None:
    toolchain, target = found("cuda:sm_80")
    text = """
    extern "C" __global__ void __launch_bounds__(1024, 2) entry(float* x) {
        float a[64];
        for (int i = 0; i < 64; i++) a[i] = x[i * 1024 + threadIdx.x];
        for (int r = 0; r < 64; r++)
            for (int i = 0; i < 64; i++) a[i] = a[i] * a[(i + 7) % 64] + a[(i + 31) % 64];
        for (int i = 0; i < 64; i++) x[i * 1024 + threadIdx.x] = a[i];
    }"""
    with Group() as group:
        built = toolchain.build(kernel(text), target, tmp_path, BuildLimits(), group)
    assert built.facts["registers"] == 32 and int(str(built.facts["spill_bytes"])) > 0


def test_a_source_that_is_wrong_is_refused_with_the_compilers_words(tmp_path: Path) -> None:
    toolchain, target = found("cuda:sm_80")
    with Group() as group, pytest.raises(BuildError, match=r"entry\.cu\(1\): error") as caught:
        toolchain.build(kernel("nonsense;"), target, tmp_path, BuildLimits(), group)
    assert caught.value.verdict is Verdict.BUILD_FAILED and "\0" not in caught.value.log


def test_a_compilation_without_end_is_stopped(tmp_path: Path) -> None:
    toolchain, target = found("cuda:sm_80")
    text = "".join(
        f'extern "C" __global__ void k{i}(float* x) {{\n#pragma unroll\nfor (int i = 0; i < 4000; i++) '
        f"x[i] = sinf(x[i * {i + 1}]) + cosf(x[i]);\n}}\n"
        for i in range(20)
    )
    with Group() as group, pytest.raises(BuildError, match=r"did not finish within 0\.5 s") as caught:
        toolchain.build(kernel(text), target, tmp_path, BuildLimits(wall_seconds=0.5), group)
    assert caught.value.verdict is Verdict.BUILD_TIMEOUT


def test_the_pool_builds_and_the_cache_keeps(tmp_path: Path) -> None:
    toolchain, target = found("cuda:sm_80")
    with BuildPool(lambda _: toolchain, target, Cache(tmp_path), jobs=2) as pool:
        first = [pool.submit(kernel(_SOURCE, f"-DV={i}")).result() for i in range(3)]
        again = pool.submit(kernel(_SOURCE, "-DV=1")).result()
    assert again.binary == first[1].binary and len({a.binary for a in first}) == 3


def test_machine_code_is_shown(tmp_path: Path) -> None:
    toolchain, target = found("cuda:sm_80")
    text = toolchain.assembly(kernel(), target, tmp_path)
    assert ("STG" in text and "BAR" in text) if toolchain.disassembler else ".visible .entry entry" in text


def test_what_no_library_can_compile_is_told_with_the_package_that_can(tmp_path: Path) -> None:
    toolchain, _ = found("cuda:sm_80")
    only = Nvrtc("13.0", toolchain.path, (75, 80, 90))
    with pytest.raises(BadInput, match=r"NVRTC 13\.0 cannot build kernels for cuda:sm_70"):
        only.assembly(kernel(), targets.resolve("cuda:sm_70"), tmp_path)
    with pytest.raises(BadInput, match="not a library"):
        toolchain_for(targets.resolve("cuda:sm_80"), "cuda", {"nvrtc": str(tmp_path / "none.so")})
    wrong = tmp_path / "libnvrtc.so.13"
    wrong.write_text("no library")
    with pytest.raises(BadInput, match="not an NVRTC that works"):
        toolchain_for(targets.resolve("cuda:sm_80"), "cuda", {"nvrtc": str(wrong)})
    version, path = examine("nvrtc", "")
    assert version and path


@pytest.mark.slow
def test_kernels_in_f64_build_for_cuda(tmp_path: Path) -> None:
    """Vectors of four numbers in f64 are wider than any load or store."""
    _, chip = found("cuda:sm_90a")
    operator, family = gemm(1000, 1112, 1232, dtype="f64", layout="nt"), SimtGemm()
    space = family.space(operator, chip)
    random = np.random.default_rng(0)
    drawn = [space.at(int(random.random() * space.count())) for _ in range(6)]
    for config in (family.default(operator, chip), *drawn):
        kernel = family.emit(operator, chip, config)
        built = build_once(kernel, chip, cache=Cache(tmp_path))
        assert (built.format, built.kernel_id) == ("cubin", kernel.id)


def test_what_cuda_s_runtime_declares_is_there_for_those_that_name_it(tmp_path: Path) -> None:
    toolchain, target = found("cuda:sm_90a")
    plain = 'extern "C" __global__ void entry(float* x) { x[threadIdx.x] += 1.f; }'
    naming = [
        'extern "C" __global__ void entry(float* x, cudaTextureObject_t t) { x[0] = tex2D<float>(t, 0.f, 0.f); }',
        'extern "C" __global__ void entry(cudaError_t* x) { *x = cudaSuccess; }',
    ]
    for text in (plain, *naming):
        built = build_once(kernel(text), target, cache=Cache(tmp_path))
        assert Path(built.binary).read_bytes()[:4] == b"\x7fELF"
    smaller = ["--minimal" in (toolchain.recipe(kernel(text), target).command) for text in (plain, *naming)]
    assert smaller == [True, False, False]
