"""Kernels that keep results or packed data from call to call, and go by addresses to tell whether they still hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepgen.operators import Gemm, Operator
from deepgen.space import Space
from deepgen.targets import Cpu, Target
from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, WorkspaceArg

RIGHT = ("NOTHING", "PREPARED")
WRONG = (
    "STALE_RESULT",  # C, while the addresses are those of the last call
    "STALE_PACKED_B",  # B, likewise
    "STALE_FIRST_ELEMENT",  # C, while also the first elements of A and B are those of the last call
    "STALE_ONCE_TIMED",  # C, but only after the first calls, which everyone checks
    "STALE_BUT_B",  # C, in a kernel that may keep B because a `prepare` step packs it
)

_AS_IT_IS = {"LOAD(x)": "(x)", "STORE(x)": "(x)"}
_TYPES = {
    "f32": {"NUMBER": "float", "RESULT": "float", "SUM": "float", **_AS_IT_IS},
    "f64": {"NUMBER": "double", "RESULT": "double", "SUM": "double", **_AS_IT_IS},
    "f16": {"NUMBER": "_Float16", "RESULT": "_Float16", "SUM": "float", **_AS_IT_IS},
    "bf16": {
        "NUMBER": "uint16_t",
        "RESULT": "uint16_t",
        "SUM": "float",
        "LOAD(x)": "from_bf16(x)",
        "STORE(x)": "to_bf16(x)",
    },
    "i8": {"NUMBER": "int8_t", "RESULT": "int32_t", "SUM": "int32_t", **_AS_IT_IS},
    "u8": {"NUMBER": "uint8_t", "RESULT": "int32_t", "SUM": "int32_t", **_AS_IT_IS},
}
DTYPES = tuple(_TYPES)


class StaleGemm:
    """The family: one knob says what a kernel keeps."""

    name = "stale_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        return None if isinstance(target, Cpu) and operator.name == "gemm" else "it serves gemm on processors only"

    def space(self, operator: Operator, target: Target) -> Space:
        space = Space(self.name)
        space.knob("KEEPS", [*RIGHT, *WRONG])
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        assert isinstance(operator, Gemm)
        macros = {**_TYPES[operator.a], config["KEEPS"]: "1"}
        head = "".join(f"#define {name} {value}\n" for name, value in macros.items())
        text = head + Path(__file__).with_name("stale_gemm.c").read_text()
        packed = WorkspaceArg("packed", f"{operator.dtypes[1].bytes} * K * N")
        sizes = tuple(ScalarArg("i64", size) for size in "MNK")
        step = Step("stale_gemm", (*(TensorArg(name) for name in "ABC"), *sizes, packed))
        ahead = Step("pack", (TensorArg("B"), packed, ScalarArg("i64", "K"), ScalarArg("i64", "N")))
        prepare = (ahead,) if config["KEEPS"] in ("PREPARED", "STALE_BUT_B") else ()
        return Kernel(self.name, "c", (Source("stale_gemm.c", text),), ("-O1",), LaunchPlan((step,), prepare))

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return {"KEEPS": "NOTHING"}
