"""The command line and config files accept any operator with its own words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_norms import Plain, RowNorms

import deepgen as dg
from deepgen.frontends import formats
from deepgen.frontends.cli.words import parse
from deepgen.operators import OPERATORS, Operator, gemm, words_of
from deepgen.operators.words import MOST_DIGITS, Word
from deepgen.tuning import Study
from deepgen.vocabulary import BadInput, registry


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates an installed package with these operators, and a broken one."""
    places = {"row_norms": "row_norms:RowNorms", "plain_norms": "row_norms:Plain", "lost": "no_such_module:Lost"}
    entries = {name: metadata.EntryPoint(name, place, OPERATORS.group) for name, place in places.items()}
    monkeypatch.setattr(registry, "_entry_points", lambda group: entries if group == OPERATORS.group else {})
    monkeypatch.setattr(OPERATORS, "_loaded", {})


@pytest.mark.parametrize(
    ("words", "options", "operator"),
    [
        ("row_norms rows=4096 cols=1024", {}, RowNorms(4096, 1024)),
        ("row_norms cols=3 R=5", {"dtype": "f64"}, RowNorms(5, 3, "f64")),
        ("row_norms rows=4 cols=2 dtype=f64", {}, RowNorms(4, 2, "f64")),
        ("plain_norms rows=1 cols=2 power=1.5 squared=yes", {}, Plain(1, 2, power=1.5, squared=True)),
        (
            "gemm MNK=8 dtype=f8e4m3 layout=nt fast_sums=true",
            {},
            gemm(8, 8, 8, dtype="f8e4m3", layout="nt", fast_sums=True),
        ),
    ],
)
def test_words_are_the_operators_own(words: str, options: dict[str, str], operator: Operator) -> None:
    assert parse(words.split(), **options)[0] == operator


@pytest.mark.parametrize(
    ("words", "options", "told"),
    [
        ("row_norms rows=8", {}, "row_norms needs a value for cols"),
        ("row_norms rows=8 cols=8 lines=8", {}, "has no parameter 'lines' (such as: row_norms rows=1024 cols=1024; it"),
        ("row_norms rows=8 R=9 cols=1", {}, "R=9: rows is given twice"),
        ("row_norms rows=8 cols=8", {"layout": "nt"}, "row_norms has no layout (its parameters: rows, cols, dtype)"),
        ("row_norms rows=8 cols=8", {"fast_sums": True}, "row_norms has no fast sums"),
        ("row_norms rows=8 cols=8 dtype=f64", {"dtype": "f32"}, "dtype is given twice"),
        ("row_norms rows=8 cols=8 dtype=f16", {}, "'dtype=f16': invalid value 'f16' (one of f32, f64)"),
        ("plain_norms rows=8 cols=8 squared=perhaps", {}, "true or false"),
        ("plain_norms rows=8 cols=8 power=inf", {}, "invalid value 'inf' (a number)"),
        ("gemm MNK=8 colour=red", {}, "gemm has no parameter 'colour'"),
        ("lost rows=8", {}, "'lost' of package"),
        ("norms.py rows=8", {}, "there is no file norms.py"),
        ("norms.py:RowNorms rows=8", {}, "there is no file norms.py"),
    ],
)  # fmt: skip
def test_what_an_operator_does_not_know_is_said_with_what_it_does(
    words: str, options: dict[str, object], told: str
) -> None:
    with pytest.raises(registry.DeepgenError) as caught:
        parse(words.split(), **options)
    assert told in str(caught.value)


@given(rows=st.integers(1, 10**MOST_DIGITS - 1), cols=st.integers(1, 4096), dtype=st.sampled_from(["f32", "f64"]))
def test_what_is_said_makes_the_same_operator(rows: int, cols: int, dtype: str) -> None:
    for operator in (RowNorms(rows, cols, dtype), Plain(rows, cols, dtype), gemm(rows, cols, 7, dtype=dtype)):
        said = operator.parameters()
        assert type(operator).make(said) == operator
        known = words_of(type(operator))
        assert {name: known[name].read(str(value)) for name, value in said.items()} == said


@pytest.mark.parametrize(
    ("word", "good", "bad"),
    [
        (Word("rows", "", least=0), [0, 5], ["5", True, -1, 1.0, 10**MOST_DIGITS, None]),
        (Word("eps", "", "number"), [1, 0.5, -2.0], ["1", True, float("nan"), float("inf"), None]),
        (Word("squared", "", "flag"), [True, False], [1, "true", None]),
        (Word("layout", "", "choice", choices=("nn",)), ["nn"], ["nt", ["nn"], None]),
        (Word("kind", "", "choice"), ["any"], ["", 3, None]),
        (Word("axis", "", "choice", choices=("0", "1")), ["0", "1"], [2, True, 1.0]),
    ],
)
def test_values_of_files_are_of_their_kind(word: Word, good: list[object], bad: list[object]) -> None:
    assert [word.check(value) for value in good] == good
    for value in bad:
        with pytest.raises(BadInput, match=word.name):
            word.check(value)


def test_a_number_is_one_of_the_choices_that_are_numbers() -> None:
    sizes = {"M": 2, "N": 3, "K": 4}
    assert dg.operator("scan", **sizes, axis=1) == dg.operator("scan", **sizes, axis="1")


def test_a_file_says_shapes_and_other_words(project: Path) -> None:
    path = project / "norms.toml"
    path.write_text('operator = "row_norms"\nshapes = [{ rows = 8, cols = 4 }, { R = 2, cols = 1 }]\ndtype = "f64"\n')
    assert formats.read(path).operators == (RowNorms(8, 4, "f64"), RowNorms(2, 1, "f64"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"layout": "nn"}, "unknown key layout (one of operator, shapes, rows, cols, dtype, target, "),
        ({"shapes": {"MNK": 8}}, "shapes[0]: MNK=8: row_norms has no parameter 'MNK'"),
        ({"shapes": []}, "such as { rows = 1024, cols = 1024 }"),
        ({"rows": 8}, "rows=8: rows is given twice"),
        ({"dtype": "f16"}, "dtype is 'f16' (one of f32, f64)"),
        ({"operator": "lost"}, "no_such_module"),
    ],
)
def test_mistakes_of_a_file_name_what_is_known(project: Path, change: dict[str, object], told: str) -> None:
    path = project / "norms.json"
    path.write_text(json.dumps({"operator": "row_norms", "shapes": {"rows": 8, "cols": 8}, **change}))
    with pytest.raises(registry.DeepgenError) as caught:
        formats.read(path)
    assert told in str(caught.value)


def test_help_names_operators_and_shows_the_words_of_one(deepgen: Callable) -> None:
    every, one = deepgen("tune", "--help"), deepgen("tune", "row_norms", "--help")
    assert (every.code, one.code) == (0, 0)
    assert re.search(r"^  attention +attention B=4 H=16 S=4096 D=128$", every.out, re.MULTILINE)
    assert re.findall(r"^  (\w+) +of an installed package$", every.out, re.MULTILINE) == [
        "lost",
        "plain_norms",
        "row_norms",
    ]
    assert "expression" not in every.out.partition("Operators (")[2].partition("Values of options")[0]
    assert "how many norms" not in every.out and "rows, R  how many norms" in one.out
    assert "Operators (" not in one.out
    lost = deepgen("build", "lost", "--help")
    assert lost.code == 1 and "no_such_module" in lost.err


def test_a_study_of_it_from_words_to_a_config_around_its_winner(deepgen: Callable, project: Path) -> None:
    said = deepgen("tune", "row_norms", "rows=64", "cols=32", "--dtype", "f64", "t=5", "--target", "sim", "--json")
    assert said.code == 0, said.err
    study = Study.open(said.json()["study"])
    assert study.operator == RowNorms(64, 32, "f64")
    assert deepgen("export", study.folder.name, "--as-config", "--top", "1", "-o", "next.json").code == 0
    written = json.loads((project / "next.json").read_text())
    assert (written["shapes"], written["dtype"]) == ([{"rows": 64, "cols": 32}], "f64")
    again = deepgen("tune", "next.json", "--trials", "3", "--json")
    assert again.code == 0 and Study.open(again.json()["study"]).operator == study.operator


def test_what_no_word_can_say_is_not_written_as_a_config(deepgen: Callable, project: Path) -> None:
    study = dg.tune(gemm(64, 64, 64, alpha=2.0), target="sim", trials=3, out=project / "out")
    said = deepgen("export", str(study.folder), "--as-config", "-o", "next.json")
    assert said.code == 2 and "cannot be expressed as a tuning config" in said.err


EXPRESSIONS = """
import deepgen as dg

x, k = dg.tensor("x", (8, 5)), dg.reduce_axis("k", 5)
sums = dg.compute("sums", (8,), lambda i: dg.sum(x[i, k], k))
halves = dg.compute("halves", (8,), lambda i: sums[i] / 2)
small = dg.tensor("small", (8,), "f8e4m3")
strange = dg.compute("strange", (8,), lambda i: small[i].cast("f32"))
both = dg.expression(sums, halves)
"""


def test_an_expression_of_a_file_is_tuned_by_its_name(deepgen: Callable, project: Path) -> None:
    (project / "sums.py").write_text(EXPRESSIONS)
    said = deepgen("tune", "sums.py:both", "t=2", "--target", "sim", "--json")
    assert said.code == 0, said.err
    made = Study.open(said.json()["study"]).operator.signature().outputs
    assert [one.name for one in made] == ["sums", "halves"]
    assert deepgen("space", "sums.py:halves", "--target", "sim").code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("sums.py", "(one of sums.py:sums, sums.py:halves, sums.py:strange, sums.py:both)"),
        ("sums.py:x", "sums.py has no kernel or expression 'x' (one of sums, halves, strange, both)"),
        ("sums.py:both M=3", "expression has no parameter 'M' (it has no parameters)"),
        ("sums.py:strange --target hip:gfx906", "(rules: it has no arithmetic for f8e4m3)"),
        ("sums.py:both --dtype f16", "expression has no dtype (its parameters: none)"),
    ],
)
def test_what_cannot_be_said_of_a_files_expression(deepgen: Callable, project: Path, words: str, told: str) -> None:
    (project / "sums.py").write_text(EXPRESSIONS)
    said = deepgen("tune", "--target", "sim", *words.split())
    assert said.code == 2 and told in " ".join(said.err.split())
