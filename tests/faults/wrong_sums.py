"""GEMM kernels in plain C that are correct, or fast and wrong in one way that usual inputs do not reveal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deepgen.operators import Gemm, Operator
from deepgen.space import Space
from deepgen.targets import Cpu, Target
from deepgen.tuning.finals.qualifying import OTHER_SEEDS
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg
from deepgen.vocabulary.dtypes import narrow, widen

RIGHT = "none"
PASSES = 40  # of a correct kernel, each an Nth of the work: the wrong ones are faster


class WrongSums:
    """A correct kernel and some with faults. It supports row-major GEMM on CPUs."""

    name = "wrong_sums"

    def __init__(self, *faults: str) -> None:
        self.faults = (RIGHT, *faults)

    def refuses(self, operator: Operator, target: Target) -> str | None:
        return None if isinstance(target, Cpu) and isinstance(operator, Gemm) else "it supports gemm on CPUs only"

    def space(self, operator: Operator, target: Target) -> Space:
        space = Space(self.name)
        space.knob("FAULT", list(self.faults))
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        assert isinstance(operator, Gemm)
        a, b, c, acc = operator.dtypes
        told: dict[str, Any] = {"A_TYPE": a.ctype, "B_TYPE": b.ctype, "C_TYPE": c.ctype, "SUM": acc.ctype}
        told["PASSES"] = PASSES if config["FAULT"] == RIGHT else 0
        told |= {"BF16": 1} if a.name == "bf16" else {}
        if config["FAULT"] in ("LOST", "DOUBLED"):
            told |= dict(zip(("ROW", "COLUMN", "PLACE"), hidden_product(operator), strict=True))
        flags = ("-O2", f"-DFAULT_{config['FAULT']}", *(f"-D{name}={value}" for name, value in told.items()))
        text = Path(__file__).with_name("wrong_sums.c").read_text()
        args: tuple[Arg, ...] = (*(TensorArg(name) for name in "ABC"), *(ScalarArg("i64", size) for size in "MNK"))
        return Kernel(self.name, "c", (Source("wrong_sums.c", text),), flags, LaunchPlan((Step("wrong_sums", args),)))

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return {"FAULT": RIGHT}


def hidden_product(operator: Gemm, seed: int = 0) -> tuple[int, int, int]:
    """A row, a column and an index along K whose product can be lost or doubled undetected on a
    study's usual inputs.
    """
    a, b, c, _ = operator.dtypes
    seeds = range(seed, seed + OTHER_SEEDS + 1)
    given = [operator.inputs(s) for s in seeds]
    numbers = [(widen(g["A"], a), widen(g["B"], b), operator.reference(g)["C"]) for g in given]
    bound = operator.tolerance()
    for place in range(operator.k):
        unseen = np.ones((operator.m, operator.n), bool)
        for left, right, want in numbers:
            product = np.outer(left[:, place], right[place])
            allowed = bound.absolute * want.scale + bound.relative * np.abs(want.values)
            for sign in (-1, 1):
                unseen &= np.abs(widen(narrow(want.values + sign * product, c), c) - want.values) < 0.5 * allowed
        if unseen.any():
            row, column = (int(i) for i in np.argwhere(unseen)[0])
            return row, column, place
    raise AssertionError("every lost product shows")
