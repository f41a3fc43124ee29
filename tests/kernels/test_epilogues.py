"""Epilogues as formulas in kernels: drawn ones on this CPU, and on GPUs in emulation; no family ignores one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import hopper_emulation
import mma_emulation
import pytest
import simt_emulation
from dot_gemm_cases import emulated
from kernel_runs import Runs

from deepgen import generators, targets
from deepgen.baselines import BASELINES
from deepgen.operators import gemm
from deepgen.operators.epilogue import FUNCTIONS

HERE, HOPPER = targets.resolve("cpu"), targets.resolve("cuda:sm_90a")
EMULATED = pytest.mark.skipif(simt_emulation.COMPILER is None, reason=simt_emulation.NO_COMPILER)
OPERANDS = ("bias[n]", "scale[m]", "res[m, n]", "s[0]", "f16(up[m, n])", "bf16(shift[n])")
ONE = "clamp(silu(x * scale[m] + bias[n]) * up[m, n] / (abs(s[0]) + 1), -4, 4) + f32(r[m, n]) * 6"
GATED = "silu(x) * y + residual[m, n]"
PRODUCT = "gelu(x + bias[n]) * up[m, n]"
OTHER = "gelu(x + f32(bias[n])) + tanh(x) - max(exp(-abs(x)), min(gelu_tanh(x), sigmoid(x) - relu(x)))"


def drawn(random: Random, depth: int = 3) -> str:
    """A text whose numbers stay moderate."""
    if depth == 0:
        return random.choice(("x", "x", *OPERANDS, f"{random.uniform(-2, 2):.3g}"))
    kind = random.choice(("+", "-", "*", "/", *FUNCTIONS))
    parts = [drawn(random, depth - random.randint(1, depth)) for _ in range(FUNCTIONS.get(kind, 2))]
    if kind in FUNCTIONS:
        first = f"{parts[0]} + 0.5 * x"
        if kind == "exp":
            return f"exp(-abs({first}))"
        return f"clamp({first}, -3, 3)" if kind == "clamp" else f"{kind}({', '.join([first, *parts[1:]])})"
    return f"({parts[0]}) / (1 + abs({parts[1]}))" if kind == "/" else f"({parts[0]}) {kind} ({parts[1]})"


@pytest.mark.parametrize("seed", range(6))
def test_drawn_texts_are_right_in_plain_c(seed: int) -> None:
    random = Random(seed)
    text = f"x * 0.5 + {drawn(random)}"
    operator = gemm(37, 70, 53, layout=random.choice(("nn", "nt", "tn", "tt")), batch=seed % 2 + 1, epilogue=text)
    family = generators.by_name("c_gemm")
    (config,) = family.space(operator, HERE).sample(1, seed=seed)
    runs = Runs(family.emit(operator, HERE, config), HERE, "-O1")
    for m, n, k in ((37, 70, 53), (1, 1, 1), (67, 131, 300)):
        assert runs.wrong(replace(operator, m=m, n=n, k=k)) == "", text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "chip", "words", "only"),
    [
        ("x86_vector_dot_gemm", "x86:avx512_vnni", {"dtype": "i8", "c": "bf16", "batch": 2}, {}),
        ("x86_vector_dot_gemm", "x86:avx512_bf16", {"dtype": "bf16"}, {"SWAP": True}),
        ("x86_amx_gemm", "x86:amx", {"dtype": "bf16", "c": "f32", "batch": 2}, {"PARTITION": "right", "TASKS": 2}),
        ("x86_amx_gemm", "x86:amx", {"dtype": "i8", "c": "f32"}, {"SWAP": False}),
        ("x86_amx_gemm", "x86:amx", {"dtype": "bf16", "k": 700}, {"PARTITION": "k"}),
    ],
)
def test_processors_with_products_of_their_own(
    name: str, chip: str, words: dict[str, Any], only: dict[str, Any]
) -> None:
    operator = gemm(167, 170, **{"k": 131, **words}, layout="nt", epilogue=ONE)
    family, target = generators.by_name(name), replace(targets.resolve(chip), cores=2)
    (config,) = family.space(operator, target).restrict(only).sample(1, seed=3)
    assert Runs(emulated(family.emit(operator, target, config)), HERE).wrong(operator) == "", config


@EMULATED
@pytest.mark.slow
@pytest.mark.parametrize(("text", "batch"), [(ONE, 1), (OTHER, 2)])
@pytest.mark.parametrize("way", ["none", "step", "last"])
def test_warp_wide_products(text: str, batch: int, way: str, tmp_path: Path) -> None:
    operator = gemm(37, 42, 264, dtype="f16", c="f16", layout="nt", batch=batch, epilogue=text)
    family = generators.by_name("mma_gemm")
    only: dict[str, Any] = {"BM": [16, 32], "BN": [16, 32, 64], "FIXUP": way}
    (config,) = family.space(operator, HOPPER).restrict(only).sample(1, seed=batch)
    mma_emulation.check(operator, family.emit(operator, HOPPER, config), tmp_path / "kernel")


@EMULATED
def test_few_rows(tmp_path: Path) -> None:
    operator = gemm(3, 1027, 520, dtype="bf16", layout="nt", epilogue=ONE)
    family = generators.by_name("skinny_gemm")
    kernel = family.emit(operator, HOPPER, family.default(operator, HOPPER))
    mma_emulation.check(operator, kernel, tmp_path / "kernel")


@EMULATED
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "store", "n", "batch"),
    [
        (ONE, "copy", 136, 1),
        (OTHER, "late", 128, 2),
        (ONE, "sectors", 131, 2),
        (OTHER, "lines", 83, 1),
        (ONE, "straight", 61, 1),
        (ONE, "reuse", 136, 1),
        (PRODUCT, "reuse", 72, 2),
    ],
)
def test_warpgroup_products(text: str, store: str, n: int, batch: int, tmp_path: Path) -> None:
    operator = gemm(149, n, 72, dtype="bf16", layout="nt", batch=batch, epilogue=text)
    family = generators.by_name("sm90_gemm")
    only: dict[str, Any] = {"STORE": store, "MIN_BLOCKS": 1, "FIXUP": "none", "CLUSTER_M": 1, "CLUSTER_N": 1}
    (config,) = family.space(operator, HOPPER).restrict(only).sample(1, seed=5)
    kernel = family.emit(operator, HOPPER, config)
    assert hopper_emulation.run(kernel, hopper_emulation.build(kernel, tmp_path), operator).ok


@EMULATED
@pytest.mark.parametrize(("m", "n", "text", "side"), [(192, 64, "x + r[m, n]", "M"), (64, 192, "x + r[n]", "N")])
def test_operands_are_read_no_further_than_they_go(m: int, n: int, text: str, side: str, tmp_path: Path) -> None:
    """Of two blocks that share tiles, one has a tile beyond the matrix, though tiles divide that."""
    operator, family = gemm(m, n, 64, dtype="bf16", layout="nt", epilogue=text), generators.by_name("sm90_gemm")
    only: dict[str, Any] = {"FIXED": True, "CONSUMERS": 1, "TILES_M": 1, "BN": 64, "STORE": "copy", "FIXUP": "none"}
    (config,) = family.space(operator, HOPPER).restrict({**only, f"CLUSTER_{side}": 2}).sample(1, seed=1)
    kernel = family.emit(operator, HOPPER, config)
    assert hopper_emulation.run(kernel, hopper_emulation.build(kernel, tmp_path), operator).ok


@EMULATED
@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "store", "schedule", "n"),
    [
        ("joined", "copy", "ping-pong", 136),
        ("two", "late", "cooperative", 264),
        ("two", "straight", "cooperative", 72),
        ("joined", "reuse", "cooperative", 136),
    ],
)
def test_pairs_of_warpgroup_products(pair: str, store: str, schedule: str, n: int, tmp_path: Path) -> None:
    operator = gemm(149, n, 72, dtype="bf16", layout="nt", epilogue=GATED, pair=pair)
    family = generators.by_name("sm90_gemm")
    only: dict[str, Any] = {"STORE": store, "SCHEDULE": schedule, "MIN_BLOCKS": 1}
    (config,) = family.space(operator, HOPPER).restrict(only).sample(1, seed=7)
    kernel = family.emit(operator, HOPPER, config)
    assert hopper_emulation.run(kernel, hopper_emulation.build(kernel, tmp_path), operator).ok


@pytest.mark.parametrize("pair", ["joined", "two"])
def test_pairs_are_served_everywhere(pair: str) -> None:
    operator = gemm(33, 40, 24, layout="nt", epilogue=GATED, pair=pair)
    for name in ("x86:avx2", "arm:neon", "cuda:sm_80", "hip:gfx90a"):
        target = targets.resolve(name)
        serving = [f for f in generators.families(target) if f.refuses(operator, target) is None]
        assert serving and all(family.name.startswith("rules") for family in serving), name
    family = generators.find(operator, HERE)
    assert Runs(family.emit(operator, HERE, family.default(operator, HERE)), HERE, "-O1").wrong(operator) == ""


@pytest.mark.parametrize("of", ["f32", "bf16"])
def test_a_family_computes_a_text_or_refuses_it(of: str) -> None:
    operator = gemm(64, 64, 64, dtype=of, layout="nt", epilogue="gelu(x + bias[n]) * up[m, n]")
    for name in ("x86:amx", "x86:avx2", "arm:neon", "riscv:rv64gcv_zvl128b", "cuda:sm_80", "cuda:sm_90a", "hip:gfx90a"):
        target, serving = targets.resolve(name), 0
        for family in generators.families(target):
            if family.refuses(operator, target) is None:
                serving += 1
                texts = "\n".join(
                    s.text for s in family.emit(operator, target, family.default(operator, target)).sources
                )
                assert "epi_gelu(" in texts or family.name.startswith("rules"), family.name
        assert serving, f"someone serves {name}"


def test_no_baseline_computes_only_the_product() -> None:
    operator = gemm(64, 64, 64, layout="nt", epilogue="gelu(x + bias[n]) * up[m, n]")
    for name in BASELINES.own:
        baseline = BASELINES.get(name)()
        for target in (HERE, HOPPER):
            assert baseline.missing(operator, target) is not None, name
