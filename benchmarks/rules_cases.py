"""The cases of rules.py: operators by their words, those of Heron's figure 6 on GPUs and smaller ones on processors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from deepgen.operators import OPERATORS, Operator

Words: TypeAlias = "Mapping[str, Any]"
Sizes: TypeAlias = "tuple[int, ...]"

_IMAGE = ("N", "H", "W", "CI", "CO", "k", "stride", "pad", "dilation")
# N, H, W, CI, CO, k, stride, pad, dilation
_GPU_IMAGES: Mapping[str, Sizes] = {
    "C1": (16, 56, 56, 64, 64, 3, 1, 1, 1), "C2": (16, 56, 56, 64, 64, 1, 1, 0, 1),
    "C3": (16, 28, 28, 128, 128, 3, 1, 1, 1), "C4": (16, 28, 28, 128, 256, 1, 2, 0, 1),
    "C5": (16, 14, 14, 256, 256, 3, 1, 1, 1), "C6": (16, 14, 14, 256, 512, 1, 2, 0, 1),
    "D1": (16, 56, 56, 64, 64, 3, 1, 1, 2), "D2": (16, 56, 56, 64, 64, 1, 1, 0, 2),
    "D3": (16, 28, 28, 128, 128, 3, 1, 1, 2), "D4": (16, 28, 28, 128, 256, 1, 2, 0, 2),
    "D5": (16, 14, 14, 256, 256, 3, 1, 1, 2), "D6": (16, 14, 14, 256, 512, 1, 2, 0, 2),
}  # fmt: skip
_GPU_TRANSPOSED: Mapping[str, Sizes] = {
    "T1": (16, 56, 56, 64, 64, 3, 1, 1), "T2": (16, 56, 56, 64, 128, 1, 2, 0), "T3": (16, 28, 28, 128, 128, 3, 1, 1),
    "T4": (16, 28, 28, 128, 256, 1, 2, 0), "T5": (16, 14, 14, 256, 512, 3, 1, 1), "T6": (16, 14, 14, 256, 512, 1, 2, 0),
}  # fmt: skip
_LINE = ("N", "L", "CI", "CO", "k", "stride", "pad")
_GPU_LINES: Mapping[str, Sizes] = {
    "C1D1": (16, 892, 512, 512, 3, 1, 4), "C1D2": (16, 892, 512, 512, 3, 1, 8), "C1D3": (16, 892, 512, 512, 3, 1, 16),
    "C1D4": (16, 892, 512, 512, 3, 1, 32), "C1D5": (16, 892, 512, 1024, 1, 1, 0), "C1D6": (16, 892, 1024, 512, 1, 1, 0),
}  # fmt: skip
_VOLUME = ("N", "D", "H", "W", "CI", "CO", "k", "stride", "pad")
_GPU_VOLUMES: Mapping[str, Sizes] = {
    "C3D1": (8, 8, 56, 56, 64, 64, 3, 1, 1), "C3D2": (8, 8, 56, 56, 64, 128, 1, 2, 0),
    "C3D3": (8, 4, 28, 28, 128, 128, 3, 1, 1), "C3D4": (8, 4, 28, 28, 128, 256, 1, 2, 0),
    "C3D5": (8, 2, 14, 14, 256, 256, 3, 1, 1), "C3D6": (8, 2, 14, 14, 256, 512, 1, 2, 0),
}  # fmt: skip
_GPU_GEMM: Mapping[str, Sizes] = {
    "G1": (1024, 1024, 1024), "G2": (4096, 4096, 4096), "G3": (32, 1000, 2048), "G4": (32, 4096, 4096),
    "G5": (32, 1000, 4096),
}  # M, N, K  # fmt: skip
_GPU_BMM: Mapping[str, Sizes] = {
    "B1": (12, 512, 512, 64), "B2": (12, 512, 64, 512), "B3": (16, 512, 512, 64), "B4": (16, 512, 64, 512),
    "B5": (96, 2048, 2048, 128), "B6": (96, 2048, 128, 2048),
}  # B, M, N, K  # fmt: skip
_GPU_GEMV: Mapping[str, Sizes] = {
    "GV1": (512, 16), "GV2": (1024, 256), "GV3": (256, 1024), "GV4": (512, 256), "GV5": (1024, 1024),
    "large": (16384, 4096),
}  # M, K  # fmt: skip
_GPU_SCAN: Mapping[str, Sizes] = {
    "S1": (16, 512, 128), "S2": (1024, 16, 256), "S3": (256, 1024, 256), "S4": (512, 256, 16),
    "S5": (1024, 1024, 1024),
}  # M, N, K  # fmt: skip
_SAMPLE = ("conv nhwc", "gemm", "bmm", "gemv")  # groups that are there in bf16 and i8 too
_CPU_IMAGES: tuple[Sizes, ...] = (
    (1, 56, 56, 64, 64, 3, 1, 1), (1, 56, 56, 64, 64, 1, 1, 0), (1, 28, 28, 128, 128, 3, 1, 1),
    (1, 28, 28, 128, 256, 1, 2, 0), (1, 14, 14, 256, 256, 3, 1, 1), (1, 14, 14, 256, 512, 1, 2, 0),
)  # fmt: skip
_CPU_GEMM: tuple[Sizes, ...] = ((512, 512, 512), (1024, 1024, 1024), (100, 1000, 2048))  # M, N, K


@dataclass(frozen=True)
class Case:
    group: str
    operator: str
    words: Words
    label: str = ""
    dtype: str = "f32"

    @property
    def name(self) -> str:
        words = self.label or " ".join([self.operator, *(f"{name}={value}" for name, value in self.words.items())])
        return f"{self.group}: {words} {self.dtype}"

    def build(self) -> Operator:
        return OPERATORS.get(self.operator).make({**self.words, "dtype": self.dtype})


def cases(runner: str, dtype: str | None = None) -> list[Case]:
    """Those of GPUs or of processors, in one format or in all that they are measured in."""
    if runner != "gpu":
        return [replace(case, dtype=dtype or "f32") for case in _on_cpu()]
    plain = [replace(case, dtype="f16") for case in _on_gpu()]
    other = [replace(case, dtype=of) for of in ("bf16", "i8") for case in plain if case.group in _SAMPLE]
    rows = [
        Case("rows", operator, {"rows": count, "cols": columns}, f"{operator} {count}x{columns}")
        for operator in ("softmax", "rms_norm")
        for count, columns in ((4096, 1024), (4096, 4096))
    ]
    return [case for case in (*plain, *other, *rows) if dtype is None or case.dtype == dtype]


def _on_gpu() -> Iterator[Case]:
    for layout in ("nhwc", "nchw"):
        for label, sizes in _GPU_IMAGES.items():
            kind = "conv" if label.startswith("C") else "dilated"
            yield Case(f"{kind} {layout}", "dilated_conv2d", _words(_IMAGE, sizes, layout), label)
        for label, sizes in _GPU_TRANSPOSED.items():
            yield Case(f"transposed {layout}", "conv_transpose2d", _words(_IMAGE, sizes, layout), label)
        depthwise = {"N": 16, "H": 56, "W": 56, "C": 128, "k": 3, "stride": 1, "pad": 1, "layout": layout}
        yield Case(f"depthwise {layout}", "depthwise_conv2d", depthwise)
    for layout in ("nlc", "ncl"):
        for label, sizes in _GPU_LINES.items():
            yield Case(f"conv1d {layout}", "conv1d", _words(_LINE, sizes, layout), label)
    for layout in ("ndhwc", "ncdhw"):
        for label, sizes in _GPU_VOLUMES.items():
            yield Case(f"conv3d {layout}", "conv3d", _words(_VOLUME, sizes, layout), label)
    for label, sizes in _GPU_GEMM.items():
        yield Case("gemm", "gemm", _words("MNK", sizes, "nt"), label)
    for label, sizes in _GPU_BMM.items():
        yield Case("bmm", "bmm", _words("BMNK", sizes, "nt"), label)
    for label, sizes in _GPU_GEMV.items():
        yield Case("gemv", "gemv", _words("MK", sizes), label)
    for label, sizes in _GPU_SCAN.items():
        yield Case("scan", "scan", {**_words("MNK", sizes), "axis": "2"}, label)


def _on_cpu() -> Iterator[Case]:
    for layout in ("nhwc", "nchw"):
        for sizes in _CPU_IMAGES:
            yield Case(f"conv {layout}", "conv2d", _words(_IMAGE, sizes, layout))
        yield Case(f"conv {layout}", "dilated_conv2d", _words(_IMAGE, (1, 28, 28, 128, 128, 3, 1, 2, 2), layout))
        yield Case(f"transposed {layout}", "conv_transpose2d", _words(_IMAGE, (1, 14, 14, 128, 64, 4, 2, 1), layout))
        for size, channels, stride in ((56, 128, 1), (28, 256, 2)):
            words = {"N": 1, "H": size, "W": size, "C": channels, "k": 3, "stride": stride, "pad": 1, "layout": layout}
            yield Case(f"depthwise {layout}", "depthwise_conv2d", words)
    yield Case("conv other", "conv1d", _words(_LINE, (1, 256, 64, 128, 3, 2, 1), "nlc"))
    yield Case("conv other", "conv3d", _words(_VOLUME, (1, 8, 28, 28, 32, 32, 3, 1, 1), "ndhwc"))
    for sizes in _CPU_GEMM:
        yield from (Case("gemm", "gemm", _words("MNK", sizes, layout)) for layout in ("nn", "nt"))
    yield Case("bmm", "bmm", _words("BMNK", (16, 128, 128, 64), "nn"))
    yield from (Case("gemv", "gemv", {"M": size, "K": size}) for size in (1024, 4096))
    yield from (Case("scan", "scan", {"M": 64, "N": 256, "K": 64, "axis": axis}) for axis in ("1", "2"))
    for group, names in (("reductions", ("mean", "var")), ("rows", ("softmax", "layer_norm", "rms_norm"))):
        yield from (Case(group, name, {"rows": 1024, "cols": 1024}) for name in names)


def _words(names: Any, sizes: Sizes, layout: str | None = None) -> dict[str, Any]:
    words = dict(zip(names, sizes, strict=False))
    return words if layout is None else {**words, "layout": layout}
