"""Errors in a kernel's description are reported in a sentence, before anything is built."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import deepgen as dg
from deepgen import generators, targets
from deepgen.kernels.own import OwnKernel, sources

SOURCE = "void k(float *y, const float *x, int n) { y[STEP] = x[n]; }"
Y, X, N = dg.output("y", "n", "f32"), dg.input("x", "n", "f32"), dg.scalar("n", "i32")


def described(**others: object) -> OwnKernel:
    given = {"arguments": [Y, X, N], "sizes": {"n": 8}, "knobs": {"STEP": [1, 2]}, "reference": lambda x: x, **others}
    return dg.kernel(SOURCE, language="c", entry="k", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"arguments": [Y, N]}, r"k takes 3 parameters in k.c, but 2 arguments are given: y, n"),
        ({"arguments": [Y, X, dg.scalar("n", "i64")]}, r"argument 2 of k, n, is i64, .* \(i32 or u32, for int\)"),
        ({"arguments": [Y, dg.input("x", "n", "f64"), N]}, r"x, is f64, and k.c has `const float \*x` there \(f32\)"),
        ({"arguments": [Y, N, X]}, r"argument 1 of k, n, is a number"),
        ({"arguments": [Y, X, X]}, "two arguments are named 'x'"),
        ({"arguments": [X, dg.input("z", "n", "f32"), N]}, "the kernel has no output"),
        ({"knobs": {"STEP": [1], "SETP": [2]}}, "knob SETP is a macro that k.c never uses"),
        ({"knobs": {"STEP": []}}, "knob STEP has no values"),
        ({"knobs": {"STEP": [1], "n": [2]}}, "'n' is a knob and a size"),
        ({"requires": ["STEP <= m"]}, r"requirement 'STEP <= m' names 'm' \(one of STEP, n\)"),
        ({"grid": ["m"]}, "the launch of k names 'm'"),
        ({"sizes": {"m": 3}}, "the shape of y names 'n'"),
        ({"sizes": {"n": 0}}, "size n is 0"),
        ({"flops": "2 * m"}, "the count of f32 names 'm'"),
        ({"reference": [np.zeros(8)]}, "the reference consists of arrays, but x is filled at random"),
        ({"tolerance": 1e-3}, "tolerance is 0.001"),
        ({"tolerance": {"z": (0, 1e-3)}}, "tolerance names 'z'"),
    ],
)
def test_what_does_not_fit_is_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(dg.BadInput, match=said):
        _ = described(**given).family


def test_arguments_of_no_kind(tmp_path: Path) -> None:
    with pytest.raises(dg.BadInput, match="argument t is a texture"):
        dg.texture("t")
    with pytest.raises(dg.BadInput, match="filled by 'gaussian'"):
        described(arguments=[Y, dg.input("x", "n", "f32", fill="gaussian"), N])
    with pytest.raises(dg.BadInput, match="the source's language is unknown"):
        dg.kernel(SOURCE, entry="k", arguments=[Y, X, N], sizes={"n": 8})
    with pytest.raises(dg.BadInput, match="there is no file"):
        _ = dg.kernel(tmp_path / "none.c", entry="k", arguments=[Y, X, N], sizes={"n": 8}).family
    with pytest.raises(dg.BadInput, match="has no function kk"):
        _ = dg.kernel(SOURCE, language="c", entry="kk", arguments=[Y, X, N], sizes={"n": 8}).family


def test_a_reference_that_takes_something_else() -> None:
    operator = described(reference=lambda z: z).operator()
    with pytest.raises(dg.BadInput, match="the reference takes 'z'"):
        operator.reference(operator.inputs(0))
    operator = described(reference=lambda x: x[:3]).operator()
    with pytest.raises(dg.BadInput, match="the reference of k returned y with shape 3"):
        operator.reference(operator.inputs(0))


def test_the_wrong_target_is_refused_by_language() -> None:
    kernel = described()
    reason = kernel.family.refuses(kernel.operator(), targets.resolve("cuda:sm_90a"))
    assert reason == "k.c is in c, but cuda:sm_90a runs cuda or triton"


def test_what_a_study_keeps_makes_the_same_kernels() -> None:
    kernel = described(requires=["STEP <= n"], defines={"N2": "2 * n"}, probes={"ones": {"x": "ones"}})
    operator, target = kernel.operator(n=16), targets.resolve("cpu")
    again = generators.by_name("own kernel", kernel.family.recipe)
    for config in kernel.family.space(operator, target):
        assert again.emit(operator, target, config).id == kernel.family.emit(operator, target, config).id
    assert again.space(operator, target).fingerprint() == kernel.family.space(operator, target).fingerprint()
    assert kernel.from_json(operator.to_json()) == operator


def test_grids_are_expressions_over_sizes_and_knobs() -> None:
    kernel = dg.kernel(
        "__global__ void k(float *y, const float *x, int n) { y[B] = x[n]; }",
        language="cuda",
        entry="k",
        arguments=[Y, X, N],
        sizes={"n": 100},
        knobs={"B": [32, 64]},
        grid=["ceil_div(n, B)", 2],
        block="B",
        shared="4 * B",
    )
    emitted = kernel.family.emit(kernel.operator(), targets.resolve("cuda:sm_90a"), {"B": 64})
    (step,) = emitted.plan.steps
    assert (step.grid, step.block, step.shared_bytes) == (("ceil_div(n, 64)", 2, 1), (64, 1, 1), 256)
    assert (step.entry, emitted.flags) == ("::k", ("-DB=64",))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('extern "C" __global__ void __launch_bounds__(64) k(float *a, int n) {', ["float *a", "int n"]),
        ("// void k(int wrong) {\nvoid k(/* b */ float a) {", ["float a"]),
        ("void k(void) {", []),
        ("void k(int n); void k(int n) {", ["int n"]),
        ("template <typename T, int N> void k(Array<T, N> *a, int n) {", ["Array<T, N> *a", "int n"]),
        ("int main() { k(1, 2); }", None),
    ],
)  # fmt: skip
def test_parameters_are_read_from_the_source(text: str, found: list[str] | None) -> None:
    assert sources.parameters(text, "k") == found
