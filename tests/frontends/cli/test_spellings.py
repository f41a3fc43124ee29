"""Number formats and layouts by the names used in other libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

import deepgen as dg
from deepgen.frontends import formats
from deepgen.frontends.cli import words
from deepgen.vocabulary import BadInput, dtype
from deepgen.vocabulary.dtypes import DTYPES

SPELLINGS = {
    "f32": ["f32", "fp32", "float32", "Float32", "single"],
    "f64": ["fp64", "float64", "double"],
    "f16": ["fp16", "float16", "half"],
    "bf16": ["bfloat16", "BF16"],
    "f8e4m3": ["fp8", "fp8_e4m3", "float8_e4m3fn"],
    "f8e5m2": ["fp8_e5m2", "float8_e5m2"],
    "i8": ["int8"],
    "u8": ["uint8"],
}
PAIRS = [(ours, theirs) for ours, names in SPELLINGS.items() for theirs in names]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_a_gemm_in_either_spelling_is_the_same(ours: str, theirs: str) -> None:
    wanted = dg.gemm(64, 64, 64, dtype=ours)
    assert dg.gemm(64, 64, 64, dtype=theirs) == wanted
    assert words.parse(["gemm", "MNK=64", f"dtype={theirs}"])[0] == wanted
    assert words.parse(["gemm", "MNK=64"], dtype=theirs)[0] == wanted
    assert dtype(theirs) is DTYPES[ours]


def test_layouts_in_capitals() -> None:
    assert words.parse(["gemm", "MNK=64", "layout=NT"])[0] == dg.gemm(64, 64, 64, layout="nt")
    assert dg.gemm(64, 64, 64, layout="TN") == dg.gemm(64, 64, 64, layout="tn")
    assert dg.conv2d(1, 8, 8, 4, 4, 3, layout="NCHW", dtype="half") == dg.conv2d(
        1, 8, 8, 4, 4, 3, layout="nchw", dtype="f16"
    )
    assert dg.softmax(4, 8, dtype="bfloat16") == dg.softmax(4, 8, dtype="bf16")


def test_a_config_file_may_use_them(tmp_path: Path) -> None:
    file = tmp_path / "layers.toml"
    file.write_text('operator = "gemm"\nshapes = [{ MNK = 64 }]\ndtype = "float16"\nlayout = "NT"\n')
    assert formats.read(file).operators == (dg.gemm(64, 64, 64, dtype="f16", layout="nt"),)


def test_a_number_for_each_dimension(tmp_path: Path) -> None:
    wanted = dg.conv2d(1, 8, 9, 4, 4, (1, 7), pad=(0, 3))
    assert words.parse(["conv2d", "N=1", "H=8", "W=9", "CI=4", "CO=4", "k=1x7", "pad=0x3", "stride=1x1"])[0] == wanted
    file = tmp_path / "layers.toml"
    for k in ("[1, 7]", '"1x7"'):
        file.write_text(f'operator = "conv2d"\nshapes = [{{ N=1, H=8, W=9, CI=4, CO=4, k={k}, pad=[0, 3] }}]\n')
        assert formats.read(file).operators == (wanted,)
    for word in ("k=1x7x1", "k=x7", "k=1x", "k=0x7"):
        with pytest.raises(BadInput, match=r"integer of at least 1, or one for each of h, w: 1x2"):
            words.parse(["conv2d", "N=1", "H=8", "W=9", "CI=4", "CO=4", word])
    with pytest.raises(BadInput, match=r"integer of at least 1\)"):
        words.parse(["conv2d", "N=1x1", "H=8", "W=9", "CI=4", "CO=4", "k=1"])


def test_formats_of_single_tensors() -> None:
    mixed = dg.gemm(64, 64, 64, dtype="half", c="float32", acc="float32")
    assert mixed == dg.gemm(64, 64, 64, dtype="f16", c="f32", acc="f32")


@pytest.mark.parametrize("word", ["float", "fp4", "int", ""])
def test_what_could_mean_several_formats_is_refused(word: str) -> None:
    with pytest.raises(BadInput, match="dtype"):
        dg.gemm(64, 64, 64, dtype=word)
    with pytest.raises(BadInput, match="dtype"):
        words.parse(["gemm", "MNK=64"], dtype=word)
    with pytest.raises(BadInput, match="one of f32, f64, f16, bf16"):
        words.parse(["softmax", "rows=4", "cols=4"], dtype="fp8")
