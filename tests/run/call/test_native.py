"""A launch plan becomes the calls that it describes, in a user's process and in the worker."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from faulty_kernels import TARGET

from deepgen.operators import Array, gemm
from deepgen.run.call.loaded import load as load_for_users
from deepgen.run.call.native import NativeKernel, NotLoadable
from deepgen.toolchains import build_once
from deepgen.vocabulary import (
    Arg,
    BadInput,
    ConstantCopy,
    DescriptorArg,
    Kernel,
    LaunchPlan,
    ScalarArg,
    Source,
    Step,
    TensorArg,
    TensorMapSpec,
    WorkspaceArg,
)

_SOURCE = """
#include <stdint.h>
void scalars(double *out, int32_t a, int64_t b, float c, double d) { out[0] = a; out[1] = b; out[2] = c; out[3] = d; }
void pack(const double *in, double *w, long n) { for (long i = 0; i < n; i++) w[i] = 2 * in[i]; }
void add(double *out, const double *w, long n) { for (long i = 0; i < n; i++) out[i] += w[i]; }
void count(double *out, double *w) { out[0] = w[0] += 1; }
void place(double *out, char *w) { out[0] = (double)((uintptr_t)w % 256); }
"""


def plan(*steps: Step, prepare: tuple[Step, ...] = ()) -> Kernel:
    return Kernel("calls", "c", (Source("calls.c", _SOURCE),), ("-O1",), LaunchPlan(steps, prepare))


def step(entry: str, *args: Arg) -> Step:
    return Step(entry, args)


def load(made: Kernel) -> NativeKernel:
    return NativeKernel(made, build_once(made, TARGET).binary)


def run(made: Kernel, tensors: dict[str, Array], scalars: dict[str, int | float]) -> None:
    bound = load(made).bind(tensors, scalars)
    bound.prepare()
    bound.run()


OUT, IN = TensorArg("out"), TensorArg("in")


def test_scalars_arrive_in_their_types_whatever_they_are_computed_from() -> None:
    args = (
        ScalarArg("i32", "ceil_div(M, 4) - 9"),
        ScalarArg("i64", 1 << 40),
        ScalarArg("f32", 0.5),
        ScalarArg("f64", "alpha"),
    )
    out = np.zeros(4)
    run(plan(step("scalars", OUT, *args)), {"out": out}, {"M": 13, "alpha": 0.1})
    assert out.tolist() == [-5, 1 << 40, 0.5, 0.1]


def test_preparation_runs_once_and_steps_share_workspaces_by_name() -> None:
    w = WorkspaceArg("w", "8 * n")
    n = ScalarArg("i64", "n")
    made = plan(step("add", OUT, w, n), step("add", OUT, w, n), prepare=(step("pack", IN, w, n),))
    out, given = np.zeros(3), np.arange(3.0)
    bound = load(made).bind({"out": out, "in": given}, {"n": 3})
    assert out.tolist() == [0, 0, 0], "binding runs nothing"
    bound.prepare()
    given += 100
    bound.run()
    bound.run()
    assert out.tolist() == [0, 8, 16]
    assert bound.prepared == {"w"}


def test_a_zeroed_workspace_is_zero_for_every_run() -> None:
    out = np.zeros(1)
    bound = load(plan(step("count", OUT, WorkspaceArg("w", 8, zeroed=True)))).bind({"out": out}, {})
    for _ in range(3):
        bound.run()
        assert out[0] == 1


def test_workspaces_are_aligned() -> None:
    out = np.zeros(1)
    run(plan(step("place", OUT, WorkspaceArg("w", 100, align=256))), {"out": out}, {})
    assert out[0] == 0


def test_what_a_plan_cannot_mean_is_an_error_in_words(tmp_path: Path) -> None:
    out = {"out": np.zeros(4)}
    with pytest.raises(BadInput, match="takes a tensor 'in'"):
        run(plan(step("pack", IN)), out, {})
    with pytest.raises(BadInput, match="scalar type 'u8'"):
        run(plan(step("pack", ScalarArg("u8", 1))), out, {})
    with pytest.raises(BadInput, match="pack takes a descriptor of out"):
        run(plan(step("pack", DescriptorArg("out", TensorMapSpec((8, 8))))), out, {})
    with pytest.raises(NotLoadable, match="no symbol 'nowhere'"):
        run(replace(plan(step("count")), plan=LaunchPlan((), constants=(ConstantCopy("nowhere", "out"),))), out, {})
    with pytest.raises(BadInput, match="needs a value for Q"):
        run(plan(step("pack", ScalarArg("i32", "Q + 1"))), out, {"M": 1})
    with pytest.raises(NotLoadable, match="no entry 'nowhere'"):
        load(plan(step("nowhere")))
    with pytest.raises(NotLoadable, match="cannot be loaded"):
        NativeKernel(replace(plan(step("pack")), name="lost"), tmp_path / "absent.so")


def asked(answer: str) -> Kernel:
    text = f"const char *deepgen_refusal(void) {{ return {answer}; }}\nvoid work(double *out) {{ *out = 1; }}\n"
    return Kernel("asked", "c", (Source("asked.c", text),), ("-O1",), LaunchPlan((step("work", OUT),)))


def test_a_library_that_cannot_work_here_says_so_before_any_call() -> None:
    made = asked('"the system withholds its tiles"')
    binary = Path(build_once(made, TARGET).binary)
    for attempt in (partial(NativeKernel, made, binary), partial(load_for_users, made, gemm(4, 4, 4), TARGET, binary)):
        with pytest.raises(NotLoadable, match="asked cannot run here: the system withholds its tiles"):
            attempt()


def test_a_library_that_can_work_here_is_called() -> None:
    out = np.zeros(1)
    run(asked("0"), {"out": out}, {})
    assert out[0] == 1
