"""What the SIMT family offers, and that its source keeps to the dialect that the emulation supports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import islice
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from deepgen import generators, targets
from deepgen.kernels.gemm.simt_gemm import SimtGemm
from deepgen.kernels.shared import source_text
from deepgen.operators import Gemm, gemm

FAMILY = SimtGemm()
HOPPER, H200 = targets.resolve("cuda:sm_90a"), targets.resolve("cuda:h200")
KERNEL_FILES = ("gemm_simt.cu", "tiles.h", "work.h", "epilogue.h", "schedule.h", "operands.h", "entry.h")
TARGETS = ["cuda:sm_70", "cuda:sm_80", "cuda:sm_90a", "hip:gfx906", "hip:z100", "hip:gfx90a", "hip:gfx1100"]


@pytest.mark.parametrize(
    ("operator", "target", "why"),
    [
        (gemm(8, 8, 8), "x86:avx2", "GPU"),
        (Gemm(8, 8, 8, a="f32", b="f16"), "cuda:sm_80", "f16"),
        (gemm(8, 8, 8, dtype="i8", alpha=0.5), "cuda:sm_80", "must be integers"),
        (gemm(8, 8, 8, bias=True), "hip:gfx906", "bias"),
    ],
)
def test_what_it_cannot_do_it_refuses_in_words(operator: Gemm, target: str, why: str) -> None:
    assert why in (FAMILY.refuses(operator, targets.resolve(target)) or "")


def test_it_is_found_for_gpus() -> None:
    for target in TARGETS:
        assert generators.find(gemm(64, 64, 64), targets.resolve(target)).name == "simt_gemm"


@pytest.mark.parametrize("target", TARGETS)
def test_the_default_is_a_point_of_the_space(target: str) -> None:
    chip = targets.resolve(target)
    for place, dtype in enumerate(("f32", "tf32", "f64", "f16", "bf16", "i8"), TARGETS.index(target)):
        operators = (
            gemm(4096, 4096, 4096, dtype=dtype, layout="nt"),
            gemm(1, 512, 300, dtype=dtype, layout="tt"),
            gemm(128, 128, 16384, dtype=dtype),
            gemm(33, 65, 17, dtype=dtype, batch=3, layout="tn"),
        )
        # Each chip is tried with each operator and each format; each operator is tried with each format on some chips.
        for operator in (operators[place % 4], operators[(place + 1) % 4]):
            config = dict(FAMILY.default(operator, chip))
            assert FAMILY.space(operator, chip).explain(config) == []


def test_what_does_not_fit_the_chip_is_named() -> None:
    operator, chip = gemm(1024, 1024, 1024, layout="nt"), targets.resolve("cuda:sm_80")
    config = dict(FAMILY.default(operator, chip))
    broken = FAMILY.space(operator, chip).explain({**config, "TM": 16, "TN": 16, "BM": 256, "BN": 256})
    assert any("registers" in b.name for b in broken)


@pytest.mark.parametrize("name", KERNEL_FILES)
def test_memory_and_special_instructions_go_through_the_dialect(name: str) -> None:
    text = re.sub(r"//.*", "", source_text("deepgen.kernels.gemm.simt_gemm", name))
    for forbidden in (
        r"\basm\b",
        r"\b__\w+",
        r"\b(threadIdx|blockIdx|gridDim|blockDim)\b",
        r"\batomic\w*",
        r"\bwarpSize\b",
    ):
        assert not re.search(forbidden, text), f"{name} has {forbidden}"
    # Memory is accessed only through the dialect's loads, stores and copies: no pointer is dereferenced or indexed,
    # except the one to a thread's own sums.
    assert not re.search(r"->|\*\s*reinterpret_cast|(^|[=(,;{])\s*\*\s*\w+\s*=", text, re.MULTILINE)
    pointers = set(re.findall(r"\*\s*(\w+)\b", re.sub(r"[\w)]\s\*\s\w", "", text))) - {"reinterpret_cast", "sums"}
    for pointer in pointers:
        assert not re.search(rf"\b{pointer}\[", text), f"{name} indexes the pointer {pointer}"


def test_every_side_of_the_dialect_has_the_same_words() -> None:
    def words(name: str) -> set[str]:
        return set(
            re.findall(r"^DG_DEVICE [\w ]+? (\w+)\(", source_text("deepgen.kernels.shared.dialect", name), re.MULTILINE)
        )

    cuda, emulated = words("dialect_cuda.h"), words("emulate.h")
    assert cuda <= emulated
    asynchronous = {word for word in cuda if word.startswith("copy_")}
    assert cuda - asynchronous <= words("dialect_hip.h") | {"dot"}


@pytest.mark.parametrize(
    ("name", "operator", "target", "changes"),
    [
        ("square", gemm(4096, 4096, 4096, layout="nt"), "cuda:sm_90a", {}),
        ("wavefronts", gemm(4096, 4096, 4096), "hip:gfx906", {}),
        ("deep", gemm(128, 128, 16384, layout="tn"), "cuda:sm_80", {"FIXUP": "step", "SPLITS": 33}),
        ("stream", gemm(1536, 3072, 768, layout="nt"), "cuda:sm_90a", {"FIXUP": "stream", "BLOCKS": 132}),
        ("bytes", gemm(100, 60, 36, dtype="i8", layout="nt"), "cuda:sm_70", {}),
    ],
)
def test_the_emitted_kernel_is_the_one_we_looked_at(
    name: str, operator: Gemm, target: str, changes: dict[str, Any], golden: Callable[[str, str], str]
) -> None:
    chip = targets.resolve(target)
    kernel = FAMILY.emit(operator, chip, {**FAMILY.default(operator, chip), **changes}).to_json()
    kept = {key: kernel[key] for key in ("name", "language", "flags", "plan")}
    assert golden(f"simt_gemm/{name}.json", json.dumps(kept, indent=1) + "\n") == ""


def test_what_the_model_takes_for_the_fastest_is_nearly_the_fastest_of_those_that_were_timed() -> None:
    timings = json.loads((Path(__file__).parent / "simt_timings.json").read_text())
    reached, predicted = [], []
    for row in timings["shapes"]:
        layout, batch, m, n, k = row["gemm"]
        operator = gemm(m, n, k, batch=batch, layout=layout)
        configs = [{"PAD": 4, **dict(zip(timings["knobs"], values, strict=True))} for values in row["configs"]]
        chosen = [{knob: value for knob, value in config.items() if value is not None} for config in configs]
        times = [FAMILY.modelled_seconds(operator, H200, config) or 0.0 for config in chosen]
        reached.append(min(row["us"]) / row["us"][times.index(min(times))])
        predicted.append(times[row["us"].index(min(row["us"]))] * 1e6 / min(row["us"]))
    assert fmean(map(log, reached)) > log(0.96) and min(reached) > 0.75
    assert min(reached[-4:]) > 0.97, "large products, where nothing but the loop counts"
    assert abs(fmean(map(log, predicted))) < 0.1


def test_configs_are_ranked_from_the_default_on_and_all_are_valid() -> None:
    for operator in (
        gemm(12, 12, 1196, layout="tt"),
        gemm(2287, 2759, 12, layout="nt"),
        gemm(700, 300, 900, dtype="f16"),
    ):
        first = list(islice(FAMILY.ranked(operator, HOPPER), 12))
        assert first[0] == FAMILY.default(operator, HOPPER)
        assert all(FAMILY.space(operator, HOPPER).explain(dict(config)) == [] for config in first)
        assert len({repr(config) for config in first}) == len(first) >= 8
