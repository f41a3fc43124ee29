"""The cases of rules.py: operators by parameters, those of Heron's figure 6 on GPUs and smaller ones on CPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from deepgen.operators import OPERATORS, Operator
from deepgen_formats.heron import CASES
from harness import ROOT

Words: TypeAlias = "Mapping[str, Any]"
Sizes: TypeAlias = "tuple[int, ...]"

_IMAGE, _LINE = (
    ("N", "H", "W", "CI", "CO", "k", "stride", "pad", "dilation"),
    ("N", "L", "CI", "CO", "k", "stride", "pad"),
)
_VOLUME = ("N", "D", "H", "W", "CI", "CO", "k", "stride", "pad")
# Heron's operators: our name, the group, and the layouts in which they are measured.
_FIGURE_6 = {
    "c2d": ("dilated_conv2d", "conv", ("nhwc", "nchw")), "dil": ("dilated_conv2d", "dilated", ("nhwc", "nchw")),
    "t2d": ("conv_transpose2d", "transposed", ("nhwc", "nchw")), "c1d": ("conv1d", "conv1d", ("nlc", "ncl")),
    "c3d": ("conv3d", "conv3d", ("ndhwc", "ncdhw")), "gemm": ("gemm", "", ("nt",)), "bmm": ("bmm", "", ("nt",)),
    "gemv": ("gemv", "", ()), "scan": ("scan", "", ()),
}  # fmt: skip
_SAMPLE = ("conv nhwc", "gemm", "bmm", "gemv")  # groups that are also run in bf16 and i8
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
    """The cases for GPUs or CPUs, in one format or in all that are measured."""
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
    for kind, (operator, group, layouts) in _FIGURE_6.items():
        file = json.loads((ROOT / f"tests/data/heron/figure6/{kind}.json").read_text())
        for layout in layouts or (None,):
            for label, (_, numbers) in file["config"]["cases"].items():
                sizes = dict(zip(CASES[kind], numbers, strict=True))
                filters = [sizes.pop(side) for side in ("kd", "kh", "kw") if side in sizes]
                words = {**sizes, **({"k": filters} if filters else {}), **({"layout": layout} if layout else {})}
                yield Case(f"{group} {layout}" if group else kind, operator, words, label)
    yield Case("gemv", "gemv", {"M": 16384, "K": 4096}, "large")
    for layout in ("nhwc", "nchw"):
        depthwise = {"N": 16, "H": 56, "W": 56, "C": 128, "k": 3, "stride": 1, "pad": 1, "layout": layout}
        yield Case(f"depthwise {layout}", "depthwise_conv2d", depthwise)


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
