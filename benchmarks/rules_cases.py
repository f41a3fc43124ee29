"""The cases of `rules_cpu.py`: operators by their words, and torch's call for each."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from deepgen.baselines import torch_named
from deepgen.operators import OPERATORS, Operator

Words: TypeAlias = "dict[str, Any]"
Torch: TypeAlias = "Callable[[Any, Mapping[str, Any], Words], Callable[[], Any]]"

CONVOLUTIONS = [
    {"N": 1, "H": 56, "W": 56, "CI": 64, "CO": 64, "k": 3, "stride": 1, "pad": 1},
    {"N": 1, "H": 56, "W": 56, "CI": 64, "CO": 64, "k": 1, "stride": 1, "pad": 0},
    {"N": 1, "H": 28, "W": 28, "CI": 128, "CO": 128, "k": 3, "stride": 1, "pad": 1},
    {"N": 1, "H": 28, "W": 28, "CI": 128, "CO": 256, "k": 1, "stride": 2, "pad": 0},
    {"N": 1, "H": 14, "W": 14, "CI": 256, "CO": 256, "k": 3, "stride": 1, "pad": 1},
    {"N": 1, "H": 14, "W": 14, "CI": 256, "CO": 512, "k": 1, "stride": 2, "pad": 0},
]
DILATED = {"N": 1, "H": 28, "W": 28, "CI": 128, "CO": 128, "k": 3, "stride": 1, "pad": 2, "dilation": 2}
TRANSPOSED = {"N": 1, "H": 14, "W": 14, "CI": 128, "CO": 64, "k": 4, "stride": 2, "pad": 1}
DEPTHWISE = [
    {"N": 1, "H": 56, "W": 56, "C": 128, "k": 3, "stride": 1, "pad": 1},
    {"N": 1, "H": 28, "W": 28, "C": 256, "k": 3, "stride": 2, "pad": 1},
]
LINE = {"N": 1, "L": 256, "CI": 64, "CO": 128, "k": 3, "stride": 2, "pad": 1}
VOLUME = {"N": 1, "D": 8, "H": 28, "W": 28, "CI": 32, "CO": 32, "k": 3, "stride": 1, "pad": 1}
PRODUCTS = [{"M": 512, "N": 512, "K": 512}, {"M": 1024, "N": 1024, "K": 1024}, {"M": 100, "N": 1000, "K": 2048}]
ROWS = {"rows": 1024, "cols": 1024}


@dataclass(frozen=True)
class Case:
    group: str
    operator: str
    words: Words
    torch: Torch
    expert: str | None = None  # our own family for this operator

    @property
    def name(self) -> str:
        return " ".join([self.operator, *(f"{name}={value}" for name, value in self.words.items())])

    def made(self, dtype: str) -> Operator:
        return OPERATORS.get(self.operator).make({**self.words, "dtype": dtype})


def convolution(name: str) -> Torch:
    """torch's call for an operator, with the weight in the order that torch likes best for the layout."""

    def call(torch: Any, t: Mapping[str, Any], words: Words) -> Callable[[], Any]:
        last = words["layout"].endswith("c")
        form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(t["x"].dim()) if last else None
        weight = torch_named.filters(name, words, t["weight"])
        weight = weight.contiguous(memory_format=torch.contiguous_format if form is None else form)
        return torch_named.convolution(torch, name, words, t["x"], weight)

    return call


def cases() -> list[Case]:
    found = []
    for layout in ("nhwc", "nchw"):

        def both(words: Words, layout: str = layout) -> Words:
            return {**words, "layout": layout}

        found += [Case(f"conv {layout}", "c2d", both(words), convolution("c2d"), "c_conv2d") for words in CONVOLUTIONS]
        found += [Case(f"conv {layout}", "dil", both(DILATED), convolution("dil"))]
        found += [Case(f"transposed {layout}", "t2d", both(TRANSPOSED), convolution("t2d"))]
        found += [Case(f"depthwise {layout}", "dep", both(words), convolution("dep")) for words in DEPTHWISE]
    found += [Case("conv other", "c1d", {**LINE, "layout": "nlc"}, convolution("c1d"))]
    found += [Case("conv other", "c3d", {**VOLUME, "layout": "ndhwc"}, convolution("c3d"))]
    for words in PRODUCTS:
        found += [Case("gemm", "gemm", {**words, "layout": layout}, _product, "c_gemm") for layout in ("nn", "nt")]
    found += [
        Case(
            "bmm",
            "bmm",
            {"B": 16, "M": 128, "N": 128, "K": 64, "layout": "nn"},
            _call(lambda torch, t, _: t["A"] @ t["B"]),
        )
    ]
    gemv = _call(lambda torch, t, _: torch.mv(t["A"], t["x"]))
    found += [Case("gemv", "gemv", {"M": m, "K": k}, gemv) for m, k in ((1024, 1024), (4096, 4096))]
    scan = _call(lambda torch, t, words: torch.cumsum(t["x"], int(words["axis"])))
    found += [Case("scan", "scan", {"M": 64, "N": 256, "K": 64, "axis": axis}, scan) for axis in ("1", "2")]
    found += [Case("reductions", "mean", ROWS, _call(lambda torch, t, _: torch.mean(t["x"], -1)))]
    found += [Case("reductions", "var", ROWS, _call(lambda torch, t, _: torch.var(t["x"], -1, correction=0)))]
    found += [Case("rows", "softmax", ROWS, _call(lambda torch, t, _: torch.softmax(t["x"], -1)), "c_softmax")]
    found += [Case("rows", "layer_norm", ROWS, _call(_layer_norm)), Case("rows", "rms_norm", ROWS, _call(_rms_norm))]
    return found


def _call(compute: Callable[[Any, Mapping[str, Any], Words], Any]) -> Torch:
    return lambda torch, t, words: lambda: compute(torch, t, words)


def _product(torch: Any, t: Mapping[str, Any], words: Words) -> Callable[[], Any]:
    a, b = t["A"], t["B"].T if words["layout"][1] == "t" else t["B"]
    return lambda: torch.mm(a, b)


def _layer_norm(torch: Any, t: Mapping[str, Any], words: Words) -> Any:
    return torch.nn.functional.layer_norm(t["x"], (words["cols"],), t["gamma"], t["beta"])


def _rms_norm(torch: Any, t: Mapping[str, Any], words: Words) -> Any:
    return torch.nn.functional.rms_norm(t["x"], (words["cols"],), t["gamma"], 1e-5)


def quantised_call(torch: Any, case: Case, t: Mapping[str, Any], *, ahead: bool = False) -> Callable[[], Any] | None:
    """torch's call on bytes; None where it has none. With `ahead`, weights are packed before.

    Convolutions, and products with weights packed ahead, are those of its quantised path, which makes results bytes
    again and is there on x86 only.
    """
    words = case.words
    if ahead and platform.machine() != "x86_64":
        return None
    if case.operator == "gemm" and not ahead:
        b = t["B"].T if words["layout"][1] == "t" else t["B"]
        return lambda: torch._int_mm(t["A"], b)
    if case.operator == "gemm":
        weight = t["B"] if words["layout"][1] == "t" else t["B"].T
        packed = torch.ops.quantized.linear_prepack(_quantised(torch, weight.contiguous()), None)
        x = _quantised(torch, t["A"], unsigned=True)
        return lambda: torch.ops.quantized.linear(x, packed, 1.0, 128)
    if case.operator == "gemv" and not ahead:
        return lambda: torch._int_mm(t["A"], t["x"][:, None])
    if case.operator not in ("c2d", "dil", "dep") or not ahead:
        return None
    last = words["layout"].endswith("c")
    x, weight = (t["x"].movedim(-1, 1) if last else t["x"]), torch_named.filters(case.operator, words, t["weight"])
    form = torch.channels_last if last else torch.contiguous_format
    options = [[words["stride"]] * 2, [words["pad"]] * 2, [words.get("dilation", 1)] * 2]
    groups = x.shape[1] if case.operator == "dep" else 1
    weight = _quantised(torch, weight.contiguous())
    packed = torch.ops.quantized.conv2d_prepack(weight, None, *options, groups)
    image = _quantised(torch, x.contiguous(memory_format=form), unsigned=True)
    return lambda: torch.ops.quantized.conv2d(image, packed, 1.0, 128)


def _quantised(torch: Any, tensor: Any, *, unsigned: bool = False) -> Any:
    if unsigned:
        tensor = (tensor.to(torch.int16) + 128).to(torch.uint8)
    return torch._make_per_tensor_quantized_tensor(tensor, 0.05, 128 if unsigned else 0)
