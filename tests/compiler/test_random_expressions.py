"""A few of the random expressions that `random_expressions.py` draws, and the bugs they revealed."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import simt_emulation as simt
from compiled import COMPILERS, NO_COMPILER
from random_expressions import AT_ONCE, case, failures, options
from test_spaces import X86, configs, lowered

import deepgen as dg
from deepgen import targets
from deepgen.compiler.text import c
from deepgen.operators.expr.nodes import HasExpression
from deepgen.targets import Cpu, Gpu
from deepgen.toolchains.compilers.c import isa_flags

# gcc for x86, native or cross.
GCC = shutil.which("gcc" if platform.machine() == "x86_64" else "x86_64-linux-gnu-gcc")
# Lengths that are not multiples of vectors, with few channels: their last elements are loaded under masks.
LINES = (
    {"L": 13, "k": 3, "stride": 2, "CI": 3, "CO": 2, "dtype": "i8"},
    {"L": 8, "k": 3, "pad": 2, "CI": 1, "CO": 1},
    {"L": 21, "k": 5, "pad": 2, "CI": 2, "CO": 3, "layout": "ncl"},
)


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS[:2] or [pytest.param("", marks=pytest.mark.skip(reason=NO_COMPILER))])
def test_a_sample_on_this_processor(compiler: str) -> None:
    first = 12 * COMPILERS.index(compiler)
    words = ["--count", "12", "--start", str(first), "--compiler", compiler]
    assert [f"{one}\n{error}" for one, error in failures(options(words)) if error] == []


@pytest.mark.skipif(not COMPILERS, reason=NO_COMPILER)
@pytest.mark.parametrize("number", [3241, 1719])
def test_scans_in_vectors_read_nothing_that_is_not_chosen(number: int) -> None:
    """Running sums and minima of padded rows: memory before a tensor was loaded, although not selected."""
    assert [error for _, error in failures(options(["--seed", "64", "--only", str(number)])) if error] == []


@pytest.mark.slow
@pytest.mark.skipif(not COMPILERS, reason=NO_COMPILER)
def test_convolutions_on_this_processor() -> None:
    words = ["--convolutions", "--count", "12", "--seed", "7"]
    assert [f"{one}\n{error}" for one, error in failures(options(words)) if error] == []


@pytest.mark.slow
@pytest.mark.skipif(not COMPILERS, reason=NO_COMPILER)
def test_eight_bits_on_this_processor() -> None:
    words = ["--eight-bits", "--count", "12", "--seed", "3"]
    assert [f"{one}\n{error}" for one, error in failures(options(words)) if error] == []


@pytest.mark.skipif(simt.COMPILER is None, reason=simt.NO_COMPILER)
@pytest.mark.parametrize("target", ["cuda", "hip"])
def test_convolutions_emulated(target: str) -> None:
    words = ["--convolutions", "--count", "6", "--target", target]
    assert [f"{one}\n{error}" for one, error in failures(options(words)) if error] == []


@pytest.mark.skipif(simt.COMPILER is None, reason=simt.NO_COMPILER)
@pytest.mark.parametrize("target", ["cuda", "hip"])
def test_a_sample_emulated(target: str) -> None:
    assert [f"{one}\n{error}" for one, error in failures(options(["--count", "8", "--target", target])) if error] == []


@pytest.mark.skipif(simt.COMPILER is None, reason=simt.NO_COMPILER)
@pytest.mark.parametrize("target", ["cuda", "hip"])
def test_rows_emulated(target: str) -> None:
    words = ["--rows", "--count", "8", "--target", target]
    assert [f"{one}\n{error}" for one, error in failures(options(words)) if error] == []


def test_rows_of_constants_have_a_schedule() -> None:
    """No tensor is read along them: the rules once looked for the smallest element among none."""
    gpu = targets.resolve("hip:gfx90a")
    assert isinstance(gpu, Gpu) and case(7, 193, gpu) is not None


def test_sums_over_axes_that_nothing_is_read_along_have_a_schedule() -> None:
    """There is no tensor in which to fuse the axes: the rules once looked for one forever."""
    gpu = targets.resolve("cuda:sm_90a")
    assert isinstance(gpu, Gpu) and case(48, 257, gpu) is not None


def test_what_a_sum_is_padded_with_for_its_reader_has_a_schedule() -> None:
    """A cached sum whose only reader pads it: the rules once cached the copy, and the copy of the copy."""
    host = targets.resolve("cpu")
    assert isinstance(host, Cpu) and case(35, 39, host) is not None


@pytest.mark.skipif(not COMPILERS, reason=NO_COMPILER)
def test_padding_within_a_choice_that_keeps_its_reads_inside() -> None:
    assert [error for _, error in failures(options(["--seed", "35", "--only", "902"])) if error] == []


def test_a_condition_on_a_sum_within_an_element() -> None:
    x, k = dg.tensor("x", (4, 9), "i32"), dg.reduce_axis("k", 9)
    total = dg.compute("y", (4,), lambda i: dg.where(dg.sum(x[i, k], k) < 2, dg.sum(x[i, k], k), 2))
    assert [stage.name for stage in dg.expression(total).stages] == ["y_sum", "y"]


@pytest.mark.skipif(GCC is None, reason="no gcc for x86 is installed")
def test_gcc_loads_nothing_beside_masks(tmp_path: Path) -> None:
    """A blend of memory with an immediate mask loads a whole vector: gcc 12 generated it for masked loads."""
    functions = []
    for words in LINES:
        operator = dg.operator("conv1d", N=1, **words)
        assert isinstance(operator, HasExpression)
        functions += [lowered(sketch, config, X86) for sketch, config in configs(operator.expression(), X86, 2)]
    parts = [c.definitions(function, f"case{n}") for n, function in enumerate(functions[:AT_ONCE])]
    for header in {h for function in functions for h in c.headers(function)}:
        (tmp_path / header.name).write_text(header.text)
    (tmp_path / "all.c").write_text(c.file_text(parts, parallel=(tmp_path / "cpu_pool.h").exists()))
    flags = ["-O3", *isa_flags("x86_64", X86.instruction_sets, "gcc", 12), "-std=gnu11", "-w", "-S", "-o", "-"]
    text = subprocess.run([str(GCC), *flags, "all.c"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    tensors = r"\(%r(?!sp|bp|ip)"
    assert re.findall(rf"\n.*vp?blend\w+\s+\$\d+, \S*{tensors}.*", text) == []
