"""Which schedule rules are applied where, and what they return."""

from __future__ import annotations

from typing import Any

import pytest
from cases import columns, conv, depthwise, elementwise, gemm, gemv, pooled, scan, softmax, transposed

import deepgen as dg
from deepgen import targets
from deepgen.compiler.family import Rules
from deepgen.compiler.rules import rule as rules
from deepgen.operators.expr.nodes import Stage
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.targets import Cpu, Gpu
from deepgen.vocabulary import BadInput, DeepgenError

ALL = ["arm:neon", "x86:avx2", "riscv:rv64gcv_zvl256b", "cuda:sm_80", "hip:gfx90a"]


class OneThread:
    """Elementwise stages as plain loops, on any target."""

    name, exclusive, targets = "One-Thread", True, (Cpu, Gpu)

    def declines(self, draft: Any, stage: Stage) -> str | None:
        return None if stage.reduce is None else "it is for elementwise stages"

    def apply(self, draft: Any, stage: Stage) -> Any:
        way = draft.branch("one_thread")
        way.finish(stage.name)
        return [way]


class Older:
    """A rule written before there were rules for anything but CPUs."""

    name, exclusive = "Older", False

    def applies(self, draft: Any, stage: Stage) -> bool:
        return stage.reduce is None

    def apply(self, draft: Any, stage: Stage) -> Any:
        return OneThread().apply(draft, stage)


class Everything(OneThread):
    name = "Everything"

    def declines(self, draft: Any, stage: Stage) -> str | None:
        return None


def names(family: Rules, expression: Any, target: str) -> list[str]:
    return [sketch.name for sketch in family.sketches(ExpressionOperator(expression), targets.resolve(target))]


def answers(family: Rules, expression: Any, target: str) -> dict[tuple[str, str], Any]:
    operator, on = ExpressionOperator(expression), targets.resolve(target)
    rows: list[Any] = family.answers(operator, on, family.default(operator, on))
    return {(row["stage"], row["rule"]): row for row in rows}


@pytest.mark.parametrize("target", ALL)
def test_a_rule_of_the_user_is_asked_on_every_target_before_all_others(target: str) -> None:
    family = Rules([OneThread()])
    assert names(family, elementwise(4, 8), target) == ["one_thread"]
    first, *others = answers(family, elementwise(4, 8), target).values()
    assert first["rule"] == "One-Thread" and first["chosen"] and others
    assert not any(row["sketches"] for row in others)
    assert sum(row["why"] == "One-Thread takes it alone" for row in others) > 4
    assert {row["why"] for row in answers(family, gemv(4, 64), target).values() if row["rule"] == "One-Thread"} >= {
        "it is for elementwise stages"
    }


@pytest.mark.parametrize("target", ALL)
def test_a_rule_of_a_plug_in_is_asked_as_well(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "plugged", lambda: [OneThread()])
    assert names(Rules(), elementwise(4, 8), target) == ["one_thread"]
    with pytest.raises(BadInput, match="two schedule rules are called One-Thread"):
        names(Rules([OneThread()]), elementwise(4, 8), target)


def test_one_that_names_no_targets_serves_processors_alone() -> None:
    family, plain = Rules([Older()]), elementwise(4, 8)  # type: ignore[list-item]
    for target in ALL[:3]:
        assert names(family, plain, target)[0] == "one_thread"
        assert answers(family, softmax(4, 64), target)["y", "Older"]["asked"]
    for target in ALL[3:]:
        assert names(family, plain, target) == names(Rules(), plain, target)
        assert ("y", "Older") not in answers(family, plain, target)


def test_ways_of_a_users_rule_and_of_deepgens_own_go_together() -> None:
    a, b, x = dg.tensor("A", (64, 64), "f16"), dg.tensor("B", (64, 64), "f16"), dg.tensor("x", (40,))
    k = dg.reduce_axis("k", 64)
    c = dg.compute("C", (64, 64), lambda i, j: dg.sum(a[i, k].cast("f32") * b[k, j].cast("f32"), k))
    two = dg.expression(c, dg.compute("y", (40,), lambda i: dg.tanh(x[i])))
    both = names(Rules([OneThread()]), two, "cuda:sm_80")
    assert [name for name in both if "matrix" in name] == ["one_thread_matrix"]


def test_what_a_rule_takes_alone_no_other_gets_in_any_form() -> None:
    for expression in (conv(9, 4, 8, 3), gemm(64, 64, 64, "f16"), depthwise(10, 8), softmax(5, 300)):
        assert set(names(Rules([Everything()]), expression, "cuda:sm_90a")) == {"one_thread"}


def test_every_rule_of_ours_says_why_it_declines() -> None:
    cases = [gemm(64, 64, 64, "f16"), gemm(32, 64, 4096, "f16"), gemm(20, 24, 16), gemv(7, 300), conv(9, 4, 8, 3)]
    cases += [depthwise(10, 8), softmax(5, 300), scan((4, 64), 1), columns(1, 64, 40), transposed(35, 40)]
    cases.append(pooled((40, 35, 64), (7, 5), (7, 5)))
    reasons: dict[str, set[str]] = {name: set() for name in rules.RULES.own}
    taking: set[str] = set()
    for target in (*ALL, "cuda:sm_90a"):
        for expression in cases:
            for row in answers(Rules(), expression, target).values():
                assert bool(row["sketches"]) != bool(row["why"]), row
                assert row["chosen"] <= bool(row["sketches"])
                reasons[row["rule"]] |= {row["why"]} if row["why"] and row["asked"] else set()
                taking |= {row["rule"]} if row["sketches"] else set()
    assert all(reasons.values()), reasons
    assert not any("does not apply" in why for whys in reasons.values() for why in whys)
    assert {*rules.RULES.own} - taking <= {
        "Tensorize",
        "Flat-Rows",
        "Always-Inline",
    }  # these expressions have no use for


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([OneThread], "is not a schedule rule"),
        ([3], "is not a schedule rule"),
        (OneThread(), "rules is .* .a list of schedule rules"),
        ([OneThread(), OneThread()], "two schedule rules are called One-Thread"),
        ([type("Own", (OneThread,), {"name": "Threads"})()], "two schedule rules are called Threads"),
        ([type("Own", (OneThread,), {"targets": ("cuda",)})()], "serves .'cuda',. .a tuple of classes"),
    ],
)
def test_what_is_no_rule_is_refused_before_anything_is_tuned(given: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        dg.tune(ExpressionOperator(elementwise(4, 8)), target="cpu", rules=given)


def test_rules_go_with_families_that_ask_them() -> None:
    operator = ExpressionOperator(gemm(8, 8, 8))
    with pytest.raises(BadInput, match=r"family c_gemm is given with schedule rules \(rules or rules_constant_weights"):
        dg.tune(operator, target="cpu", rules=[OneThread()], family="c_gemm")
    with pytest.raises(BadInput, match="rules and generator are both given"):
        dg.tune(operator, target="cpu", rules=[OneThread()], generator=Rules())


@pytest.mark.parametrize("target", ["arm:neon", "cuda:sm_80"])
def test_a_rule_that_fails_is_named(target: str) -> None:
    failing = type("Failing", (OneThread,), {"apply": lambda *_: 1 / 0})
    with pytest.raises(DeepgenError, match=r"rule One-Thread fails on stage 'y' .*: ZeroDivisionError"):
        names(Rules([failing()]), elementwise(4, 8), target)
    strange = type("Strange", (OneThread,), {"apply": lambda *_: ["way"]})
    with pytest.raises(DeepgenError, match=r"rule One-Thread gives .* not a list of branches"):
        names(Rules([strange()]), elementwise(4, 8), target)


def test_sums_of_any_length_are_filled_up_for_matrix_units() -> None:
    assert "matrix" in names(Rules(), gemm(20, 17, 33, "f16"), "cuda:sm_80")
