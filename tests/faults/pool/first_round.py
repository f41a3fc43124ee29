"""Faults with separate tests, as faults of the pool: products whose kernels crash, write out of bounds or go stale.

One study covers those that change their process (`test_process_faults.py`), one runner those that break
(`tests/run/measure/test_measure_faults.py`), so that the pool's tests need not; run as a program, the pool has all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from process_faults import DEEDS, ProcessFaults
from wrong_family import DTYPES, SHAPES, WrongGemm, faults

import deepgen as dg
from deepgen.operators import Operator
from deepgen.space import Space
from deepgen.targets import Cpu, Target
from deepgen.vocabulary import Kernel, Verdict
from pool.fault import Due, Fault
from pool.subjects import SCALE

_PROCESS, _INPUTS, _KEPT, _SHAPES = "The process", "Inputs", "Kept results", "Other shapes and strides"


@dataclass(frozen=True)
class Pair:
    """A family of two kernels: the correct one, and a faulty one."""

    right: Callable[[Operator, Target], Kernel]
    faulty: Callable[[Operator, Target], Kernel]
    name: str = "right_and_faulty"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        return None if isinstance(target, Cpu) and operator.name == "gemm" else "it supports gemm on CPUs only"

    def space(self, operator: Operator, target: Target) -> Space:
        space = Space(self.name)
        space.knob("FAULT", [0, 1])
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        return (self.faulty if config["FAULT"] else self.right)(operator, target)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return {"FAULT": 0}


def _deed(name: str) -> Callable[[], Any]:
    family = ProcessFaults("left-behind")

    def make() -> Any:
        of = {kind: lambda o, t, kind=kind: family.emit(o, t, {"DEED": kind}) for kind in ("nothing", name)}
        return dg.gemm(17, 13, 11), Pair(of["nothing"], of[name])

    return make


def _broken(body: str, before: str) -> Callable[[], Any]:
    from faulty_kernels import kernel

    return lambda: (dg.gemm(37, 29, 13), Pair(lambda o, t: kernel(), lambda o, t: kernel(body, before)))


def _due(verdict: Verdict) -> tuple[Due, ...]:
    return (Due.RIGHT,) if verdict is Verdict.CORRECT else (Due.WRONG,)


def broken() -> tuple[Fault, ...]:
    """Kernels that crash, hang, or write out of bounds."""
    from faulty_kernels import FAULTS

    return tuple(
        Fault(
            f"product: {name}", _PROCESS, SCALE, _due(one.verdict), makes=_broken(one.body, one.before), says=one.says
        )
        for name, one in FAULTS.items()
    )


def _product(dtype: str, kind: str) -> Callable[[], Any]:
    return lambda: (dg.gemm(128, 128, 160, dtype=dtype), WrongGemm("NONE", kind))


def products() -> tuple[Fault, ...]:
    """In each format: kernels that go stale, lose a product, sum in 16 bits, or are wrong if N is odd."""
    every = []
    for dtype in DTYPES:
        for kind in (*faults(dtype), *SHAPES):
            point = _KEPT if kind.startswith("STALE") else _SHAPES if kind in SHAPES else _INPUTS
            due = (Due.LOSES, Due.CONFINED, Due.WRONG) if kind in SHAPES else (Due.WRONG,)
            name = f"product in {dtype}: {kind.lower().replace('_', ' ')}"
            every += [Fault(name, point, SCALE, due, language=of, makes=_product(dtype, kind)) for of in ("c", "cuda")]
    return tuple(every)


def deeds() -> tuple[Fault, ...]:
    """Kernels that change their process, leave processes running or attack the tuner."""
    return tuple(
        Fault(f"product: {name}", _PROCESS, SCALE, _due(deed.verdict), makes=_deed(name), says=deed.says)
        for name, deed in DEEDS.items()
        if name != "nothing"
    )


def first_round() -> tuple[Fault, ...]:
    return (*broken(), *deeds(), *products())
