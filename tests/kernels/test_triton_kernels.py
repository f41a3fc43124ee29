"""User-defined Triton kernels: what is compiled, for which shapes it is valid, and clear errors if
that is impossible.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
import triton_samples as samples
from fake_gpu import OnDevice, build_driver, image

import deepgen as dg
from deepgen import generators, targets
from deepgen.kernels.own import OwnKernel
from deepgen.kernels.own.triton_text import text_of
from deepgen.run.call.loaded import load
from deepgen.space import parse
from deepgen.targets import gpu_driver
from deepgen.toolchains import BuildError, BuildLimits, Cache, Group, build_once, toolchain_for
from deepgen.toolchains.compilers import triton as toolchain
from deepgen.vocabulary import BadInput, Kernel, ScalarArg, WorkspaceArg
from deepgen.vocabulary.kernel import from_flags

CUDA, HIP = targets.resolve("cuda:sm_90"), targets.resolve("hip:gfx942")
ARGUMENTS = [
    dg.input("x", ("n",), "f32"),
    dg.output("y", ("n",), "f32"),
    dg.scalar("n", "i32"),
    dg.scalar("stride", "i32", "stride_x_0"),
    dg.scalar("by", "f32", 2.0),
]


def described(function: Any = samples.scaled, **other: Any) -> OwnKernel:
    told: dict[str, Any] = {"arguments": ARGUMENTS, "sizes": {"n": 4096}, "grid": "ceil_div(n, BLOCK)"}
    return dg.kernel(function, **{**told, "knobs": {"BLOCK": [128, 256], "num_warps": [1, 4]}, **other})


def emitted(own: OwnKernel, target: targets.Target = CUDA, **sizes: int) -> Kernel:
    operator = own.operator(**sizes)
    return own.family.emit(operator, target, own.family.default(operator, target))


def test_the_text_is_the_function_with_what_it_names_and_no_more() -> None:
    text = text_of(samples.scaled)
    for line in (
        "import triton.language as T",
        "from triton.language.standard import cdiv as blocks_of",
        "SCALE = triton.language.constexpr(3)",
        'OFFSET = triton.language.constexpr(float("inf"))',
        "STORED = triton.language.float32",
        "@triton.jit(noinline=True)\ndef _helper",
    ):
        assert line in text
    assert text.index("def _inner") < text.index("def _helper") < text.index("def scaled")
    assert "unittest" not in text and "TABLE" not in text and "__future__" not in text


@pytest.mark.parametrize(
    ("function", "says"),
    [(samples.unwritable, "names TABLE, which is a dict"), (samples.needs_a_module, "names the module unittest")],
)
def test_what_a_kernel_cannot_take_along_is_named(function: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        text_of(function)


def test_what_triton_knows_of_sizes_is_required_of_every_shape() -> None:
    """Other code is compiled for multiples of 16 and for 1; the kernel must then not be called for other shapes."""
    kernel = emitted(described())
    unit = from_flags(kernel.flags)
    assert unit.parameters["n"] == ["i32", "divisible"] and unit.parameters["by"] == ["fp32"]
    assert unit.constants == {"BLOCK": 128, "EVEN": True, "stride": 1}, "a stride of 1 is a constant, and not passed"
    assert [arg.value for arg in kernel.plan.steps[0].args if isinstance(arg, ScalarArg)] == ["n", "by"]
    assert {requirement for requirement, _ in kernel.plan.requires} == {"(n) % 16 == 0", "(stride_x_0) == 1"}
    odd = emitted(described(), n=1001)
    assert from_flags(odd.flags).parameters["n"] == ["i32"]
    assert [words for _, words in odd.plan.requires] == ["it is compiled for stride_x_0 = 1"]
    on_amd = dict(emitted(described(), HIP).plan.requires)
    assert on_amd["4 * (n) <= 2147483647"] == "x must be smaller than 2 GB"


def test_a_shape_that_the_config_is_not_for_is_not_served() -> None:
    own = described(requires=["BLOCK >= n or BLOCK == 128", "BLOCK >= 128"])
    kernel = own.family.emit(own.operator(n=200), CUDA, {"BLOCK": 256, "num_warps": 1})
    rule, words = kernel.plan.requires[0]
    assert words == "its config is for 'BLOCK >= n or BLOCK == 128'"
    assert parse(rule).evaluate({"n": 256}) and not parse(rule).evaluate({"n": 257})
    assert not any("128'" in words and "BLOCK >= 128" in words for _, words in kernel.plan.requires[1:])


def test_the_id_holds_triton_s_key_of_the_function_and_the_compiler_s_version() -> None:
    kernel = emitted(described())
    unit = from_flags(kernel.flags)
    assert len(unit.key) == 64
    for other in (replace(unit, key="0" * 64), replace(unit, version="1.0")):
        assert replace(kernel, flags=other.flags()).id != kernel.id
    # The data in a study recreates the same kernel.
    again = generators.by_name("own kernel", described().family.recipe)
    operator = described().operator()
    assert again.emit(operator, CUDA, again.default(operator, CUDA)).id == kernel.id


def test_clusters_are_launched_as_triton_does() -> None:
    kernel = emitted(described(knobs={"BLOCK": [128], "num_ctas": [2]}))
    step = kernel.plan.steps[0]
    assert step.grid[0] == "(ceil_div(n, 128)) * 2" and step.cluster == (2, 1, 1)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"arguments": ARGUMENTS[:3]}, "scaled takes 5 parameters besides tl.constexpr, but 3 arguments"),
        ({"arguments": [*ARGUMENTS[:2], *ARGUMENTS[3:], ARGUMENTS[2]]}, "argument 2 of scaled is stride"),
        ({"knobs": {"BLOCKS": [1]}}, "BLOCKS is neither a tl.constexpr parameter of scaled nor a Triton option"),
        ({"knobs": {"num_warps": [4]}, "grid": 1}, "tl.constexpr parameter BLOCK, which has no value"),
        ({"block": 128}, "block= is given for a Triton kernel"),
        ({"source": "a" + "\n", "language": "triton"}, "a Triton kernel was given as text"),
        ({"source": lambda: None}, "source is <function"),
    ],
)
def test_a_description_that_does_not_fit_is_said_by_name(changed: dict[str, Any], says: str) -> None:
    function = changed.pop("source", samples.scaled)
    with pytest.raises(BadInput, match=says):
        described(function, **changed)


def test_options_of_another_kind_of_gpu_are_refused() -> None:
    own = described(knobs={"BLOCK": [128], "waves_per_eu": [0, 2]})
    assert own.family.refuses(own.operator(), HIP) is None
    assert "waves_per_eu is not a Triton option for cuda" in str(own.family.refuses(own.operator(), CUDA))
    assert own.family.refuses(own.operator(), targets.resolve("cpu")) is None, "it leaves options of GPUs out"
    threads = described(knobs={"BLOCK": [128], "num_threads": [1, 2]})
    assert "num_threads is not a Triton option for hip" in str(threads.family.refuses(threads.operator(), HIP))


@pytest.mark.parametrize("target", [CUDA, HIP], ids=lambda target: target.name)
def test_it_is_built_without_a_gpu_and_the_build_completes_the_launch(target: targets.Target, tmp_path: Path) -> None:
    kernel = emitted(described(), target)
    built = build_once(kernel, target, cache=Cache(tmp_path))
    assert Path(built.binary).read_bytes()[:4] == b"\x7fELF" and built.plan is not None
    step = built.plan.steps[0]
    assert step.entry == "scaled" and step.block == (target.warp, 1, 1)  # type: ignore[attr-defined]
    # Triton passes two more pointers: scratch memory, which this kernel does not have, and a profiler's.
    assert step.args[len(kernel.plan.steps[0].args) :] == (ScalarArg("i64", 0), ScalarArg("i64", 0))
    assert built.plan.requires == kernel.plan.requires
    assert int(str(built.facts["registers"])) > 0 and built.facts["spill_bytes"] == 0
    assert "ptxas" not in built.log


def test_scratch_memory_is_allocated_for_every_block() -> None:
    report = {"name": "k", "shared": 0, "num_warps": 4, "global_scratch_size": 128}
    plan = toolchain._plan(emitted(described()).plan, report, 2, CUDA)  # type: ignore[arg-type]
    (scratch,) = [arg for arg in plan.steps[0].args if isinstance(arg, WorkspaceArg)]
    assert scratch.bytes == "128 * (ceil_div(n, 128)) * (1) * (1)"


def test_a_kernel_that_triton_refuses_gets_its_words(tmp_path: Path) -> None:
    kernel = emitted(described())
    broken = replace(kernel, sources=(replace(kernel.sources[0], text="raise ValueError('not today')"),))
    with Group() as group, pytest.raises(BuildError, match="triton rejected the source: error: ValueError: not today"):
        toolchain_for(CUDA, "triton").build(broken, CUDA, tmp_path, BuildLimits(), group)


def test_another_release_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("__version__ = '2.1.0'\n")
    with pytest.raises(BadInput, match=r"it is Triton 2\.1\.0, but deepgen supports Triton 3\.6 and 3\.9"):
        toolchain_for(CUDA, "triton", {"triton": str(tmp_path)})
    kernel = emitted(described())
    older = replace(kernel, flags=replace(from_flags(kernel.flags), version="1.0").flags())
    with Group() as group, pytest.raises(BadInput, match=r"is for Triton 1\.0, but Triton \S+ is installed"):
        toolchain_for(CUDA, "triton").build(older, CUDA, tmp_path, BuildLimits(), group)


def test_a_loaded_kernel_is_launched_with_its_arguments_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a driver on host memory, and a C function in place of the cubin."""
    if build_driver(tmp_path) is None:
        pytest.skip("there is no C compiler to build the fake driver with")
    fake = replace(gpu_driver.CUDA, libraries=(str(tmp_path / "libcuda.so.1"),))
    monkeypatch.setitem(gpu_driver.APIS, "cuda", fake)
    text = """
    int scaled(void** p, const unsigned* grid, const unsigned* block) {
        float *x = *(float**)p[0], *y = *(float**)p[1], by = *(float*)p[3];
        int n = *(int*)p[2];
        if (*(void**)p[4] || *(void**)p[5] || grid[0] != (n + 127) / 128 || block[0] != 64) return 1;
        for (int i = 0; i < n; i++) y[i] = by * x[i];
        return 0;
    }"""
    own = described()
    kernel = emitted(own)
    report = {"name": "scaled", "shared": 0, "num_warps": 2, "global_scratch_size": 0}
    plan = toolchain._plan(kernel.plan, report, 2, CUDA)  # type: ignore[arg-type]
    loaded = load(kernel, own.operator(), CUDA, image(tmp_path, "scaled", text), plan)
    x, y = (np.arange(64, dtype=np.float32) for _ in range(2))
    with contextlib.closing(loaded):
        loaded(OnDevice(x), out=OnDevice(y), by=3.0)
        assert (y == 3.0 * x).all()
        with pytest.raises(BadInput, match="n must be a multiple of 16"):
            loaded(OnDevice(x[:33]), out=OnDevice(y[:33]))
