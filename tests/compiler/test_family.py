"""The family `rules`: what it serves, its defaults, how it explains itself, and a user's own rules."""

from __future__ import annotations

from typing import Any

import pytest
from cases import CASES, depthwise, elementwise, gemm, gemv, softmax

import deepgen as dg
from deepgen import generators, targets
from deepgen.compiler.family import Rules
from deepgen.compiler.rules.draft import Draft
from deepgen.compiler.rules.sketch import sketches, space_of
from deepgen.operators import OPERATORS, Gemm
from deepgen.operators.expr.nodes import Stage
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.vocabulary import WorkspaceArg

ARM, X86 = targets.resolve("arm:neon"), targets.resolve("x86:avx512")


def test_families_for_one_operator_come_first() -> None:
    product = OPERATORS.get("gemm").make({"M": 64, "N": 64, "K": 64, "dtype": "f32"})
    names = [family.name for family in generators.serving(product, ARM)]
    assert names[0] != "rules"
    assert names[-2:] == ["rules", "rules_constant_weights"]
    batch = OPERATORS.get("bmm").make({"B": 2, "M": 8, "N": 8, "K": 8})
    assert generators.find(batch, ARM).name == "rules"


def test_it_says_whom_it_does_not_serve() -> None:
    told = ExpressionOperator(elementwise(4, 8))
    x = dg.tensor("x", (4, 8))
    power = ExpressionOperator(dg.expression(dg.compute("y", (4, 8), lambda i, j: x[i, j] ** x[i, j])))
    assert Rules().refuses(power, targets.resolve("hip:gfx90a")) == "it has no pow for HIP"
    assert all(
        Rules().refuses(told, targets.resolve(name)) is None for name in ("arm:neon", "cuda:sm_90", "hip:gfx90a")
    )
    assert "beta=1 reads C" in str(Rules().refuses(Gemm(8, 8, 8, beta=1.0), ARM))


@pytest.mark.parametrize("target", [ARM, X86], ids=lambda target: target.name)
def test_the_default_is_in_the_space(target: Any) -> None:
    for expression in CASES.values():
        operator = ExpressionOperator(expression)
        default = Rules().default(operator, target)
        assert not Rules().space(operator, target).explain(default), (expression.name, default)


def test_a_kernel_brings_the_memory_that_its_copies_need() -> None:
    operator = ExpressionOperator(gemm(40, 48, 24))
    family = Rules()
    config = {**family.default(operator, ARM), "at_B": "once"}
    args = family.emit(operator, ARM, config).plan.steps[0].args
    assert [arg.bytes for arg in args if isinstance(arg, WorkspaceArg)] == [48 * 24 * 4]


def test_vectors_lie_along_each_axis_that_allows_it() -> None:
    found = sketches(gemm(40, 48, 64, transposed=True), ARM)
    assert sorted(sketch.name for sketch in found) == ["vectors_i0", "vectors_i1", "vectors_r0"]
    direct = {knob.name: knob.values for knob in sketches(gemm(40, 48, 64), ARM)[0].knobs}
    assert direct["at_B"] == ("in_place", "once", "block")


def test_every_second_column_is_read_in_vectors_as_long_as_rows_allow() -> None:
    operator = ExpressionOperator(depthwise(28, 8, 2, nchw=True))  # 14 output columns
    for target, lanes in ((ARM, 4), (X86, 8)):
        (sketch,) = sketches(operator.expression(), target)
        assert sketch.name == "vectors_i3"
        text = Rules().emit(operator, target, Rules().default(operator, target)).sources[0].text
        assert f"alternate_f32x{lanes}(&p[" in text


def test_long_sums_have_many_loads_under_way_where_there_are_registers_for_them() -> None:
    long, narrow = ExpressionOperator(gemv(64, 16384)), targets.resolve("x86:avx2")
    assert [Rules().default(long, target)["r0_1"] for target in (ARM, X86, narrow)] == [8, 8, 4]
    assert Rules().default(ExpressionOperator(gemv(64, 256)), ARM)["r0_1"] == 4


def test_the_rows_of_a_softmax_are_computed_one_at_a_time() -> None:
    (found,) = sketches(softmax(64, 100), ARM)
    assert found.name == "rows"
    assert {name: value.evaluate(found.usual()) for name, value in found.derived if name.startswith("bytes")} == {
        "bytes_e": 400
    }
    assert "ComputeAt(stage='e', consumer='y', loop='i0')" in map(str, found.schedule(found.usual()))


def test_tiles_fit_in_the_registers_of_the_target() -> None:
    for target, most in ((ARM, 32), (targets.resolve("x86:avx2"), 16)):
        space = space_of("rules", sketches(gemm(64, 64, 64), target))
        assert max(space.derived(config)["registers"] for config in space.sample(200, seed=1)) <= most


def test_a_config_is_explained_by_its_steps_and_loops() -> None:
    operator, family = ExpressionOperator(gemm(8, 16, 8)), Rules()
    text = family.schedule_text(operator, ARM, family.default(operator, ARM))
    assert "split C: i0 by" in text
    assert "\n  parallel (C.i0.0+i1.0) < " in text
    passes = family.passes_text(operator, ARM, family.default(operator, ARM))
    assert passes.startswith("==> build <==")


class OneThread:
    """A user's own rule: elementwise stages as plain loops."""

    name, exclusive = "One-Thread", True

    def applies(self, draft: Draft, stage: Stage) -> bool:
        return stage.reduce is None

    def apply(self, draft: Draft, stage: Stage) -> list[Draft]:
        way = draft.branch("one_thread")
        way.finish(stage.name)
        return [way]


def test_a_rule_of_the_user_is_asked_first() -> None:
    family, operator = Rules([OneThread()]), ExpressionOperator(elementwise(4, 8))
    assert [sketch.name for sketch in family.sketches(operator, ARM)] == ["one_thread"]
    assert family.sketches(operator, ARM)[0].schedule(family.default(operator, ARM)) == ()
