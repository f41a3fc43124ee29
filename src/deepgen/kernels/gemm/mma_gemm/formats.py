"""Shared by kernels with warp-wide products: formats, alignment, edges, and their arguments."""

from __future__ import annotations

from collections.abc import Mapping

from deepgen.kernels.shared import NOTHING, epilogue, sources
from deepgen.operators import Gemm, Operator
from deepgen.operators.gemm import ACTIVATIONS, SCALES
from deepgen.operators.signature import stored
from deepgen.targets import Cuda, Gpu, Target
from deepgen.vocabulary import Arg, ScalarArg, Source, TensorArg, dtype

Requirement = tuple[str, str]
WIDEST = 16  # bytes of one load, copy or store
STEP_BYTES = 32  # of K in one product, for any format

_PTX = {"f16": "f16", "bf16": "bf16", "tf32": "tf32", "i8": "s8", "f8e4m3": "e4m3", "f8e5m2": "e5m2"}
_NEEDS = {
    "f16": "mma_f16",
    "bf16": "mma_bf16",
    "tf32": "mma_tf32",
    "i8": "mma_i8",
    "f8e4m3": "mma_f8",
    "f8e5m2": "mma_f8",
}
_RESULTS = {  # by A's format
    "f16": ("f16", "f32"),
    "bf16": ("bf16", "f32"),
    "tf32": ("tf32", "f32"),
    "i8": ("i32", "f32", "f16", "bf16"),
    "f8e4m3": ("f32", "f16", "bf16"),
    "f8e5m2": ("f32", "f16", "bf16"),
}


def refused(operator: Operator, target: Target) -> str | None:
    """The reason why warp-wide products do not support this, if there is one."""
    if not isinstance(target, Cuda) or not target.has("ldmatrix", "cp_async"):
        return "it supports NVIDIA GPUs from sm_80 on"
    if not isinstance(operator, Gemm):
        return "it supports gemm only"
    if operator.blocks:
        return "it has no scales of blocks"
    both_eight = operator.a.startswith("f8") and operator.b.startswith("f8")
    if operator.a not in _PTX or (operator.a != operator.b and not both_eight):
        return "it multiplies f16, bf16, tf32, i8 and 8-bit floats"
    if operator.acc != ("i32" if operator.a == "i8" else "f32") or operator.c not in _RESULTS[operator.a]:
        return f"{operator.a} is accumulated in {'i32' if operator.a == 'i8' else 'f32'} and produces " + ", ".join(
            _RESULTS[operator.a]
        )
    if not target.has(_NEEDS[operator.a]):
        return f"{target.arch} has no matrix instructions for {operator.a}"
    if both_eight and not (operator.fast_sums or widened(operator, target)):
        return f"{target.arch} accumulates 8-bit floats below f32 precision, which fast_sums=True allows"
    return refused_result(operator)


def widened(gemm: Gemm, gpu: Gpu) -> bool:
    """Whether operands are converted to f16 before the products, which takes registers; sums are then f32."""
    return gemm.a.startswith("f8") and gpu.has("mma_f8_widened")


def refused_result(gemm: Gemm) -> str | None:
    if gemm.c == "i32":
        if not (gemm.alpha.is_integer() and gemm.beta.is_integer()):
            return "for integer types alpha and beta must be integers"
        if gemm.bias or gemm.activation != "none" or gemm.scales != "none":
            return "it has no bias, activation or scales for integer types"
    return epilogue.refused(gemm)


def product_name(gemm: Gemm) -> str:
    """The matrix instruction of a kernel, as PTX spells it."""
    k = STEP_BYTES // dtype(gemm.a).bytes
    sums = "s32" if gemm.acc == "i32" else "f32"
    return f"m16n8k{k}.row.col.{sums}.{_PTX[gemm.a]}.{_PTX[gemm.b]}.{sums}"


def result_macros(gemm: Gemm, store: int) -> dict[str, int | str]:
    """The macros that `problem.h` needs."""
    return {
        "TYPE_A": gemm.a,
        "TYPE_B": gemm.b,
        "TYPE_C": stored(gemm.c),
        "TYPE_ACC": gemm.acc,
        "TYPE_WORK": work_type(gemm),
        "BETA": int(gemm.beta != 0),
        "BIAS": int(gemm.bias),
        "ACTIVATION": ACTIVATIONS.index(gemm.activation),
        "SCALES": SCALES.index(gemm.scales),
        "STORE": store,
        **epilogue.macros(gemm),
    }


def work_type(gemm: Gemm) -> str:
    """The type of alpha and beta, in which the epilogue is computed."""
    return "i32" if gemm.c == "i32" else "f32"


def aligned_bytes(gemm: Gemm, side: str) -> int:
    """The widest access that lines of A, B or C allow."""
    scalars, size = gemm.scalars(), dtype({"A": gemm.a, "B": gemm.b, "C": gemm.c}[side]).bytes
    line = int(scalars[f"ld{side.lower()}"]) * size
    matrix = int(scalars[f"stride_{side.lower()}"]) * size if gemm.batch > 1 else 0
    return next(w for w in (16, 8, 4, 2, 1) if line % w == 0 and matrix % w == 0)


def store_width(gemm: Gemm, run: int) -> int:
    """Contiguous elements of C per store: limited by a thread's run and alignment."""
    size = dtype(gemm.c).bytes
    return next(w for w in (8, 4, 2, 1) if run % w == 0 and w * size <= aligned_bytes(gemm, "C") and gemm.n % w == 0)


def arguments(gemm: Gemm, partial: Arg, arrived: Arg, splits: int) -> tuple[Arg, ...]:
    work = work_type(gemm)
    return (
        *(TensorArg(name) for name in ("A", "B", "C")),
        TensorArg("bias") if gemm.bias else NOTHING,
        TensorArg("scale") if gemm.scales != "none" else NOTHING,
        partial,
        arrived,
        *(ScalarArg("i32", name) for name in ("M", "N", "K", "batch", "lda", "ldb", "ldc")),
        *(ScalarArg("i64", name) for name in ("stride_a", "stride_b", "stride_c")),
        *(ScalarArg(work, name) for name in ("alpha", "beta")),
        ScalarArg("i32", splits),
        *epilogue.arguments(gemm, "i32"),
    )


def result_sources(gemm: Gemm, package: str, names: tuple[str, ...]) -> tuple[Source, ...]:
    """Files of a package that include `problem.h`, and what the epilogue needs."""
    return (*sources(package, names, epilogue=bool(gemm.epilogue)), *epilogue.run_sources(gemm, package))


def alignment_required(gemm: Gemm, widths: Mapping[str, int]) -> list[Requirement]:
    """Conditions on other shapes that use the same binary; `widths` are access widths in bytes, by tensor."""
    out = epilogue.aligned_rows(gemm, widths["C"] // dtype(gemm.c).bytes)
    for name, width in widths.items():
        letter, size = name.lower(), dtype({"A": gemm.a, "B": gemm.b, "C": gemm.c}[name]).bytes
        if width > size:
            out.append((f"ld{letter} % {width // size} == 0", f"lines of {name} that are multiples of {width} bytes"))
            if gemm.batch > 1:
                words = f"matrices of {name} that lie multiples of {width} bytes apart"
                out.append((f"stride_{letter} % {width // size} == 0", words))
    return out
