"""A family of kernels, one in four of which is faulty, and a compiler that fails when a source tells it to."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepgen.operators import Operator
from deepgen.space import Space
from deepgen.targets import Cpu, Target
from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, Verdict

PLACES = 30
LANES = 4  # configs of the last lane are faulty


@dataclass(frozen=True)
class Fault:
    """The expected verdict for a kernel with this fault."""

    verdict: Verdict
    says: str


FAULTS = {
    "SEGFAULT": Fault(Verdict.CRASHED, "wrote through a null pointer (segmentation fault)"),
    "INFINITE_LOOP": Fault(Verdict.TIMED_OUT, "a run did not finish within"),
    "STACK_OVERFLOW": Fault(Verdict.CRASHED, "overflowed the stack"),
    "HUGE_ALLOCATION": Fault(Verdict.OUT_OF_MEMORY, "was refused memory beyond its limit"),
    "WRITE_AFTER": Fault(Verdict.WRONG, "past the end of C"),
    "WRITE_BEFORE": Fault(Verdict.WRONG, "before the start of C"),
    "ONE_WRONG": Fault(Verdict.WRONG, "C[1, 2] is"),
    "UNWRITTEN_TAIL": Fault(Verdict.WRONG, "was never written"),
    "NONDETERMINISTIC": Fault(Verdict.WRONG, "C[0, 7] is"),
    "EXIT": Fault(Verdict.CRASHED, "called exit(3)"),
    "COMPILER_CRASH": Fault(Verdict.BUILD_FAILED, "gcc crashed with SIGSEGV"),
    "COMPILER_HANG": Fault(Verdict.BUILD_TIMEOUT, "gcc did not finish within"),
    "COMPILER_OUTPUT": Fault(Verdict.BUILD_FAILED, "gcc printed more than 16 MiB and was stopped"),
    "WRONG_LATER": Fault(Verdict.WRONG, "correct at first but not on call 2: C[0, 0] was never written"),
    # Printing is harmless: it is kept out of the protocol, and the kernel is still correct.
    "PRINTS_GARBAGE": Fault(Verdict.CORRECT, ""),
}

_COMPILER = """#!/bin/sh
for source in *.c; do
    if [ -f "$source" ]; then
        case $(head -n 1 "$source") in
            *COMPILER_CRASH*) kill -SEGV $$ ;;
            *COMPILER_HANG*) exec sleep 600 ;;
            *COMPILER_OUTPUT*) exec head -c 2147483648 /dev/zero ;;
        esac
    fi
done
exec {gcc} "$@"
"""


def broken_compiler(folder: Path) -> str:
    """A gcc that crashes, hangs or never stops printing if the first line of a source requests it."""
    gcc = shutil.which("gcc")
    assert gcc is not None
    script = folder / "gcc"
    script.write_text(_COMPILER.format(gcc=gcc))
    script.chmod(0o755)
    return str(script)


def fault_of(config: Mapping[str, Any]) -> str | None:
    """The name of a config's fault, if any."""
    return list(FAULTS)[config["PLACE"] % len(FAULTS)] if config["LANE"] == LANES - 1 else None


def passes(config: Mapping[str, Any]) -> int:
    """How slow a config is: faulty kernels are the fastest, the best good one is alone, printing is slow."""
    fault = fault_of(config)
    if fault is not None:
        return 40 if fault == "PRINTS_GARBAGE" else 0
    order = config["PLACE"] * (LANES - 1) + config["LANE"]
    # 3 for the best and 20, 21, 22 ... for the others, which take more than twice as long: a shared machine may be half
    # as fast for the duration of a trial. Which one is the best is independent of its index.
    distance = (order * 37 + 11) % (PLACES * (LANES - 1))
    return 3 if distance == 0 else 20 + distance // 4


class FaultyGemm:
    """The family."""

    name = "faulty_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        return None if isinstance(target, Cpu) and operator.name == "gemm" else "it supports gemm on CPUs only"

    def space(self, operator: Operator, target: Target) -> Space:
        space = Space(self.name)
        space.knob("PLACE", range(PLACES))
        space.knob("LANE", range(LANES))
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        text = Path(__file__).with_name("faulty_gemm.c").read_text()
        text = f"#define FAULT_{fault_of(config)}\n/* {dict(config)} */\n{text}"
        args = (*(TensorArg(name) for name in "ABC"), *(ScalarArg("i64", size) for size in "MNK"))
        plan = LaunchPlan((Step("faulty_gemm", args),))
        return Kernel(self.name, "c", (Source("faulty_gemm.c", text),), ("-O1", f"-DPASSES={passes(config)}"), plan)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return {"PLACE": 0, "LANE": 0}
