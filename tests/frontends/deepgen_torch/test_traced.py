"""torch modules as operators: a traced operator computes what the module does, and named operators are recognised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import deepgen as dg  # noqa: E402
import deepgen.torch as dt  # noqa: E402
from deepgen.operators import Operator  # noqa: E402
from deepgen.vocabulary import BadInput  # noqa: E402

F, nn = torch.nn.functional, torch.nn
X, Y, IMAGES, VOLUMES, LINES = (5, 12), (7, 12), (2, 6, 9, 8), (2, 4, 5, 6, 7), (3, 6, 20)


def drawn(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return function, tuple(drawn(*shape) for shape in shapes)


class Blocks(nn.Module):  # type: ignore[misc]
    """A block of a network: parameters, buffers, several operations."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(6, 4, 3, padding=1), nn.BatchNorm2d(4).eval()
        self.norm.running_mean.fill_(0.25)

    def forward(self, x: Any) -> Any:
        return F.relu(self.norm(self.conv(x))).mean((2, 3))


def attention(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v)


def exclusive(x: Any) -> Any:
    return torch.cat((torch.zeros_like(x[:, :1]), torch.cumsum(x[:, :-1], 1)), 1)


MASK, CLASSES = drawn(*X) > 0, torch.tensor([3, 0, 11, 5, 5])
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "scaled": of(lambda a: a * 1.5 + 2, X),
    "spread": of(lambda a, b: a[:, None] * b, (5,), X),
    "activations": of(lambda a: F.selu(a) + F.elu(a, 0.5) + F.gelu(a) + F.gelu(a, approximate="tanh") + F.silu(a), X),
    "bounded": of(lambda a: F.hardsigmoid(a) + F.hardtanh(a) + F.leaky_relu(a) + F.relu(a) + a.clamp(min=0.1), X),
    "small": of(lambda a: F.softplus(a * 1e-3) + torch.expm1(a * 1e-4) + torch.log1p(a.abs() * 1e-4), X),
    "powers": of(lambda a: (a**2 + a.abs() ** 3 + a.abs() ** 1.5).sqrt() / (1 + a.abs()) ** 0.5, X),
    "conditions": of(lambda a: torch.where((a > 0) & ~(a > 1), a, -a), X),
    "masked": (lambda a, mask: torch.cumsum(a * mask, 1), (drawn(*X), MASK)),
    "softmax": of(lambda a: torch.log_softmax(a, 0) + torch.softmax(a, 0), X),
    "reductions": of(lambda a: a.sum(1, keepdim=True) + a.mean(1, keepdim=True) + a.amax(0) - a.amin(), X),
    "norms": of(lambda a: a / a.norm() + a / a.norm(p=1, dim=1, keepdim=True) + F.normalize(a), X),
    "variance": of(lambda a: a.var(0) + a.std(0, correction=0) + a.prod(0), X),
    "middle": of(lambda a: a.max(1)[0] + a.min(1).values, (3, 5, 4)),
    "argmax": of(lambda a: torch.argmax(a, 1), (3, 5, 4)),
    "argmin": of(torch.argmin, X),
    "layer_norm": of(lambda a, w, b: F.layer_norm(a, (6, 20), w, b), LINES, (6, 20), (6, 20)),
    "rms_norm": of(lambda a, w: F.rms_norm(a, (12,), w) * 2, X, (12,)),
    "group_norm": of(lambda a, w, b: F.group_norm(a, 3, w, b), IMAGES, (6,), (6,)),
    "instance_norm": of(F.instance_norm, IMAGES),
    "batch_norm": of(lambda a: F.batch_norm(a, None, None, training=True), IMAGES),
    "block": (Blocks(), (drawn(*IMAGES),)),
    "channels_last": (Blocks(), (drawn(*IMAGES).contiguous(memory_format=torch.channels_last),)),
    "cumprod": of(lambda a: torch.cumprod(a, 0), X),
    "reversed": of(lambda a: torch.cumsum(a.flip(1), 1).flip(1), X),
    "exclusive": of(exclusive, X),
    "mse": of(F.mse_loss, X, X),
    "huber": of(F.smooth_l1_loss, X, X),
    "hinge": of(lambda a, b: torch.clamp(1 - a * b, min=0).mean(), (5, 12), (12,)),
    "divergence": of(lambda a, b: F.kl_div(a.log_softmax(1), b.softmax(1), reduction="batchmean"), X, X),
    "cosine": of(F.cosine_similarity, X, X),
    "triplet": of(F.triplet_margin_loss, X, X, X),
    "classes": (F.cross_entropy, (drawn(*X), CLASSES)),
    "attention": of(attention, (2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)),
    "triangle": of(lambda a, b: torch.triu(a @ b), (6, 6), (6, 6)),
    "linear": (nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4)), (drawn(*X),)),
    "grouped": of(lambda a, w: F.conv2d(a, w, stride=(2, 1), padding=1, groups=3), IMAGES, (12, 2, 3, 3)),
    "separable": of(lambda a, w, v: F.conv2d(F.conv2d(a, w, groups=6), v), IMAGES, (6, 1, 3, 3), (5, 6, 1, 1)),
    "transposed_1d": of(
        lambda a, w: F.conv_transpose1d(a, w, stride=2, padding=1, dilation=2, output_padding=1), LINES, (6, 4, 3)
    ),
    "transposed_3d": of(
        lambda a, w: F.conv_transpose3d(a, w, stride=(2, 1, 2), padding=(1, 0, 2), groups=2), VOLUMES, (4, 3, 3, 2, 5)
    ),
    "max_pool": of(lambda a: F.max_pool1d(a, 4, 1, padding=2, dilation=3), LINES),
    "max_pool_up": of(lambda a: F.max_pool2d(a, 2, 3, ceil_mode=True), IMAGES),
    "attention and more": of(lambda a: attention(a, a, a).transpose(1, 2).flatten(2).relu(), (2, 3, 7, 8)),
    "avg_pool": of(lambda a: F.avg_pool1d(a, 4, 1, 2), LINES),
    "avg_pool_3d": of(lambda a: F.avg_pool3d(a, 3, 2, 1), VOLUMES),
}


def computed(call: dt.Traced, inputs: tuple[Any, ...]) -> Any:
    """Computed with the operator's own reference."""
    arguments = [one.numpy() for one in call.arguments(*inputs)]
    tensors = call.operator.tensors()
    answers = call.operator.reference(dict(zip((one.name for one in tensors), arguments, strict=False)))
    return call.result(torch.from_numpy(np.ascontiguousarray(answers[tensors[-1].name].values)))


@pytest.mark.parametrize("name", CASES)
def test_what_is_traced_computes_what_the_module_does(name: str) -> None:
    module, inputs = CASES[name]
    with torch.no_grad():
        want = module(*inputs)
    out = computed(dt.traced(module, *inputs), inputs)
    assert out.shape == want.shape
    torch.testing.assert_close(out, want.to(out.dtype), rtol=2e-5, atol=1e-5)


# Products and convolutions by themselves have their own families, whatever views precede or follow them.
NAMED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "mm": (*of(lambda a, b: a.T @ b.T, (12, 5), (7, 12)), "gemm f32 tt 5x7x12"),
    "rows": (*of(lambda a, b: torch.einsum("bijl,lk->bijk", a, b), (2, 3, 5, 4), (4, 6)), "gemm f32 nn 30x6x4"),
    "batch": (*of(torch.bmm, (3, 5, 4), (3, 4, 6)), "gemm f32 nn batch 3 of 5x6x4"),
    "softmax": (*of(lambda a: torch.softmax(a, -1), X), "softmax f32 rows=5 cols=12"),
    "conv2d": (*of(F.conv2d, IMAGES, (4, 6, 3, 3)), "conv2d f32 nchw 2x9x8x6 to 4 by 3x3"),
    "depthwise": (*of(lambda a, w: F.conv2d(a, w, groups=6), IMAGES, (6, 1, 3, 3)), "depthwise_conv2d f32"),
    "conv1d": (nn.Conv1d(6, 4, 3), (drawn(*LINES),), "conv1d f32"),
    "attention": (*of(attention, *[(2, 3, 7, 8)] * 3), "attention f32 bhsd batch 2, 3 heads, 7, width 8"),
    "causal": (
        *of(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.5), (2, 3, 7, 8)),
        "attention f32 bhsd batch 2, 3 heads, 7, width 8 causal scale=0.5",
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_named_operators_are_recognized(name: str) -> None:
    module, inputs, text = NAMED[name]
    call = dt.traced(module, *inputs)
    assert call.operator.describe().startswith(text)
    with torch.no_grad():
        want = module(*inputs)
    torch.testing.assert_close(computed(call, inputs), want.to(torch.float64), rtol=2e-5, atol=2e-6)


def factorings(size: int) -> st.SearchStrategy[tuple[int, ...]]:
    every = [(a, b, size // a // b) for a in range(1, size + 1) for b in range(1, size + 1) if size % (a * b) == 0]
    return st.sampled_from(every)


@settings(max_examples=12, deadline=None)
@given(factorings(48), factorings(48), factorings(48), st.permutations(range(3)), st.integers(0, 2))
def test_views_of_any_shape_meet(
    first: tuple[int, ...], second: tuple[int, ...], third: tuple[int, ...], order: list[int], dim: int
) -> None:
    def module(a: Any, b: Any) -> Any:
        turned = (a.exp().reshape(second) + b).permute(order)
        flat = turned.reshape(third)
        return (flat / flat.sum(dim, keepdim=True)).reshape(6, 8)[1:, ::3]

    inputs = (drawn(*first), drawn(*second))
    out = computed(dt.traced(module, *inputs), inputs)
    torch.testing.assert_close(out, module(*inputs).to(out.dtype), rtol=1e-4, atol=1e-5)


def test_formats_of_sixteen_bits_are_computed_in_f32_and_rounded_once() -> None:
    x = drawn(*X, dtype=torch.bfloat16)
    call = dt.traced(lambda a: torch.tanh(a) * 3 + 1, x)
    assert {stage.dtype for stage in call.operator.expression().stages} == {"bf16"}
    assert "f32" in dg.text(call.operator.expression())


def test_equal_modules_are_equal_operators() -> None:
    function, inputs = CASES["layer_norm"]
    assert dt.traced(function, *inputs).operator == dt.traced(function, *inputs).operator


def test_what_is_no_expression_is_refused_by_its_name() -> None:
    with pytest.raises(BadInput, match="sort"):
        dt.traced(lambda a: torch.sort(a)[0], drawn(*X))
    with pytest.raises(BadInput, match="several results"):
        dt.traced(lambda a: (a, a + 1), drawn(*X))
    with pytest.raises(BadInput, match="with gaps"):
        dt.traced(lambda a: a + 1, drawn(5, 24)[:, ::2])


def test_a_module_is_tuned_loaded_and_called(tmp_path: Path) -> None:
    module, inputs = CASES["exclusive"]
    call = dt.traced(module, *inputs)
    assert isinstance(call.operator, Operator)
    study = dg.tune(call.operator, target="cpu", trials=2, baselines=False, out=tmp_path, keep_top=1)
    kernel = study.best().load()
    out = call.result(kernel(*call.arguments(*inputs)))
    torch.testing.assert_close(out, module(*inputs), rtol=1e-4, atol=1e-5)
