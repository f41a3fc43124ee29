"""The cases of `rules.py`: those of Heron's figure 6, in both layouts where there are two, and a few more.

All of them in f16; in bf16 and i8 a sample, and in f32 operators on rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from deepgen.operators import Operator
from rules_cases import Case, Torch, Words, convolution, quantised_call

# N, H = W, CI, CO, k, stride, pad, dilation
_IMAGES = {
    "C1": (16, 56, 64, 64, 3, 1, 1, 1),
    "C2": (16, 56, 64, 64, 1, 1, 0, 1),
    "C3": (16, 28, 128, 128, 3, 1, 1, 1),
    "C4": (16, 28, 128, 256, 1, 2, 0, 1),
    "C5": (16, 14, 256, 256, 3, 1, 1, 1),
    "C6": (16, 14, 256, 512, 1, 2, 0, 1),
    "D1": (16, 56, 64, 64, 3, 1, 1, 2),
    "D2": (16, 56, 64, 64, 1, 1, 0, 2),
    "D3": (16, 28, 128, 128, 3, 1, 1, 2),
    "D4": (16, 28, 128, 256, 1, 2, 0, 2),
    "D5": (16, 14, 256, 256, 3, 1, 1, 2),
    "D6": (16, 14, 256, 512, 1, 2, 0, 2),
}
_TRANSPOSED = {
    "T1": (16, 56, 64, 64, 3, 1, 1),
    "T2": (16, 56, 64, 128, 1, 2, 0),
    "T3": (16, 28, 128, 128, 3, 1, 1),
    "T4": (16, 28, 128, 256, 1, 2, 0),
    "T5": (16, 14, 256, 512, 3, 1, 1),
    "T6": (16, 14, 256, 512, 1, 2, 0),
}
# N, L, CI, CO, k, stride, pad
_LINES = {
    "C1D1": (16, 892, 512, 512, 3, 1, 4),
    "C1D2": (16, 892, 512, 512, 3, 1, 8),
    "C1D3": (16, 892, 512, 512, 3, 1, 16),
    "C1D4": (16, 892, 512, 512, 3, 1, 32),
    "C1D5": (16, 892, 512, 1024, 1, 1, 0),
    "C1D6": (16, 892, 1024, 512, 1, 1, 0),
}
# N, D, H = W, CI, CO, k, stride, pad
_VOLUMES = {
    "C3D1": (8, 8, 56, 64, 64, 3, 1, 1),
    "C3D2": (8, 8, 56, 64, 128, 1, 2, 0),
    "C3D3": (8, 4, 28, 128, 128, 3, 1, 1),
    "C3D4": (8, 4, 28, 128, 256, 1, 2, 0),
    "C3D5": (8, 2, 14, 256, 256, 3, 1, 1),
    "C3D6": (8, 2, 14, 256, 512, 1, 2, 0),
}
_GEMM = {"G1": (1024, 1024, 1024), "G2": (4096, 4096, 4096), "G3": (32, 2048, 1000), "G4": (32, 4096, 4096),
         "G5": (32, 4096, 1000)}  # M, K, N  # fmt: skip
_BMM = {"B1": (12, 512, 64, 512), "B2": (12, 512, 512, 64), "B3": (16, 512, 64, 512), "B4": (16, 512, 512, 64),
        "B5": (96, 2048, 128, 2048), "B6": (96, 2048, 2048, 128)}  # B, M, K, N  # fmt: skip
_GEMV = {"GV1": (512, 16), "GV2": (1024, 256), "GV3": (256, 1024), "GV4": (512, 256), "GV5": (1024, 1024),
         "large": (16384, 4096)}  # M, K  # fmt: skip
_SCAN = {"S1": (16, 512, 128), "S2": (1024, 16, 256), "S3": (256, 1024, 256), "S4": (512, 256, 16),
         "S5": (1024, 1024, 1024)}  # fmt: skip
_ROWS = ((4096, 1024), (4096, 4096))
_SAMPLE = ("conv nhwc", "gemm", "bmm", "gemv")  # groups that are there in bf16 and i8 too
_DEPTHWISE = {"N": 16, "H": 56, "W": 56, "C": 128, "k": 3, "stride": 1, "pad": 1}


@dataclass(frozen=True)
class GpuCase:
    """`memory`: it moves bytes more than it computes, and torch.compile has kernels of its own for it."""

    label: str
    case: Case
    memory: bool = False
    dtype: str = "f16"

    @property
    def name(self) -> str:
        return self.label if self.dtype == "f16" else f"{self.label} {self.dtype}"

    @property
    def group(self) -> str:
        return self.case.group if self.dtype == "f16" else f"{self.case.group} {self.dtype}"

    def made(self) -> Operator:
        return self.case.made(self.dtype)

    def called(self, torch: Any, given: Mapping[str, Any]) -> Callable[[], Any] | None:
        """torch's call; None where it has none: of bytes on GPUs it has products of matrices only."""
        if self.dtype == "i8":
            return quantised_call(torch, self.case, given) if self.case.operator == "gemm" else None
        return self.case.torch(torch, given, self.case.words)


def all_cases() -> Iterator[GpuCase]:
    """In every format."""
    yield from gpu_cases()
    for dtype in ("bf16", "i8"):
        yield from (replace(case, dtype=dtype) for case in gpu_cases() if case.group in _SAMPLE)
    for operator, torch in (("softmax", _softmax), ("rms_norm", _rms_norm)):
        for rows, cols in _ROWS:
            words = _words(rows=rows, cols=cols)
            yield GpuCase(f"{operator} {rows}x{cols}", Case("rows", operator, words, torch), memory=True, dtype="f32")


def gpu_cases() -> Iterator[GpuCase]:
    for layout in ("nhwc", "nchw"):
        for name, (n, size, ci, co, k, stride, pad, dilation) in _IMAGES.items():
            words = _words(N=n, H=size, W=size, CI=ci, CO=co, k=k, stride=stride, pad=pad, layout=layout)
            kind = "conv" if dilation == 1 else "dilated"
            yield _case(f"{kind} {layout}", name, "dil", {**words, "dilation": dilation}, convolution("dil"))
        for name, (n, size, ci, co, k, stride, pad) in _TRANSPOSED.items():
            words = _words(N=n, H=size, W=size, CI=ci, CO=co, k=k, stride=stride, pad=pad, layout=layout)
            yield _case(f"transposed {layout}", name, "t2d", words, convolution("t2d"))
        depthwise = _case(f"depthwise {layout}", "dep", "dep", {**_DEPTHWISE, "layout": layout}, convolution("dep"))
        yield replace(depthwise, memory=True)
    for layout in ("nlc", "ncl"):
        for name, (n, length, ci, co, k, stride, pad) in _LINES.items():
            words = _words(N=n, L=length, CI=ci, CO=co, k=k, stride=stride, pad=pad, layout=layout)
            yield _case(f"conv1d {layout}", name, "c1d", words, _lines if layout == "nlc" else convolution("c1d"))
    for layout in ("ndhwc", "ncdhw"):
        for name, (n, depth, size, ci, co, k, stride, pad) in _VOLUMES.items():
            words = _words(N=n, D=depth, H=size, W=size, CI=ci, CO=co, k=k, stride=stride, pad=pad, layout=layout)
            yield _case(f"conv3d {layout}", name, "c3d", words, convolution("c3d"))
    for name, (m, k, n) in _GEMM.items():
        yield _case("gemm", name, "gemm", _words(M=m, N=n, K=k, layout="nt"), _product)
    for name, (batch, m, k, n) in _BMM.items():
        yield _case("bmm", name, "bmm", _words(B=batch, M=m, N=n, K=k, layout="nt"), _product)
    for name, (m, k) in _GEMV.items():
        yield GpuCase(f"{name} gemv", Case("gemv", "gemv", _words(M=m, K=k), _gemv), memory=True)
    for name, (m, n, k) in _SCAN.items():
        yield GpuCase(f"{name} scan", Case("scan", "scan", _words(M=m, N=n, K=k, axis="2"), _scan), memory=True)


def _case(group: str, name: str, operator: str, words: Words, torch: Torch) -> GpuCase:
    layout = group.rsplit(maxsplit=1)[-1]
    return GpuCase(f"{name} {layout}", Case(group, operator, words, torch, "expert" if group == "gemm" else None))


def _words(**words: Any) -> Words:
    return words


def _lines(torch: Any, t: Any, words: Words) -> Any:
    """As images of one line: for these torch has kernels with channels last."""
    x = t["x"].movedim(-1, 1).unsqueeze(2)
    weight = t["weight"].movedim((-2, -1), (1, 0)).unsqueeze(2).contiguous(memory_format=torch.channels_last)
    stride, pad = (1, words["stride"]), (0, words["pad"])
    return lambda: torch.nn.functional.conv2d(x, weight, None, stride, pad).squeeze(2).movedim(1, -1)


def _product(torch: Any, t: Any, words: Words) -> Any:
    return lambda: torch.matmul(t["A"], t["B"].transpose(-1, -2))


def _gemv(torch: Any, t: Any, words: Words) -> Any:
    return lambda: torch.mv(t["A"], t["x"])


def _scan(torch: Any, t: Any, words: Words) -> Any:
    # Sums of f16 are added up in f32 on both sides.
    return lambda: torch.cumsum(t["x"], 2)


def _softmax(torch: Any, t: Any, words: Words) -> Any:
    return lambda: torch.softmax(t["x"], -1)


def _rms_norm(torch: Any, t: Any, words: Words) -> Any:
    return lambda: torch.nn.functional.rms_norm(t["x"], (words["cols"],), t["gamma"], 1e-5)
