"""What the families on warp-wide products offer: what they support, that they build and conform to the dialect."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import needs
from deepgen import generators, targets
from deepgen.generators import Generator
from deepgen.kernels.gemm.mma_gemm import MmaGemm
from deepgen.kernels.gemm.skinny_gemm import SkinnyGemm
from deepgen.kernels.shared import source_text
from deepgen.operators import Gemm, gemm
from deepgen.toolchains.base import BuildLimits
from deepgen.toolchains.group import Group

MMA, SKINNY = MmaGemm(), SkinnyGemm()
SQUARE, THIN, DEEP = (4096, 4096, 4096), (16, 4096, 4096), (128, 128, 16384)
CHIPS = ("cuda:sm_80", "cuda:sm_89", "cuda:sm_90a", "cuda:sm_100a", "cuda:sm_120")


def operator(shape: tuple[int, int, int], dtype: str = "bf16", layout: str = "nt") -> Gemm:
    made = gemm(*shape, dtype=dtype, layout=layout)
    return replace(made, c="bf16", fast_sums=True) if dtype.startswith("f8") else made


@pytest.mark.parametrize(
    ("problem", "target", "name"),
    [
        (operator(SQUARE), "cuda:sm_80", "mma_gemm"),
        (operator(SQUARE, "f8e4m3"), "cuda:sm_89", "mma_gemm"),
        (operator(SQUARE, "i8", "tn"), "cuda:sm_90a", "mma_gemm"),
        (operator(THIN), "cuda:sm_90a", "sm90_gemm"),
        (
            operator(THIN),
            "cuda:sm_80",
            "mma_gemm",
        ),  # as fast on an H200; a thin operand that all blocks read costs more here
        (operator((4096, 48, 4096), "f16"), "cuda:sm_120", "mma_gemm"),
        (operator((4096, 64, 4096), "f16"), "cuda:sm_120", "mma_gemm"),  # its sums leave few registers for loads
        (operator((8, 4096, 4096), "f8e4m3"), "cuda:sm_100a", "skinny_gemm"),
        (operator((16, 4096, 4100)), "cuda:sm_90a", "sm90_gemm"),  # unaligned lines are copied asynchronously
        (operator(THIN, layout="nn"), "cuda:sm_80", "mma_gemm"),  # bytes that are exchanged in registers
        (operator(THIN, "tf32", "nn"), "cuda:sm_90a", "skinny_gemm"),
        (operator((4, 4096, 4096), "f32"), "cuda:sm_90a", "skinny_gemm"),
        (operator((65, 4096, 4096), "f16"), "cuda:sm_120", "mma_gemm"),
        (operator((64, 64, 4096)), "cuda:sm_80", "mma_gemm"),
        (operator(SQUARE, "f32"), "cuda:sm_90a", "simt_gemm"),
        (operator(THIN), "hip:gfx90a", "simt_gemm"),
    ],
)
def test_the_family_that_a_user_gets(problem: Gemm, target: str, name: str) -> None:
    assert generators.find(problem, targets.resolve(target)).name == name


@pytest.mark.parametrize(
    ("problem", "target", "why"),
    [
        (operator(SQUARE), "cuda:sm_75", "sm_80"),
        (operator(SQUARE, "f8e4m3"), "cuda:sm_80", "no matrix instructions"),
        (replace(operator(SQUARE, "f8e4m3"), fast_sums=False), "cuda:sm_89", "fast_sums=True"),
        (replace(operator(SQUARE, "f8e4m3"), fast_sums=False), "cuda:sm_120", "fast_sums=True"),
        (gemm(64, 64, 64, dtype="i8", alpha=0.5), "cuda:sm_80", "must be integers"),
        (gemm(64, 64, 64), "cuda:sm_80", "multiplies"),
    ],
)
def test_what_it_cannot_do_it_refuses_in_words(problem: Gemm, target: str, why: str) -> None:
    assert why in (MMA.refuses(problem, targets.resolve(target)) or "")


@pytest.mark.parametrize("target", ["cuda:sm_90", "cuda:sm_90a", "cuda:sm_100a"])
def test_sums_of_8_bit_floats_are_f32_where_the_chip_widens_them(target: str) -> None:
    for family, shape in ((MMA, SQUARE), (SKINNY, THIN)):
        exact = replace(operator(shape, "f8e4m3"), fast_sums=False)
        assert family.refuses(exact, targets.resolve(target)) is None


def test_defaults_are_points_of_their_spaces() -> None:
    for target in ("cuda:sm_80", "cuda:sm_89", "cuda:sm_90a", "cuda:sm_120"):
        chip = targets.resolve(target)
        for family, shapes in (
            (MMA, (SQUARE, DEEP, (1, 512, 300), (33, 65, 17))),
            (SKINNY, (THIN, (4096, 3, 1000), (4096, 64, 4096), (40, 4096, 600))),
        ):
            # Each format is combined with each layout on one of the chips.
            for (dtype, layout), shape in itertools.product(_paired(["bf16", "tf32", "i8", "f8e4m3"], target), shapes):
                problem = operator(shape, dtype, layout)
                if family.refuses(problem, chip) is None:
                    config = dict(family.default(problem, chip))
                    assert family.space(problem, chip).explain(config) == []


def _paired(dtypes: list[str], target: str) -> list[tuple[str, str]]:
    layouts = ["nt", "nn", "tn", "tt"]
    turn = sum(target.encode())
    return [(dtype, layouts[(turn + place) % 4]) for place, dtype in enumerate(dtypes)]


@pytest.mark.slow
@pytest.mark.parametrize("target", CHIPS)
def test_defaults_keep_all_in_registers_and_samples_build(target: str, tmp_path: Path) -> None:
    chip = targets.resolve(target)
    toolchain = needs.toolchain(chip, "cuda")
    formats_here = [
        dtype for dtype in ("bf16", "tf32", "i8", "f8e4m3") if MMA.refuses(operator(SQUARE, dtype), chip) is None
    ]
    narrow = formats_here[-1]
    others: list[tuple[Generator, Gemm]] = [
        (MMA, operator((33, 65, 4097), narrow, "tt")),
        (SKINNY, operator(THIN)),
        (SKINNY, operator((4096, 32, 4096), "f16", "tn")),
        (SKINNY, operator((16, 4096, 4096), "i8", "tt")),
        (SKINNY, operator((4096, 64, 4096), narrow)),
    ]
    some: list[tuple[Generator, Gemm]] = [
        # Every format in some layout; which one differs between chips, and so does which of the others.
        *((MMA, operator(SQUARE, dtype, layout)) for dtype, layout in _paired(formats_here, target)),
        others[CHIPS.index(target)],
    ]
    for number, (family, problem) in enumerate(some):
        sampled = family.space(problem, chip).sample(1, seed=number)
        for config in (
            family.default(problem, chip),
            *(sampled if number == len(some) - 1 and target in ("cuda:sm_80", "cuda:sm_90a") else []),
        ):
            folder = tmp_path / f"{number}-{config is sampled[0]}"
            folder.mkdir()
            with Group() as group:
                built = toolchain.build(family.emit(problem, chip, config), chip, folder, BuildLimits(), group)
            assert config is sampled[0] or built.facts["spill_bytes"] == 0, problem.describe()


@pytest.mark.parametrize(
    "file",
    [
        "mma_gemm/gemm_mma.cu",
        "mma_gemm/problem.h",
        "mma_gemm/operands.h",
        "mma_gemm/share.h",
        "skinny_gemm/gemm_skinny.cu",
        "skinny_gemm/large.h",
    ],
)
def test_memory_and_special_instructions_go_through_the_dialect(file: str) -> None:
    package, name = file.split("/")
    text = re.sub(r"//.*", "", source_text(f"deepgen.kernels.gemm.{package}", name))
    for forbidden in (r"\basm\b", r"\b__\w+", r"\b(threadIdx|blockIdx|gridDim|blockDim)\b", r"\batomic\w*"):
        assert not re.search(forbidden, text), f"{name} has {forbidden}"
    assert not re.search(r"->|\*\s*reinterpret_cast|(^|[=(,;{])\s*\*\s*\w+\s*=", text, re.MULTILINE)
    for pointer in ("a", "b", "c", "bias", "scale", "partial", "arrived", "from", "source", "slots", "slot", "to"):
        assert not re.search(rf"\b(p\.)?{pointer}\[", text.replace("a[4]", "").replace("b[2]", "")), (
            f"{name}: {pointer}"
        )


def test_both_sides_of_the_dialect_have_the_same_words() -> None:
    def words(name: str) -> set[str]:
        text = source_text("deepgen.kernels.gemm.mma_gemm", name)
        return set(re.findall(r"^(?:DG_DEVICE|struct) (?:[\w, <>]+? )?(\w+)(?:\(| \{)", text, re.MULTILINE))

    shared = {"tf32", "f8e4m3", "f8e5m2", "to_work"}
    assert words("dialect_mma.h") - shared <= words("emulate_mma.h")


@pytest.mark.parametrize(
    ("name", "family", "problem", "target"),
    [
        ("square", MMA, operator(SQUARE), "cuda:sm_90a"),
        ("deep", MMA, operator(DEEP, layout="tn"), "cuda:sm_80"),
        ("bytes", MMA, operator((100, 60, 36), "i8", "nn"), "cuda:sm_80"),
        ("thin", SKINNY, operator(THIN), "cuda:sm_90a"),
    ],
)
def test_the_emitted_kernel_is_the_one_we_looked_at(
    name: str, family: Generator, problem: Gemm, target: str, golden: Callable[[str, str], str]
) -> None:
    chip = targets.resolve(target)
    kernel = family.emit(problem, chip, family.default(problem, chip)).to_json()
    kept = {key: kernel[key] for key in ("name", "language", "flags", "plan")}
    assert golden(f"mma_gemm/{name}.json", json.dumps(kept, indent=1) + "\n") == ""
