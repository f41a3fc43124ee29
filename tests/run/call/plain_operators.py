"""Small operators with kernels in C, for features of a loaded kernel that a GEMM does not cover."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from deepgen import targets
from deepgen.operators import Answer, Array, Operator, Param, Signature, Work
from deepgen.operators.base import least_work
from deepgen.operators.signature import ANY
from deepgen.vocabulary import Arg, ConstantCopy, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, WorkspaceArg

CPU = targets.resolve("cpu")


class Small(Operator):
    """The integer fields are the sizes."""

    def sizes(self) -> Mapping[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.type == "int"}  # type: ignore[arg-type]

    def work(self) -> Work:
        return least_work(self, {"f32": 1})

    def reference(self, inputs: Mapping[str, Array]) -> Mapping[str, Answer]:
        raise NotImplementedError


@dataclass(frozen=True)
class Add(Small):
    """z = x + y, y broadcast; z may be x."""

    name: ClassVar[str] = "add"
    rows: int = 4
    cols: int = 4
    of: str = "f32"

    def signature(self) -> Signature:
        shape = ("rows", "cols")
        return Signature(
            (
                Param("x", "input", "T", shape),
                Param("y", "input", "T", shape, broadcast=True),
                Param("z", "output", "T", shape, aliases=("x",)),
            ),
            {"T": self.of},
        )


@dataclass(frozen=True)
class Norm(Small):
    """Rows minus their mean, times scale, with an optional shift; the means are outputs too."""

    name: ClassVar[str] = "norm"
    rows: int = 4
    cols: int = 4
    eps: float = 0.5

    def signature(self) -> Signature:
        return Signature(
            (
                Param("x", "input", "f32", ("rows", "cols")),
                Param("shift", "input", "f32", ("cols",), optional=True),
                Param("eps", "scalar", "f32", range=(0.0, 1.0)),
                Param("y", "output", "f32", ("rows", "cols")),
                Param("mean", "output", "f32", ("rows",)),
            )
        )


@dataclass(frozen=True)
class Windows(Small):
    """The first value of each window of x."""

    name: ClassVar[str] = "windows"
    n: int = 8
    k: int = 3

    def signature(self) -> Signature:
        return Signature((Param("x", "input", "f32", ("n",)), Param("y", "output", "f32", ("n - k + 1",), align=256)))


@dataclass(frozen=True)
class Ones(Small):
    """Reads nothing."""

    name: ClassVar[str] = "ones"
    n: int = 4

    def signature(self) -> Signature:
        return Signature((Param("y", "output", "f32", ("n",)),))


@dataclass(frozen=True)
class Double(Small):
    """Every element of x doubled in place, with any strides."""

    name: ClassVar[str] = "double"
    n: int = 4
    m: int = 4

    def signature(self) -> Signature:
        return Signature((Param("x", "inout", "f32", ("n", "m"), strides=ANY),))


@dataclass(frozen=True)
class Weighted(Small):
    """y = w * x, with w in a global variable of the library."""

    name: ClassVar[str] = "weighted"
    n: int = 4

    def signature(self) -> Signature:
        shape = ("n",)
        return Signature(
            (Param("x", "input", "f32", shape), Param("w", "input", "f32", shape), Param("y", "output", "f32", shape))
        )


def plain(name: str, text: str, *args: Arg, **plan: object) -> Kernel:
    """A kernel of one call."""
    step = Step(name, args)
    return Kernel(name, "c", (Source(f"{name}.c", text),), ("-O1",), LaunchPlan((step,), **plan))  # type: ignore[arg-type]


def tensors(*names: str) -> tuple[TensorArg, ...]:
    return tuple(map(TensorArg, names))


def sizes(*names: str) -> tuple[ScalarArg, ...]:
    return tuple(ScalarArg("i64", name) for name in names)


_ADD = """
void add(const TYPE *x, const TYPE *y, TYPE *z, long rows, long cols, long y0, long y1) {
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < cols; j++) z[i * cols + j] = x[i * cols + j] + y[i * y0 + j * y1];
}
"""


def add(of: str = "float") -> Kernel:
    strides = sizes("rows", "cols", "stride_y_0", "stride_y_1")
    return plain("add", _ADD.replace("TYPE", of), *tensors("x", "y", "z"), *strides)


def add_dense() -> Kernel:
    """Like `add`, for a y that is not broadcast: its plan passes no strides."""
    text = _ADD.replace("TYPE", "float").replace(", long y0, long y1", "").replace("i * y0 + j * y1", "i * cols + j")
    return plain("add", text, *tensors("x", "y", "z"), *sizes("rows", "cols"))


NORM = plain(
    "norm",
    """
void norm(const float *x, const float *shift, float *y, float *mean, float *w, long rows, long cols, float eps) {
    for (long i = 0; i < rows; i++) {
        w[i] = 0;
        for (long j = 0; j < cols; j++) w[i] += x[i * cols + j] / cols;
        for (long j = 0; j < cols; j++) y[i * cols + j] = x[i * cols + j] - w[i] + eps + (shift ? shift[j] : 0);
        mean[i] = w[i];
    }
}
""",
    *tensors("x", "shift", "y", "mean"),
    WorkspaceArg("sums", "4 * rows"),
    *sizes("rows", "cols"),
    ScalarArg("f32", "eps"),
)
DOUBLE = plain(
    "twice",
    """
void twice(float *x, long n, long m, long s0, long s1) {
    for (long i = 0; i < n; i++)
        for (long j = 0; j < m; j++) x[i * s0 + j * s1] *= 2;
}
""",
    *tensors("x"),
    *sizes("n", "m", "stride_x_0", "stride_x_1"),
)
WEIGHTED = plain(
    "weighted",
    """
float weights[64];
void weighted(const float *x, float *y, long n) { for (long i = 0; i < n; i++) y[i] = weights[i] * x[i]; }
""",
    *tensors("x", "y"),
    *sizes("n"),
    constants=(ConstantCopy("weights", "w"),),
)
GEMM = plain(
    "multiply",
    """
void multiply(const float *A, const float *B, float *C, long M, long N, long K) {
    for (long i = 0; i < M; i++)
        for (long j = 0; j < N; j++) {
            float sum = 0;
            for (long k = 0; k < K; k++) sum += A[i * K + k] * B[k * N + j];
            C[i * N + j] = sum;
        }
}
struct arguments { const float *A, *B; float *C; long M, N, K; };
void multiply_block(const struct arguments *p) { multiply(p->A, p->B, p->C, p->M, p->N, p->K); }
""",
    *tensors("A", "B", "C"),
    *sizes("M", "N", "K"),
)
GEMM_MORE = plain(
    "multiply_more",
    """
void multiply_more(const float *A, const float *B, const float *bias, float *C, long M, long N, long K, float beta) {
    for (long i = 0; i < M; i++)
        for (long j = 0; j < N; j++) {
            float sum = bias[j] + beta * C[i * N + j];
            for (long k = 0; k < K; k++) sum += A[i * K + k] * B[k * N + j];
            C[i * N + j] = sum;
        }
}
""",
    *tensors("A", "B", "bias", "C"),
    *sizes("M", "N", "K"),
    ScalarArg("f32", "beta"),
)
