"""Softmax on GPUs: correct in emulation on a CPU, on odd sizes and hard inputs, and built for every architecture."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import simt_emulation as emulation

import needs
from deepgen import generators, targets
from deepgen.kernels.softmax.simt_softmax import SimtSoftmax
from deepgen.operators import Softmax, gemm, softmax
from deepgen.operators.softmax import DTYPES, PROBES
from deepgen.space import parse
from deepgen.toolchains.base import BuildLimits
from deepgen.toolchains.group import Group
from deepgen.vocabulary import Source

FAMILY = SimtSoftmax()
CHIP = targets.resolve("cuda:sm_90a")
KEEPS = ["registers", "shared", "memory"]
CHIPS = ["cuda:sm_70", "cuda:sm_80", "cuda:sm_90a", "hip:gfx906", "hip:gfx90a", "hip:gfx942"]
emulated = pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)


# Every format with every way to keep a row, and both methods with each of them: half of all combinations.
KINDS = [(name, keep, ("two", "online")[(n + m) % 2]) for n, name in enumerate(DTYPES) for m, keep in enumerate(KEEPS)]


@emulated
@pytest.mark.parametrize(("name", "keep", "method"), KINDS)
def test_any_config_is_right_on_odd_sizes_and_hard_inputs(name: str, keep: str, method: str, tmp_path: Path) -> None:
    seed = zlib.crc32(f"{name} {keep} {method}".encode())
    rows, cols = [(5, 37), (3, 300), (7, 1), (4, 72)][seed % 4]
    operator = softmax(rows, cols, dtype=name)
    (config,) = FAMILY.space(operator, CHIP).restrict({"KEEP": keep, "METHOD": method}).sample(1, seed)
    kernel = FAMILY.emit(operator, CHIP, config)
    library = emulation.build(kernel, tmp_path)
    for probe in PROBES:
        assert emulation.wrong(kernel, library, operator, probe) == ""


@emulated
@pytest.mark.parametrize("target", ["hip:gfx906", "hip:gfx1100"])
def test_wavefronts_are_right_too(target: str, tmp_path: Path) -> None:
    operator, chip = softmax(6, 100, dtype="f16"), targets.resolve(target)
    (config,) = FAMILY.space(operator, chip).sample(1, seed=2)
    kernel = FAMILY.emit(operator, chip, config)
    assert emulation.wrong(kernel, emulation.build(kernel, tmp_path), operator) == ""


def admitted(plan: Any, operator: Softmax, **strides: int) -> bool:
    scalars = {**operator.scalars(), **strides}
    return all(parse(expression).evaluate(scalars) for expression, _ in plan.requires)


@emulated
@pytest.mark.parametrize("keep", KEEPS)
def test_one_binary_serves_all_shapes_that_it_admits(keep: str, tmp_path: Path) -> None:
    operator = softmax(64, 96)
    some = FAMILY.space(operator, CHIP).restrict({"KEEP": keep, "WIDTH": 4, "TEAM": 8, "ROWS": 4})
    (config,) = some.sample(1, seed=1)
    kernel = FAMILY.emit(operator, CHIP, config)
    library = emulation.build(kernel, tmp_path)
    for rows, cols in [(1, 4), (9, 92), (2, 96)]:
        assert admitted(kernel.plan, softmax(rows, cols))
        assert emulation.wrong(kernel, library, softmax(rows, cols)) == ""
    assert not admitted(kernel.plan, softmax(64, 95)), "loads of four would cross the end of a row"
    assert not admitted(kernel.plan, operator, stride_x_0=97), "rows of x would not begin aligned"
    assert admitted(kernel.plan, softmax(64, 100)) == (keep != "registers"), "registers hold 96 columns"
    assert admitted(kernel.plan, softmax(64, 1 << 20)) == (keep == "memory")


@emulated
@pytest.mark.parametrize(
    ("right", "broken", "probe"),
    [
        ("x.v[e] = exponential(x.v[e] - most)", "x.v[e] = exponential(x.v[e])", "large"),
        ("number < rows ? cols : 0", "cols", "normal"),
        ("mine);\n    barrier();", "mine);", "normal"),
    ],
)
def test_a_broken_kernel_is_found_out(right: str, broken: str, probe: str, tmp_path: Path) -> None:
    operator = softmax(5, 64)
    config = {"TEAM": 16, "ROWS": 4, "WIDTH": 1, "KEEP": "registers", "METHOD": "two"}
    kernel = FAMILY.emit(operator, CHIP, config)
    assert sum(right in s.text for s in kernel.sources) == 1
    sources = tuple(Source(s.name, s.text.replace(right, broken)) for s in kernel.sources)
    kernel = replace(kernel, sources=sources)
    assert emulation.wrong(kernel, emulation.build(kernel, tmp_path), operator, probe) != ""


@pytest.mark.parametrize("name", ["softmax_simt.cu", "team.h"])
def test_memory_and_special_instructions_go_through_the_dialect(name: str) -> None:
    text = resources.files("deepgen.kernels.softmax.simt_softmax").joinpath(name).read_text()
    text = re.sub(r"//.*", "", text)
    assert not re.search(r"\basm\b|\b__\w+|\b(threadIdx|blockIdx|gridDim|blockDim|warpSize)\b|\batomic\w*", text)
    assert not re.search(r"->|\*\s*reinterpret_cast|\b(x|y)\[", text), "memory is reached by loads and stores alone"


@pytest.mark.parametrize("target", ["cuda:sm_70", "cuda:sm_90a", "hip:gfx906", "hip:gfx1100"])
def test_the_default_is_a_point_of_the_space(target: str) -> None:
    chip = targets.resolve(target)
    for name in DTYPES:
        for rows, cols in [(1, 1), (4096, 1024), (3, 1_000_003), (10**6, 2), (128, 50257)]:
            operator = softmax(rows, cols, dtype=name)
            assert FAMILY.space(operator, chip).explain(dict(FAMILY.default(operator, chip))) == []


def test_it_is_found_for_gpus_and_for_softmax_alone() -> None:
    """By its name, and where rules have no arithmetic: kernels by rules are faster."""
    assert [one.name for one in generators.serving(softmax(64, 64), CHIP)] == ["rules", FAMILY.name]
    assert generators.find(softmax(64, 64, dtype="f64"), targets.resolve("hip:gfx90a")).name == FAMILY.name
    assert generators.find(softmax(64, 64), CHIP, FAMILY.name).name == FAMILY.name
    assert "GPUs" in str(FAMILY.refuses(softmax(64, 64), targets.resolve("x86:avx2")))
    assert "softmax" in str(FAMILY.refuses(gemm(64, 64, 64), CHIP))
    assert "cols" in str(FAMILY.refuses(softmax(1, 1 << 31), CHIP))


@pytest.mark.parametrize(
    ("name", "operator", "target", "changes"),
    [
        ("rows", softmax(4096, 1024, dtype="bf16"), "cuda:sm_90a", {}),
        ("long", softmax(16, 50257), "cuda:sm_80", {"METHOD": "online"}),
        ("shared", softmax(100, 1000, dtype="f16"), "hip:gfx906", {"KEEP": "shared"}),
    ],
)
def test_the_emitted_kernel_is_the_one_we_looked_at(
    name: str, operator: Softmax, target: str, changes: dict[str, Any], golden: Callable[[str, str], str]
) -> None:
    chip = targets.resolve(target)
    kernel = FAMILY.emit(operator, chip, {**FAMILY.default(operator, chip), **changes}).to_json()
    kept = {key: kernel[key] for key in ("name", "language", "flags", "plan")}
    assert golden(f"simt_softmax/{name}.json", json.dumps(kept, indent=1) + "\n") == ""


@pytest.mark.parametrize("name", CHIPS)
def test_a_sample_compiles_and_the_default_spills_nothing(name: str, tmp_path: Path) -> None:
    target = targets.resolve(name)
    toolchain = needs.toolchain(target, "cuda" if name.startswith("cuda") else "hip")

    def spilled(operator: Softmax, config: Mapping[str, Any]) -> object:
        with TemporaryDirectory(dir=tmp_path) as folder, Group() as group:
            kernel = FAMILY.emit(operator, target, config)
            return toolchain.build(kernel, target, Path(folder), BuildLimits(), group).facts["spill_bytes"]

    for number, (dtype, keep) in enumerate(zip(DTYPES, [*KEEPS, "registers"], strict=True)):
        operator = softmax(4096, 1000, dtype=dtype)
        if number % 2 == CHIPS.index(name) % 2:  # the other half is built for the same vendor's other chips
            (config,) = FAMILY.space(operator, target).restrict({"KEEP": keep}).sample(1, seed=number)
            spilled(operator, config)
        assert spilled(operator, FAMILY.default(operator, target)) == 0
