"""Plain GEMM kernels, correct ones and ones with a single fault, in a text that is valid CUDA and C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.operators import Gemm, Operator
from deepgen.space import Space
from deepgen.targets import Cpu, Cuda, Target
from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, WorkspaceArg

RIGHT = ("NONE", "PREPARED")  # PREPARED: B is packed ahead of time, as `prepare` steps may
STALE = (
    "STALE_RESULT",  # C is kept if the addresses are those of the last call
    "STALE_B",  # packed B is kept, likewise
    "STALE_FIRST",  # C is kept if also the first elements of A and B are those of the last call
    "STALE_LATER",  # C is kept, but only after the second call
    "STALE_BUT_B",  # C is kept, in a kernel that may keep B because a `prepare` step packs it
)
SHAPES = ("ODD_N",)  # the last column lacks a product if N is odd
PRODUCTS = ("LOST",)  # one element lacks a product
NARROW = (
    "SUM_16",
    "SATURATED_SUM",
    "SATURATED_PAIRS",
)  # for 8-bit integers: accumulated in 16 bits that wrap, or saturate

_TYPES = {
    "f32": ("float", "float", "float", "(x)", "(x)"),
    "f64": ("double", "double", "double", "(x)", "(x)"),
    "f16": ("unsigned short", "unsigned short", "float", "from_f16(x)", "to_f16(x)"),
    "bf16": ("unsigned short", "unsigned short", "float", "from_bf16(x)", "to_bf16(x)"),
    "i8": ("signed char", "int", "int", "(x)", "(x)"),
    "u8": ("unsigned char", "int", "int", "(x)", "(x)"),
}
DTYPES = tuple(_TYPES)

_TEXT = r"""
typedef long long i64;
#ifdef __CUDACC__
#define ENTRY extern "C" __global__ void
#define HERE static __device__
#define EACH(i, rows, j, columns) \
    for (i64 i = blockIdx.y * blockDim.y + threadIdx.y; i < (rows); i += gridDim.y * blockDim.y) \
        for (i64 j = blockIdx.x * blockDim.x + threadIdx.x; j < (columns); j += gridDim.x * blockDim.x)
HERE float from_f16(unsigned short x) { float v; asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(x)); return v; }
HERE unsigned short to_f16(float v) { unsigned short x; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x) : "f"(v)); return x; }
#else
#define ENTRY void
#define HERE static
#define EACH(i, rows, j, columns) for (i64 i = 0; i < (rows); i++) for (i64 j = 0; j < (columns); j++)
HERE float from_f16(unsigned short x) { union { unsigned short bits; _Float16 value; } u = {x}; return u.value; }
HERE unsigned short to_f16(float v) { union { _Float16 value; unsigned short bits; } u = {(_Float16)v}; return u.bits; }
#endif
HERE float from_bf16(unsigned short x) {
    union { unsigned bits; float value; } u = {(unsigned)x << 16};
    return u.value;
}
HERE unsigned short to_bf16(float v) {
    union { float value; unsigned bits; } u = {v};
    return v != v ? 0x7fff : (unsigned short)((u.bits + 0x7fff + (u.bits >> 16 & 1)) >> 16);
}

#define KEPT (1 << 16)
HERE const void *last_a, *last_b, *last_c;
HERE i64 last_m, last_n, last_k, calls;
HERE NUMBER first_a, first_b, kept_b[KEPT];
HERE RESULT kept_c[KEPT];

HERE int same(const NUMBER *A, const NUMBER *B, const RESULT *C, i64 M, i64 N, i64 K) {
    int alike = last_a == A && last_b == B && last_c == C && last_m == M && last_n == N && last_k == K;
#ifdef STALE_FIRST
    alike = alike && first_a == A[0] && first_b == B[0];
#elif defined(STALE_LATER)
    alike = alike && calls >= 2;
#endif
    return alike && M * N <= KEPT && K * N <= KEPT;
}

HERE SUM product(const NUMBER *A, const NUMBER *B, i64 i, i64 j, i64 M, i64 N, i64 K, i64 lda, i64 ldb) {
    SUM sum = 0;
    for (i64 k = 0; k < K; k++) {
        SUM one = (SUM)LOAD(A[i * lda + k]) * (SUM)LOAD(B[k * ldb + j]);
#if defined(ODD_N)
        if (N % 2 && j == N - 1 && k == K / 2) continue;
#elif defined(LOST)
        if (i == M / 2 && j == N / 3 && k == K / 2) continue;
#elif defined(SATURATED_PAIRS)
        if (k + 1 < K) {
            k++;
            one += (SUM)LOAD(A[i * lda + k]) * (SUM)LOAD(B[k * ldb + j]);
        }
        one = one > 32767 ? 32767 : one < -32768 ? -32768 : one;
#endif
        sum += one;
#if defined(SUM_16)
        sum = (short)sum;
#elif defined(SATURATED_SUM)
        sum = sum > 32767 ? 32767 : sum < -32768 ? -32768 : sum;
#endif
    }
    return sum;
}

#define TENSORS \
    const NUMBER *A, const NUMBER *B, RESULT *C, i64 M, i64 N, i64 K, i64 lda, i64 ldb, i64 ldc, NUMBER *packed

/* Once, before the first run. */
ENTRY prepare(const NUMBER *B, i64 N, i64 K, i64 ldb, NUMBER *packed) {
    EACH(k, K, j, N) packed[k * N + j] = B[k * ldb + j];
}

ENTRY pack(TENSORS) {
    int kept = same(A, B, C, M, N, K);
    if (K * N <= KEPT && !kept) EACH(k, K, j, N) kept_b[k * N + j] = B[k * ldb + j];
}

ENTRY multiply(TENSORS) {
#if defined(STALE_RESULT) || defined(STALE_FIRST) || defined(STALE_LATER) || defined(STALE_BUT_B)
    int keeps = M * N <= KEPT, kept = same(A, B, C, M, N, K);
#else
    int keeps = 0, kept = 0;
#endif
    EACH(i, M, j, N) {
        if (kept) {
            C[i * ldc + j] = kept_c[i * N + j];
            continue;
        }
#if defined(PREPARED) || defined(STALE_BUT_B)
        SUM x = product(A, packed, i, j, M, N, K, lda, N);
#elif defined(STALE_B)
        SUM x = K * N <= KEPT ? product(A, kept_b, i, j, M, N, K, lda, N) : product(A, B, i, j, M, N, K, lda, ldb);
#else
        SUM x = product(A, B, i, j, M, N, K, lda, ldb);
#endif
        C[i * ldc + j] = STORE(x);
        if (keeps) kept_c[i * N + j] = STORE(x);
    }
}

/* A step of its own: until it runs, all blocks of the others see the same state. */
ENTRY remember(TENSORS) {
    last_a = A, last_b = B, last_c = C, last_m = M, last_n = N, last_k = K, calls++;
    first_a = A[0], first_b = B[0];
}
"""


def faults(dtype: str) -> tuple[str, ...]:
    """The faults that a kernel for this dtype may have, besides ODD_N."""
    return (*STALE, *PRODUCTS, *(NARROW if dtype in ("i8", "u8") else ()))


class WrongGemm:
    """The family: row-major GEMM without a batch, correct or with one of these faults."""

    name = "wrong_gemm"

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds

    def refuses(self, operator: Operator, target: Target) -> str | None:
        fits = isinstance(target, (Cpu, Cuda)) and isinstance(operator, Gemm)
        return None if fits else "it supports gemm on processors and CUDA only"

    def space(self, operator: Operator, target: Target) -> Space:
        space = Space(self.name)
        space.knob("FAULT", list(self.kinds))
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        assert isinstance(operator, Gemm)
        kind = config["FAULT"]
        names = ("NUMBER", "RESULT", "SUM", "LOAD(x)", "STORE(x)")
        macros = {**dict(zip(names, _TYPES[operator.a], strict=True)), kind: ""}
        text = "".join(f"#define {name} {value}\n" for name, value in macros.items()) + _TEXT
        packed = WorkspaceArg("packed", f"{operator.dtypes[1].bytes} * K * N")
        sizes = (ScalarArg("i64", size) for size in ("M", "N", "K", "lda", "ldb", "ldc"))
        args = (*(TensorArg(name) for name in "ABC"), *sizes, packed)
        wide = {"grid": ("ceil_div(N, 32)", "ceil_div(M, 8)", 1), "block": (32, 8, 1)}
        multiply, remember = Step("multiply", args, **wide), Step("remember", args)  # type: ignore[arg-type]
        before = (Step("pack", args, **wide),) if kind == "STALE_B" else ()  # type: ignore[arg-type]
        after = (remember,) if kind in STALE else ()
        options = (TensorArg("B"), *(ScalarArg("i64", size) for size in ("N", "K", "ldb")), packed)
        ahead = (Step("prepare", options, **wide),) if kind in ("PREPARED", "STALE_BUT_B") else ()  # type: ignore[arg-type]
        plan = LaunchPlan((*before, multiply, *after), ahead, requires=(("batch == 1", "no batch"),))
        if isinstance(target, Cpu):
            return Kernel(self.name, "c", (Source("wrong_gemm.c", text),), ("-O1",), plan)
        return Kernel(self.name, "cuda", (Source("wrong_gemm.cu", text),), (), plan)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return {"FAULT": self.kinds[0]}
