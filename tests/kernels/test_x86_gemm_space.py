"""What the family offers: where it applies, how large its space is, and that its parts fit together."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib import resources

import pytest

from deepgen import targets
from deepgen.kernels.gemm.x86_gemm import X86Gemm, X86GemmConstant, tile
from deepgen.operators import Gemm, gemm
from deepgen.operators.gemm import LAYOUTS
from deepgen.targets import X86
from deepgen.vocabulary import Kernel, TensorArg

FAMILY = X86Gemm()
CONSTANT = X86GemmConstant()
# A fixed machine, independent of where the tests run.
MACHINE = X86(
    name="x86:native",
    model="test",
    isa=("sse2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl"),
    cores=4,
    l1d_bytes=48 << 10,
    l2_bytes=2 << 20,
    l3_bytes=64 << 20,
)
OLDER = replace(MACHINE, name="x86:avx2", isa=("sse2", "avx", "f16c", "fma", "avx2"), l1d_bytes=32 << 10)
CROWDED = replace(OLDER, cores=64, l2_bytes=256 << 10, l3_bytes=8 << 20)  # little cache per core
SHAPES = [(64, 64, 64), (100, 100, 100), (1000, 1000, 1000), (1, 4096, 4096), (8, 4096, 4096), (256, 256, 8192)]


@pytest.mark.parametrize(
    ("operator", "target", "why"),
    [
        (gemm(8, 8, 8), targets.resolve("sim"), "x86"),
        (gemm(8, 8, 8), replace(MACHINE, isa=("sse2",)), "AVX2"),
        (gemm(8, 8, 8, dtype="f64"), MACHINE, "f32"),
        (gemm(8, 8, 8, scales="row"), MACHINE, "scales"),
    ],
)
def test_what_it_cannot_do_it_refuses_in_words(operator: Gemm, target: X86, why: str) -> None:
    assert why in (FAMILY.refuses(operator, target) or "")


@pytest.mark.parametrize("machine", [MACHINE, OLDER], ids=["avx512", "avx2"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_default_is_a_point_of_a_large_space(shape: tuple[int, int, int], machine: X86) -> None:
    for place, layout in enumerate(LAYOUTS, SHAPES.index(shape)):
        operator = gemm(*shape, layout=layout)
        for family in (FAMILY, CONSTANT):
            assert family.refuses(operator, machine) is None
            space = family.space(operator, machine)
            assert space.explain(dict(family.default(operator, machine))) == []
            # Counting is the slowest part: each shape in each layout with each family, on one of the machines.
            if (place + (family is CONSTANT)) % 2 == (machine is OLDER):
                assert space.count() > 1000


@pytest.mark.parametrize(
    ("number", "machine"), [*enumerate((MACHINE, OLDER, CROWDED, replace(CROWDED, isa=MACHINE.isa)))]
)
def test_the_default_lies_in_the_space_whatever_the_sizes(number: int, machine: X86) -> None:
    """Sizes that leave partial strips and panels, that few blocks cover, that are thin, or that no cache holds."""
    sizes = (5, 7, 15, 52, 92, 60000)
    shapes = [*itertools.product(sizes, sizes, (33, 4096)), (156, 92, 130), (132, 89, 60000)]
    for place, (m, n, k) in enumerate(shapes, number):
        for turn, layout in enumerate(LAYOUTS, place):
            operator = gemm(m, n, k, layout=layout)
            # Each shape in each layout with one of them; which one differs between machines.
            for family in (FAMILY, CONSTANT)[turn % 2 :: 2]:
                config = family.default(operator, machine)
                assert family.space(operator, machine).explain(config) == [], operator.describe()


@pytest.mark.parametrize("machine", [MACHINE, OLDER, CROWDED])
def test_what_the_model_ranks_lies_in_the_space(machine: X86) -> None:
    for m, n, k in itertools.product((1, 5, 16, 19, 31, 500), (1, 9, 20, 40, 2000), (4, 1250)):
        for layout, batch in zip(LAYOUTS, (1, 1, 7, 200), strict=True):
            operator = gemm(m, n, k, layout=layout, batch=batch)
            space, default, *others = FAMILY.space(operator, machine), *FAMILY.ranked(operator, machine)
            assert default == FAMILY.default(operator, machine) and default not in others
            assert [config for config in others if space.explain(config)] == [], operator.describe()
            assert len(others) >= 3 or min(m, n) > 16


def test_few_rows_or_columns_have_kinds_of_their_own_in_every_layout() -> None:
    for m, n in ((5, 300), (300, 5)):
        for layout in LAYOUTS:
            (kinds,) = (
                k.values for k in FAMILY.space(gemm(m, n, 100, layout=layout), MACHINE).knobs if k.name == "KIND"
            )
            thin = (layout[1] == "n") if m < n else (layout[0] == "t")
            assert {"thin" if thin else "dot"} <= {*kinds}, (m, n, layout)
    (kinds,) = (k.values for k in FAMILY.space(gemm(300, 300, 100), MACHINE).knobs if k.name == "KIND")
    assert [*kinds] == ["tiles"]


def test_a_batch_of_small_matrices_is_shared_by_matrices() -> None:
    operator = gemm(128, 128, 64, batch=96, layout="nt")
    config = FAMILY.default(operator, MACHINE)
    assert FAMILY.space(operator, MACHINE).explain(dict(config)) == []
    assert (config["THREADS"], config["PARTITION"]) == (4, "batch")


def test_few_rows_of_c_read_b_in_place_and_once() -> None:
    assert FAMILY.default(gemm(1, 4096, 4096, layout="nt"), MACHINE)["KIND"] == "dot"
    turned = FAMILY.default(gemm(64, 4096, 1024, layout="nt"), MACHINE)
    assert turned["SWAP"] and turned["PACK_A"] == "none"


def test_a_tile_that_needs_too_many_registers_is_named() -> None:
    operator = gemm(1024, 1024, 1024)
    config = {**FAMILY.default(operator, MACHINE), "MR": 14, "NR": 4}
    assert "registers" in FAMILY.space(operator, MACHINE).explain(config)[0].name


def test_every_macro_of_the_source_has_a_default_so_that_it_compiles_alone() -> None:
    source = resources.files("deepgen.kernels.gemm").joinpath("x86_gemm/fma_knobs.h").read_text()
    kernel = FAMILY.emit(gemm(64, 64, 64), MACHINE, FAMILY.default(gemm(64, 64, 64), MACHINE))
    given = {flag[2:].partition("=")[0] for flag in kernel.flags if flag.startswith("-D")}
    assert given == set(re.findall(r"^#ifndef (\w+)", source, re.MULTILINE))


def test_a_constant_b_is_packed_in_a_step_of_its_own() -> None:
    operator = gemm(256, 512, 1024, layout="nt")
    kernel = CONSTANT.emit(operator, MACHINE, CONSTANT.default(operator, MACHINE))
    assert [step.entry for step in kernel.plan.prepare] == ["deepgen_gemm_pack"]
    assert TensorArg("B") not in kernel.plan.steps[0].args


def test_a_constant_b_that_is_read_once_is_read_where_it_lies() -> None:
    operator = gemm(1, 4096, 4096)
    kernel = CONSTANT.emit(operator, MACHINE, CONSTANT.default(operator, MACHINE))
    assert kernel.plan.prepare == ()
    assert TensorArg("B") in kernel.plan.steps[0].args


@pytest.mark.parametrize(
    ("name", "operator", "machine", "changes"),
    [
        ("square", gemm(1024, 1024, 1024), MACHINE, {}),
        ("older", gemm(1024, 1024, 1024), OLDER, {}),
        ("vector", gemm(1, 4096, 4096, layout="nt"), MACHINE, {}),
        ("turned", gemm(64, 4096, 1024, layout="nt", bias=True, activation="gelu"), MACHINE, {}),
        ("deep", gemm(256, 256, 8192, layout="tn"), MACHINE, {"THREADS": 2, "PARTITION": "k", "TASKS": 2}),
    ],
)
def test_the_emitted_kernel_is_the_one_we_looked_at(
    golden: Callable[[str, str], str], name: str, operator: Gemm, machine: X86, changes: dict[str, object]
) -> None:
    kernel = FAMILY.emit(operator, machine, {**FAMILY.default(operator, machine), **changes})
    assert Kernel.from_json(kernel.to_json()) == kernel
    told = {"sources": [s.name for s in kernel.sources], "flags": kernel.flags, "plan": kernel.to_json()["plan"]}
    assert golden(f"x86_gemm/{name}.json", json.dumps(told, indent=1) + "\n") == ""


def test_loops_in_assembly_know_where_the_fields_of_their_work_are() -> None:
    struct = resources.files("deepgen.kernels.gemm.x86_gemm").joinpath("fma_tile.h").read_text()
    body = re.sub(r"//.*", "", struct[struct.index("};") + 2 : struct.index("} tile_work")])
    names = re.findall(r"\**(\w+)(?=[,;])", body)
    assert names[-2:] == ["alpha", "beta"]  # share eight bytes
    assert tuple(names[:-2]) == tile._FIELDS[:-1]


@pytest.mark.parametrize("target", [MACHINE, OLDER], ids=["avx512", "avx2"])
def test_loops_in_assembly_take_the_registers_there_are(target: X86) -> None:
    for layout in LAYOUTS:
        operator = gemm(137, 263, 1031, layout=layout)
        for config in FAMILY.space(operator, target).sample(40, seed=1):
            loops = [source.text for source in FAMILY.emit(operator, target, config).sources if "loops" in source.name]
            assert len(loops) == (config["KIND"] == "tiles")
            numbers = {int(n) for text in loops for n in re.findall(r"%[xyz]mm(\d+)", text)}
            assert all(n < target.vector_registers for n in numbers)
            multiplied = [line for text in loops for line in text.splitlines() if "vfmadd231ps %" in line]
            assert len(multiplied) >= config["MR"] * config["NR"] * config["UNROLL"] * len(loops)
            assert not any("(%rsp" in text for text in loops)
