"""The language of spaces: syntax, meaning, and error messages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deepgen.space import (
    Config,
    Expr,
    Space,
    all_of,
    any_of,
    ceil_div,
    divides,
    implies,
    layers,
    maximum,
    minimum,
    parse,
    parse_values,
    product,
    table,
    where,
)
from deepgen.space.order import added
from deepgen.vocabulary import BadInput


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("ceil_div(M, 128)", {"M": 1000}, 8),
        ("32 <= bx * by <= 1024 and not pad", {"bx": 8, "by": 8, "pad": False}, True),
        ("K % ((a * b) / c) == 0", {"K": 16, "a": 8, "b": 8, "c": 8}, True),
        ("x if x > 3 else -x", {"x": 2}, -2),
        ("max(a, b, 3) ** 2", {"a": 1, "b": 2}, 9),
        ("a in [1, 2, 4] or b not in ('x', 'y')", {"a": 3, "b": "x"}, False),
        ("table(t, {'f32': 4, 'f16': 2}) * n", {"t": "f16", "n": 3}, 6),
        ("divides(4, n)", {"n": 12}, True),
        ("order[0] == 'k'", {"order": ("k", "m")}, True),
        ("position(order, 'm')", {"order": ("k", "m")}, 1),
    ],
)
def test_text_means_what_python_means(text: str, values: dict[str, object], expected: object) -> None:
    assert parse(text).evaluate(values) == expected  # type: ignore[arg-type]
    assert parse(str(parse(text))).same(parse(text))


def test_lists_of_values_are_read_without_executing_them() -> None:
    assert parse_values("[1, 2, 4] + list(range(32, 97, 32))") == [1, 2, 4, 32, 64, 96]
    assert parse_values("[2**i for i in range(0, 6)]") == [1, 2, 4, 8, 16, 32]
    assert parse_values("[i for i in range(10) if i % 2 == 0]") == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "open('x')",
        "(lambda: 1)()",
        "x.__class__",
        "[i for i in range(10**9)]",
        "9**9**9",
        "f'{x}'",
        "x := 3",
        "1 +",
    ],
)
def test_what_is_not_on_the_list_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_values(text)
    with pytest.raises(BadInput):
        parse(text).evaluate({"x": 1})


def test_an_expression_has_no_truth_of_its_own() -> None:
    x = Space("s").knob("x", [1, 2])
    with pytest.raises(BadInput, match=r"use & \| ~"):
        bool(x > 1)
    with pytest.raises(TypeError):
        list(x)  # type: ignore[call-overload]


def test_missing_names_and_divisions_by_zero_are_told() -> None:
    with pytest.raises(BadInput, match="needs a value for N"):
        parse("M // N").evaluate({"M": 4})
    with pytest.raises(BadInput, match="divides by zero"):
        parse("M // N").evaluate({"M": 4, "N": 0})


def test_a_conditional_knob_is_absent_where_its_condition_fails() -> None:
    space = Space("s")
    split = space.knob("split", [1, 2, 4])
    width = space.knob("width", [1, 2], when=split > 1)
    space.derive("bytes", where(split > 1, width * 4, 0))
    space.require(width <= split // 2, "the width fits the split")
    configs = list(space)
    assert {frozenset(c.items()) for c in configs} == {
        frozenset({("split", 1)}),
        frozenset({("split", 2), ("width", 1)}),
        frozenset({("split", 4), ("width", 1)}),
        frozenset({("split", 4), ("width", 2)}),
    }
    assert space.derived({"split": 1}) == {"bytes": 0}
    assert [b.name for b in space.explain({"split": 1, "width": 1})] == ["knob width exists only when split > 1"]
    assert [b.name for b in space.explain({"split": 2})] == ["knob width has no value"]
    columns = space.columns(configs)
    assert columns["split"].dtype.kind == "i"
    assert columns["width"].dtype.kind == "f"  # NaN where it is absent


def test_a_condition_on_a_derived_value_is_read_back() -> None:
    space = Space("s")
    threads = space.derive("threads", space.knob("x", [8, 16, 32]) * 2)
    space.knob("warps", [1, 2], when=threads >= 32)
    assert list(Space.from_json(space.to_json())) == list(space)


def optional_padding(*requirements: str) -> Space:
    space = Space("s")
    space.knob("a", [10, 50, 100])
    padded = space.knob("padded", [False, True])
    space.knob("pad", [4, 8], when=padded)
    space.derive("row", parse("pad + 1"))
    named = {"row": space.derivations["row"]}
    for text in requirements:
        space.require(parse(text, named), text)
    return space


@pytest.mark.parametrize(
    ("requirement", "without_padding", "with_padding"),
    [
        ("a + pad <= 50", [10, 50], [(10, 4), (10, 8)]),
        ("50 - pad >= a", [10, 50], [(10, 4), (10, 8)]),
        ("-pad + 50 - a >= 0", [10, 50], [(10, 4), (10, 8)]),
        ("a + 2 * pad <= 58", [10, 50], [(10, 4), (10, 8), (50, 4)]),
        ("a + pad * pad <= 58", [10, 50], [(10, 4)]),
        ("(a + pad) % 4 == 2", [10, 50], [(10, 4), (10, 8), (50, 4), (50, 8)]),
        ("(pad + 64) % 8 == 0", [10, 50, 100], [(10, 8), (50, 8), (100, 8)]),
        ("(pad + 4) % 8 == 0", [], [(10, 4), (50, 4), (100, 4)]),  # a number is a term like any other
        ("row + a <= 51", [10, 50], [(10, 4), (10, 8)]),
        ("maximum(a, 20) + pad <= 50", [10, 50], [(10, 4), (10, 8)]),
        # Only about the absent knob: no restriction where it is absent.
        ("pad % 8 == 0", [10, 50, 100], [(10, 8), (50, 8), (100, 8)]),
        ("-pad % 8 == 0", [10, 50, 100], [(10, 8), (50, 8), (100, 8)]),
        ("pad + pad > 10", [10, 50, 100], [(10, 8), (50, 8), (100, 8)]),
        ("pad > a - 5", [10, 50, 100], [(10, 8)]),
        ("a * pad >= 200", [10, 50, 100], [(50, 4), (50, 8), (100, 4), (100, 8)]),
    ],
)
@pytest.mark.parametrize("cells", [layers.TABLE_CELLS, 0])
def test_an_absent_knob_counts_as_zero_in_sums(
    requirement: str,
    without_padding: list[int],
    with_padding: list[tuple[int, int]],
    cells: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layers, "TABLE_CELLS", cells)
    space = optional_padding(requirement)
    expected: list[Config] = [{"a": a, "padded": False} for a in without_padding]
    expected += [{"a": a, "padded": True, "pad": pad} for a, pad in with_padding]
    assert sorted(map(str, space)) == sorted(map(str, expected))
    everything = optional_padding()
    assert [c for c in everything if space.explain(c) == []] == [c for c in everything if c in space]


def test_a_derived_sum_has_a_value_where_one_of_its_terms_is_absent() -> None:
    space = optional_padding()
    space.derive("bytes", parse("(a + pad) * 4"))
    config = {"a": 10, "padded": False}
    space.derive("halves", parse("pad // 2"))
    assert space.derived(config) == {"row": 1, "bytes": 40}
    with pytest.raises(BadInput, match="needs a value for pad"):
        parse("a + pad").evaluate({"a": 10})  # outside a space nothing is optional


def test_explain_names_requirements_and_the_values_that_broke_them() -> None:
    space = Space("s")
    bm = space.knob("BLOCK_M", [32, 64, 128])
    stages = space.knob("stages", [1, 2])
    shared = space.derive("shared_bytes", bm * stages * 100)
    space.require(shared <= 12800, "tiles fit in shared memory")
    (broken,) = space.explain({"BLOCK_M": 128, "stages": 2})
    assert broken.name == "tiles fit in shared memory"
    assert broken.values == {"BLOCK_M": 128, "stages": 2, "shared_bytes": 25600}
    assert [b.name for b in space.explain({"BLOCK_M": 33, "stages": 2})] == ["knob BLOCK_M takes only 32, 64, 128"]
    with pytest.raises(BadInput, match="tiles fit in shared memory"):
        space.rank({"BLOCK_M": 128, "stages": 2})


def test_permutations_and_words_are_values() -> None:
    space = Space("s")
    order = space.permutation("order", ["m", "n", "k"])
    kind = space.knob("kind", ["row", "column"])
    space.require(order[0] != "k", "k is not outermost")
    space.require(implies(kind == "row", order.position("n") > order.position("m")), "n is inside m for rows")
    assert space.count() == sum(
        1
        for o in (("m", "n", "k"), ("m", "k", "n"), ("n", "m", "k"), ("n", "k", "m"))
        for k in ("row", "column")
        if k == "column" or o.index("n") > o.index("m")
    )


def test_every_function_of_the_language_prints_and_counts() -> None:
    space = Space("s")
    a, b = space.knob("a", [1, 2, 3, 4]), space.knob("b", [1, 2, 3, 4])
    conditions: list[Expr] = [
        minimum(a, b) >= 1,
        maximum(a, b) <= 4,
        divides(1, a),
        ceil_div(a, b) >= 1,
        product([a, b]) <= 16,
        all_of(a > 0, b > 0),
        any_of(a > 0, b > 9),
        table([a, b], {(1, 1): 0}, 1) == 1,
        a.isin([1, 2, 3, 4]),
        abs(-a) == a,
    ]
    for i, condition in enumerate(conditions):
        space.require(condition, f"condition {i}")
        assert parse(str(condition)).same(condition)
    assert space.count() == 15


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda s: s.knob("x", []), "no values"),
        (lambda s: s.knob("x", [1, 1]), "twice"),
        (lambda s: s.knob("x", [float("nan")]), "finite"),
        (lambda s: s.knob("x", [[1]]), "cannot be a value"),
        (lambda s: s.require(parse("y > 1"), "y"), "not declared before it"),
        (lambda s: s.restrict({"q": [1]}), "no knob 'q'"),
        (lambda s: s.restrict({"k": [9]}), "no value 9"),
        (lambda s: s.at(99), "outside"),
        (lambda s: s.neighbors({"k": 1}, "far"), "adjacent, any or repair"),
        (lambda s: s.knob("k", [1]), "already"),
    ],
)
def test_mistakes_are_told_in_a_sentence(declare: object, said: str) -> None:
    space = Space("s")
    space.knob("k", [1, 2])
    with pytest.raises(BadInput, match=said):
        declare(space)  # type: ignore[operator]


def test_importing_the_space_pulls_nothing_heavy() -> None:
    heavy = "scipy ortools torch rich typer pandas"
    code = f"import sys, deepgen.space; print([m for m in {heavy!r}.split() if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_logarithms_are_added_from_left_to_right_on_every_python() -> None:
    """sum() gives 1.0 from Python 3.12 on: ties would break differently, and ranks would change."""
    assert added([0.1] * 10) == 0.9999999999999999
    assert added([]) == 0.0


@pytest.mark.parametrize("power", ["9**9", "10**6 * 10**6"])
def test_a_power_of_a_knob_that_is_too_long_to_compute_is_refused(power: str) -> None:
    space = Space("powers")
    space.knob("A", [1, 2, 3])
    space.knob("B", [1, 2])
    with pytest.raises(BadInput, match="too large"):
        space.require(parse(f"64 % (B * A**({power})) == 0"), "a power")
        space.count()


def test_a_text_of_megabytes_is_refused_before_it_is_parsed() -> None:
    """Python's parser would take two gigabytes for it."""
    with pytest.raises(BadInput, match="has 4200002 characters"):
        parse_values(f"[{'[],' * 1_400_000}]")


@pytest.mark.parametrize("values", [[(0,) * 1000, 2], ["%0999d", 2]])
@pytest.mark.parametrize("text", ["A * B < 5", "A % B < 5"])
def test_texts_and_lists_are_not_numbers(values: list[int | str | tuple[int, ...]], text: str) -> None:
    """Python would repeat them as often as a file says."""
    space = Space("lists")
    space.knob("A", values)
    space.knob("B", [10**6, 2])
    space.require(parse(text), "small")
    with pytest.raises(BadInput, match="cannot be computed"):
        space.count()
    with pytest.raises(BadInput, match="cannot be computed"):
        parse(text).evaluate({"A": values[0], "B": 10**6})
