"""The words that name an operator, as users of the older tool type them."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepgen.frontends.cli.words import Extras, parse
from deepgen.operators import gemm
from deepgen.vocabulary import BadInput, DeepgenError


@pytest.mark.parametrize(
    ("words", "sizes", "batch", "extras"),
    [
        ("gemm M=1024 N=2048 K=3072", (1024, 2048, 3072), 1, Extras()),
        ("gemm K=3 M=1 N=2", (1, 2, 3), 1, Extras()),
        ("gemm MN=1024 K=2048", (1024, 1024, 2048), 1, Extras()),
        ("gemm KM=7 N=9", (7, 9, 7), 1, Extras()),
        ("gemm MNK=4096", (4096, 4096, 4096), 1, Extras()),
        ("gemm MNK=64 B=8", (64, 64, 64), 8, Extras()),
        ("gemm MNK=64 batch=8", (64, 64, 64), 8, Extras()),
        ("gemm MNK=64 t=500", (64, 64, 64), 1, Extras(trials=500)),
        ("gemm t=5 MNK=64 O=0", (64, 64, 64), 1, Extras(trials=5, detach=True)),
        ("gemm MNK=64 O=65536", (64, 64, 64), 1, Extras(detach=False)),
        ("gemm m=1 n=2 K=3 b=4", (1, 2, 3), 4, Extras()),
        ("matmul mn=8 k=9", (8, 8, 9), 1, Extras()),
    ],
)
def test_words_give_the_operator(words: str, sizes: tuple[int, int, int], batch: int, extras: Extras) -> None:
    operator, found = parse(words.split())
    assert operator == gemm(*sizes, batch=batch)
    assert found == extras


def test_dtype_and_layout_reach_the_operator() -> None:
    operator, _ = parse(["gemm", "MNK=8"], dtype="f64", layout="nt")
    assert operator == gemm(8, 8, 8, dtype="f64", layout="nt")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", "no operator"),
        ("gem MNK=8", "'gem'"),
        ("gemm", "M, N and K"),
        ("gemm MN=8", "needs a value for K"),
        ("gemm MN=8 NK=9", "NK=9: N is given twice"),
        ("gemm MMNK=8", "M is given twice"),
        ("gemm MNK=8 B=2 batch=3", "B is given twice"),
        ("gemm MNK=8 t=1 t=2", "t is given twice"),
        ("gemm MNK=x", "'x'"),
        ("gemm MNK=", "'MNK='"),
        ("gemm MNK=1.5", "'1.5'"),
        ("gemm MNK=-4", "'-4'"),
        ("gemm MNK=0", "'0'"),
        ("gemm MNK=1_000", "'1_000'"),
        ("gemm MNK=99999999999999999999", "99999999999999999999"),
        ("gemm MNKQ=8", "'Q'"),
        ("gemm mnkq=8", "'q'"),
        ("gemm MNK=8 t=0", "trials"),
        ("gemm MNK=8 O=yes", "detaches"),
        ("gemm MNK=8 512", "'512'"),
        ("gemm MNK=8 =4", "'=4'"),
    ],
)
def test_wrong_words_are_named_with_what_is_allowed(words: str, named: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(words.split())
    assert named in str(caught.value)
    assert caught.value.allowed


@pytest.mark.parametrize(("key", "value"), [("dtype", "f31"), ("layout", "xx")])
def test_unknown_dtype_or_layout_is_bad_input(key: str, value: str) -> None:
    with pytest.raises(BadInput, match=value):
        parse(["gemm", "MNK=8"], **{key: value})


def test_a_size_and_a_word_that_differ_in_case_alone_stay_apart() -> None:
    operator, _ = parse(["conv1d", "N=1", "L=9", "CI=2", "CO=2", "k=3"])
    assert parse(["conv1d", "n=1", "l=9", "ci=2", "co=2", "K=3"])[0] == operator


EXPRESSIONS = """
import deepgen as dg
x = dg.tensor("x", (8, 16), "f32")
half = dg.compute("half", (8, 16), lambda a, b: x[a, b] * 0.5)
double = dg.compute("double", (8, 16), lambda a, b: half[a, b] * 4.0)
"""


def test_a_file_with_one_expression_that_no_other_reads_names_it(tmp_path: Path) -> None:
    file = tmp_path / "scaled.py"
    file.write_text(EXPRESSIONS)
    operator, _ = parse([str(file)])
    assert operator == parse([f"{file}:double"])[0]
    file = tmp_path / "two.py"
    file.write_text(EXPRESSIONS + 'other = dg.compute("other", (8, 16), lambda a, b: half[a, b] + 1.0)\n')
    with pytest.raises(BadInput, match="has no kernels") as caught:
        parse([str(file)])
    assert f"{file}:other" in caught.value.allowed


@pytest.mark.parametrize(
    ("line", "error", "what"),
    [
        ('x = dg.tensor("x", (8,), "f33")', BadInput, "x: dtype 'f33'"),
        ("x = 1 / 0", DeepgenError, "cannot be loaded: ZeroDivisionError"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_line(
    tmp_path: Path, line: str, error: type[DeepgenError], what: str
) -> None:
    file = tmp_path / "mistaken.py"
    file.write_text(f"import deepgen as dg\n{line}\n")
    with pytest.raises(error, match=rf"mistaken.py:2.*{what}") as caught:
        parse([str(file)])
    assert type(caught.value) is error
