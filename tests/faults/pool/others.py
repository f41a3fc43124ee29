"""Faults in Triton, and in expressions: their tolerances, and their tensor names."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import deepgen as dg
from deepgen.operators import Operator
from deepgen.space import Space
from deepgen.targets import Cpu, Target
from deepgen.vocabulary import Kernel, LaunchPlan, Source, Step, TensorArg
from pool.fault import Call, Due, Fault
from pool.subjects import SCALE, drawn, same, scaled_at, scaled_values


def _in_triton(fault: int) -> Any:
    from pool import triton_kernels

    return dg.kernel(
        triton_kernels.scale,
        arguments=SCALE.arguments,
        sizes=SCALE.sizes,
        knobs={"FAULT": [0, fault], "BLOCK": [256]},
        grid="ceil_div(n, BLOCK)",
        reference=SCALE.reference,
    )


def _other_factor(call: Call) -> None:
    x = drawn()
    same(call(x, factor=-0.75), -0.75 * x)


def _triton(
    name: str, point: str, number: int, due: tuple[Due, ...], uses: Callable[[Call], None] | None, mark: str = ""
) -> Fault:
    made = partial(_in_triton, number)
    return Fault(name, point, SCALE, (*due, Due.WRONG), language="triton", makes=made, uses=uses, marked_as=mark)


TRITON = (
    _triton("the factor is a constant", "Scalars", 1, (), _other_factor),
    _triton("wrong above 16", "Inputs", 2, (), scaled_values(17, 1000)),
    # On GPUs Triton compiles for multiples of 16, and everything else is refused.
    _triton("wrong where n is odd", "Other shapes and strides", 3, (Due.LOSES, Due.CONFINED), scaled_at(4095)),
    _triton("wrong beyond 65,536", "Other shapes and strides", 5, (Due.LOSES,), scaled_at(98_304)),
    _triton("NaN becomes zero", "Inputs", 4, (Due.MARKED,), None, "nan"),
) if importlib.util.find_spec("triton") else ()  # fmt: skip


class Plain:
    """A family of two C kernels for an expression with one input: a correct one and a faulty one."""

    name = "plain_and_faulty"

    def __init__(self, right: str, faulty: str) -> None:
        self._texts = (f"for (int pass = 0; pass < 4; pass++) {{ {right} }}", faulty)

    def refuses(self, operator: Operator, target: Target) -> str | None:
        return None if isinstance(target, Cpu) else "it supports CPUs only"

    def space(self, operator: Operator, target: Target) -> Space:
        space = Space(self.name)
        space.knob("FAULT", [0, 1])
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        text = f"#include <math.h>\nvoid f(const float *x, float *y) {{ {self._texts[config['FAULT']]} }}\n"
        plan = LaunchPlan((Step("f", (TensorArg("x"), TensorArg("y"))),))
        return Kernel(self.name, "c", (Source("f.c", text),), ("-O1",), plan)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return {"FAULT": 0}


def _saturated() -> Any:
    x = dg.tensor("x", (4096,), "f32")
    y = dg.compute("y", (4096,), lambda i: dg.tanh(x[i] * 1e30))
    loop = "for (int i = 0; i < 4096; i++)"
    return y, Plain(f"{loop} y[i] = tanhf(x[i] * 1e30f);", f"{loop} y[i] = x[i] == 0 ? 0 : 0.25f;")


def _named(name: str) -> Any:
    x = dg.tensor(name, (64,), "f32")
    return dg.compute("y", (64,), lambda i: x[i] + 1.0)


EXPRESSIONS = (
    Fault("any result for a saturated tanh", "Tolerance", SCALE, (Due.WRONG,), language="expression", makes=_saturated),
    *(
        Fault(
            f"a tensor called {name}",
            "Names",
            SCALE,
            (Due.RIGHT, Due.REFUSED),
            language="expression",
            makes=partial(_named, name),
        )
        for name in ("linux", "asm", "NULL", "main", "x86")
    ),
)
