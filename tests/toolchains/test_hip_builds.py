"""HIP kernels built to code objects without a GPU or ROCm, with the resources reported by their metadata."""

from __future__ import annotations

from pathlib import Path

import pytest

import needs
from deepgen import targets
from deepgen.targets import Target
from deepgen.toolchains import BuildError, BuildLimits, Group, elf, toolchain_for
from deepgen.toolchains.compilers import hip_clang
from deepgen.toolchains.compilers.hip_clang import HipClang
from deepgen.vocabulary import BadInput, Kernel, LaunchPlan, Source, Step, Verdict

_SOURCE = """
extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(256, 256)))
void entry(float* x, int n) {
    __attribute__((shared)) static float s[256];
    int t = __builtin_amdgcn_workitem_id_x(), i = __builtin_amdgcn_workgroup_id_x() * 256 + t;
    s[t] = i < n ? x[i] : 0.f;
    __builtin_amdgcn_s_barrier();
    if (i < n) x[i] = s[255 - t] * FACTOR;
}
"""


def kernel(text: str = _SOURCE) -> Kernel:
    plan = LaunchPlan((Step("entry", (), block=(256, 1, 1)),))
    return Kernel("entry", "hip", (Source("entry.hip", text),), ("-DFACTOR=2.f",), plan)


def found(name: str) -> tuple[HipClang, Target]:
    target = targets.resolve(name)
    toolchain = needs.toolchain(target, "hip")
    assert isinstance(toolchain, HipClang)
    return toolchain, target


@pytest.mark.parametrize(
    "name", ["hip:gfx906", "hip:z100", "hip:gfx908", "hip:gfx90a", "hip:gfx942", "hip:gfx1030", "hip:gfx1100"]
)
def test_a_machine_without_rocm_builds_for_any(name: str, tmp_path: Path) -> None:
    toolchain, target = found(name)
    try:
        with Group() as group:
            built = toolchain.build(kernel(), target, tmp_path, BuildLimits(), group)
    except BuildError as error:
        if "lld" in error.log:
            pytest.skip("lld is not installed: apt-get install lld-19")
        raise
    assert built.format == "hsaco"
    facts = dict(built.facts)
    assert 1 <= int(str(facts["registers"])) <= 16 and int(str(facts["scalar_registers"])) > 0
    assert facts["shared_bytes"] == 1024 and facts["spill_bytes"] == 0 and facts["occupancy"] == 1.0


def test_a_source_that_is_wrong_is_refused(tmp_path: Path) -> None:
    toolchain, target = found("hip:gfx90a")
    with Group() as group, pytest.raises(BuildError, match=r"entry\.hip:1:1: error") as caught:
        toolchain.build(kernel("nonsense;"), target, tmp_path, BuildLimits(), group)
    assert caught.value.verdict is Verdict.BUILD_FAILED


def test_assembly_is_shown(tmp_path: Path) -> None:
    toolchain, target = found("hip:gfx906")
    assert "s_endpgm" in toolchain.assembly(kernel(), target, tmp_path)


def test_a_vendors_compiler_is_known_by_its_words() -> None:
    amd = hip_clang.described("/opt/rocm/llvm/bin/clang++", "AMD clang version 18.0.0git (https://... roc-6.3.0)")
    assert (amd.vendor, amd.version) == ("AMD", "18.0.0")
    assert hip_clang.described("clang-19", "Debian clang version 19.1.7 (3)").vendor == ""
    assert amd.id != hip_clang.described("x", "AMD clang version 18.0.0git (https://... roc-6.4.0)").id
    with pytest.raises(ValueError, match="describes itself"):
        hip_clang.described("gcc", "gcc (Debian) 12.2.0")


def test_a_path_that_is_set_must_work(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not an executable"):
        toolchain_for(targets.resolve("hip:gfx906"), "hip", {"hip": str(tmp_path / "none")})


@pytest.mark.parametrize("image", [b"", b"\x7fELF\x02\x01" + bytes(80), b"MZ"])
def test_what_is_no_code_object_is_refused(image: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a 64-bit ELF file|without metadata|cannot be read"):
        elf.kernels(image)
