"""A GEMM's reference as a kernel, for devices that compute it a hundred times faster than the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepgen.vocabulary.kernel import Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg

if TYPE_CHECKING:
    from deepgen.operators.gemm import Gemm

_FILE = "gemm_reference.cu"
_FORMATS = ("f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8", "u8", "i16", "i32", "i64")
_ACTIVATIONS = ("none", "relu", "gelu", "silu")
_SCALES = ("none", "tensor", "row", "column")
_TILE, _DEPTH, _THREADS = 64, 16, 256


def kernel(gemm: Gemm, language: str) -> Kernel | None:
    """None for other languages, and for GEMMs that its arithmetic does not cover."""
    from importlib import resources  # here: what only reads studies does not wait for it

    a, b, c, _ = gemm.dtypes
    plain = (gemm.alpha, gemm.beta, gemm.bias, gemm.activation, gemm.scales) == (1.0, 0.0, False, "none", "none")
    whole = (2 if c.integer else 1) if a.integer and b.integer else 0
    if language not in ("cuda", "hip") or (c.integer and not (plain and whole)):
        return None
    if language == "hip" and gemm.activation in ("gelu", "silu"):
        return None  # in HIP the exponential in f64 needs a library of the vendor
    formats = (("A", a), ("B", b), ("C", c))
    flags = {
        **{f"FORMAT_{name}": _FORMATS.index(of.name.replace("tf32", "f32")) for name, of in formats},
        **{f"TRANSPOSED_{name}": int(letter == "t") for name, letter in zip("AB", gemm.layout, strict=True)},
        "ACTIVATION": _ACTIVATIONS.index(gemm.activation),
        "SCALES": _SCALES.index(gemm.scales),
        "BETA": int(gemm.beta != 0.0),
        "BIAS": int(gemm.bias),
        "WHOLE": whole,
    }
    given = {t.name for t in gemm.tensors()}
    absent = ScalarArg("i64", 0)  # a null pointer
    step = Step(
        "gemm_reference",
        (
            *(TensorArg(name) if name in given else absent for name in ("A", "B", "C", "bias", "scale")),
            TensorArg("want_C"),
            absent if whole == 2 else TensorArg("scale_C"),
            *(ScalarArg("i32", size) for size in ("M", "N", "K")),
            *(ScalarArg("f64", factor) for factor in ("alpha", "beta")),
        ),
        grid=(f"ceil_div(M, {_TILE}) * ceil_div(N, {_TILE}) * batch", 1, 1),
        block=(_THREADS, 1, 1),
        shared_bytes=2 * _DEPTH * (_TILE + 1) * 8,
    )
    text = (resources.files("deepgen.operators") / _FILE).read_text()
    defined = tuple(f"-D{name}={value}" for name, value in flags.items())
    return Kernel("gemm_reference", language, (Source(_FILE, text),), defined, LaunchPlan((step,)))
