"""torch's calls for operators described by parameters (convolutions, normalisations, row sums and running sums) or by
an expression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from deepgen.baselines import expression_calls
from deepgen.baselines.base import NewResult
from deepgen.operators import Operator, is_built_in
from deepgen.operators.expr.layouts import PackedLayout, filter_layout
from deepgen.operators.expr.operator import Expressed
from deepgen.operators.words import NONE

Words: TypeAlias = "Mapping[str, Any]"
Tensors: TypeAlias = "Mapping[str, Any]"
_Call: TypeAlias = "Callable[[Any, Words, Tensors], Callable[[], Any]]"

_FLOATS = ("f32", "f64", "f16", "bf16")
TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "dilated_conv2d", "depthwise_conv2d", *TRANSPOSED)


def unfit(operator: Operator, *, packed: bool = False) -> str | None:
    """Why torch has no single call for it; None if it has one. `packed`: weights are packed beforehand."""
    if operator.name not in CONVOLUTIONS and not _is_one_call(operator) and isinstance(operator, Expressed):
        return expression_calls.unfit(operator.expression())
    if not (operator.name in CONVOLUTIONS or operator.name in _CALLS) or not is_built_in(operator):
        return f"torch has no single call for {operator.name} here"
    words = operator.parameters()
    if words["dtype"] not in _FLOATS and operator.name != "scan" and not packed:
        return f"torch computes {operator.name} of floats"
    if is_packed(words) and not packed:
        return f"torch has no {operator.name} of weights packed as {words['weight_layout']}"
    if words.get("window") or words.get("softcap"):
        return f"torch has no single call for {operator.name} with a window or a soft cap"
    if operator.name == "attention" and any(words.get(word) for word in ("alibi", "sinks", "lse")):
        return "torch has no single call for attention with slopes, sinks or log-sum-exps"
    if operator.name == "attention" and words.get("lengths"):
        return "torch has no single call for attention with lengths or pages"
    if operator.name == "attention" and words.get("bias") and words["causal"]:
        return "torch's attention is causal or has a bias, not both"
    if words.get("scales", NONE) != NONE:
        return f"torch has no {operator.name} with such scales"
    if words.get("causal") and words["SQ"] != words["SK"]:
        return "torch aligns the causal mask to the first key, not the last"
    return None


def _is_one_call(operator: Operator) -> bool:
    named = operator.name in _CALLS and is_built_in(operator)
    return named and operator.parameters().get("epilogue", "none") == "none"


def call_of(torch: Any, operator: Operator, t: Tensors) -> Callable[[], Any]:
    """The call for these tensors, of an operator that torch supports."""
    if operator.name not in CONVOLUTIONS and not _is_one_call(operator) and isinstance(operator, Expressed):
        return expression_calls.of_torch(torch, operator.expression(), t)
    words = operator.parameters()
    if operator.name not in CONVOLUTIONS:
        return _CALLS[operator.name](torch, words, t)
    weight = filters(operator.name, words, t["weight"])
    bias, steps = epilogue_of(words)
    run = convolution(torch, operator.name, words, t["x"], weight, t["bias"] if bias else None)
    if not steps:
        return NewResult(run, t["y"].copy_)
    channels = (-1,) if words["layout"].endswith("c") else (-1, *[1] * (t["x"].dim() - 2))
    along = {"scale": "mul_", "bias": "add_"}

    def finished() -> Any:
        value = run()
        for step in steps:
            if step in along:
                value = getattr(value, along[step])(t[step].view(channels))
            elif step == "residual":
                value = value.add_(t[step])
            else:
                value = _ACTIVATIONS[step](torch, value)
        return value

    return NewResult(finished, t["y"].copy_)


def epilogue_of(words: Words) -> tuple[bool, list[str]]:
    """Whether the first step is a bias, which convolutions add themselves, and the steps after it."""
    steps = [step for step in words.get("epilogue", NONE).split(",") if step != NONE]
    return steps[:1] == ["bias"], steps[steps[:1] == ["bias"] :]


_ACTIVATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "relu": lambda torch, value: value.relu_(),
    "gelu": lambda torch, value: torch.nn.functional.gelu(value),
    "gelu_tanh": lambda torch, value: torch.nn.functional.gelu(value, approximate="tanh"),
    "silu": lambda torch, value: torch.nn.functional.silu(value, inplace=True),
    "tanh": lambda torch, value: value.tanh_(),
    "sigmoid": lambda torch, value: value.sigmoid_(),
}


def _layout(words: Words) -> PackedLayout | None:
    return filter_layout(words.get("weight_layout", NONE), len(words["layout"]) - 2)


def is_packed(words: Words) -> bool:
    """Whether a weight has a blocked layout: torch reads any order of dimensions, but no blocks."""
    layout = _layout(words) if "layout" in words else None
    return layout is not None and bool(layout.blocks)


def filters(name: str, words: Words, weight: Any) -> Any:
    """A view of a convolution's unblocked weight with the dimensions in torch's order."""
    layout = _layout(words)
    if layout is not None:
        view = weight.permute([layout.order.index(dimension) for dimension in range(layout.dimensions)])
        return view.movedim(1, 0) if name in TRANSPOSED else view
    last = words["layout"].endswith("c")
    if name == "depthwise_conv2d":
        return (weight.movedim(-1, 0) if last else weight).unsqueeze(1)
    return weight.movedim((-2, -1), (0, 1) if name in TRANSPOSED else (1, 0)) if last else weight


@dataclass(frozen=True)
class ConvolutionOptions:
    """One number for each image dimension."""

    stride: list[int]
    pad: list[int]
    dilation: list[int]
    out_pad: list[int]
    groups: int

    def flat(self) -> ConvolutionOptions:
        """The options of a 1D convolution as those of an image with one row."""
        stride, dilation = [1, *self.stride], [1, *self.dilation]
        return ConvolutionOptions(stride, [0, *self.pad], dilation, [0, *self.out_pad], self.groups)


def options_of(name: str, words: Words, x: Any) -> ConvolutionOptions:
    """`x` has channels as its second dimension."""

    def each(word: str, usual: int) -> list[int]:
        value = words.get(word, usual)
        return [*value] if isinstance(value, tuple) else [value] * (x.dim() - 2)

    groups = x.shape[1] if name == "depthwise_conv2d" else words.get("groups", 1)
    return ConvolutionOptions(each("stride", 1), each("pad", 0), each("dilation", 1), each("out_pad", 0), groups)


def channels_second(words: Words, x: Any) -> Any:
    """A view with the dimensions in torch's order."""
    return x.movedim(-1, 1) if words["layout"].endswith("c") else x


def convolution(torch: Any, name: str, words: Words, x: Any, weight: Any, bias: Any = None) -> Callable[[], Any]:
    """A call with a new result in the layout of `x`; `weight` has the dimensions in torch's order."""
    image, functional = channels_second(words, x), torch.nn.functional
    options = options_of(name, words, image)
    named: dict[str, Any] = {"stride": options.stride, "padding": options.pad, "dilation": options.dilation}
    if name in TRANSPOSED:
        named["output_padding"] = options.out_pad
    kind = "conv_transpose" if name in TRANSPOSED else "conv"
    run = getattr(functional, f"{kind}{x.dim() - 2}d")
    call = partial(run, image, weight, bias, groups=options.groups, **named)
    return (lambda: call().movedim(1, -1)) if words["layout"].endswith("c") else call


def _bmm(torch: Any, words: Words, t: Tensors) -> Callable[[], Any]:
    return partial(torch.bmm, t["A"], t["B"].mT if words["layout"] == "nt" else t["B"], out=t["C"])


def _scan(torch: Any, words: Words, t: Tensors) -> Callable[[], Any]:
    return partial(torch.cumsum, t["x"], int(words["axis"]), dtype=t["y"].dtype, out=t["y"])


def _layer_norm(torch: Any, words: Words, t: Tensors) -> Callable[[], Any]:
    arguments = (t["x"], (words["cols"],), t["gamma"], t["beta"], words["eps"])
    return NewResult(partial(torch.nn.functional.layer_norm, *arguments), t["y"].copy_)


def _rms_norm(torch: Any, words: Words, t: Tensors) -> Callable[[], Any]:
    arguments = (t["x"], (words["cols"],), t["gamma"], words["eps"])
    return NewResult(partial(torch.nn.functional.rms_norm, *arguments), t["y"].copy_)


def _attention(torch: Any, words: Words, t: Tensors) -> NewResult:
    q, k, v, o = (t[name] if words["layout"] == "bhsd" else t[name].transpose(1, 2) for name in "qkvo")
    options = {"is_causal": words["causal"], "scale": words["scale"] or None, "enable_gqa": words["H"] != words["HK"]}
    options["attn_mask"] = t.get("bias")
    return NewResult(partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, **options), o.copy_)


def _grouped_gemm(torch: Any, words: Words, t: Tensors) -> Callable[[], Any]:
    """torch's own call where it has a kernel: bf16 on GPUs, with rows of whole 16 bytes. Else a loop over experts, for
    which the host waits for the offsets."""
    a, b, c, offsets = t["A"], t["B"], t["C"], t["offsets"]
    gradient = words["layout"] == "tn"
    left, right = a.mT if gradient else a, b.mT if words["layout"] == "nt" else b
    whole = all(size * a.element_size() % 16 == 0 for size in (a.shape[-1], b.shape[-1], c.shape[-1]))
    if a.is_cuda and words["dtype"] == "bf16" and whole and hasattr(torch, "_grouped_mm"):
        return NewResult(partial(torch._grouped_mm, left, right, offs=offsets), c.copy_)

    def looped() -> None:
        begin = 0
        for expert, end in enumerate(offsets.tolist()):
            if gradient and end == begin:
                c[expert].zero_()
            elif gradient:
                torch.mm(left[:, begin:end], right[begin:end], out=c[expert])
            elif end > begin:
                torch.mm(left[begin:end], right[expert], out=c[begin:end])
            begin = end

    return looped


_CALLS: Mapping[str, _Call] = {
    "attention": _attention,
    "bmm": _bmm,
    "grouped_gemm": _grouped_gemm,
    "gemv": lambda torch, words, t: partial(torch.mv, t["A"], t["x"], out=t["y"]),
    "scan": _scan,
    "mean": lambda torch, words, t: partial(torch.mean, t["x"], -1, out=t["y"]),
    "var": lambda torch, words, t: partial(torch.var, t["x"], -1, correction=0, out=t["y"]),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
}
