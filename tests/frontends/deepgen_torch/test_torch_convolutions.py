"""torch convolutions as operators: what each call computes, recorded, and by a library's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stand_in import Everything  # noqa: E402

import deepgen.torch as dt  # noqa: E402
from deepgen.frontends.torch.calls import KINDS, kinds_of  # noqa: E402

F, LAST = torch.nn.functional, torch.channels_last
OPERATORS = ("conv1d", "conv2d", "conv3d", "dilated_conv2d", "depthwise_conv2d", "conv_transpose2d")


def random(*shape: int, form: Any = None) -> Any:
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))
    return x if form is None else x.contiguous(memory_format=form)


X, W, BIAS = (2, 6, 9, 8), (4, 6, 3, 2), (4,)
CALLS: dict[str, tuple[str, Callable[[], tuple[Any, ...]], str]] = {
    "plain": ("conv2d", lambda: (random(*X), random(*W), None, 1, 0, 1, 1), "conv2d f64 nchw 2x9x8x6 to 4 by 3x2"),
    "pairs": ("conv2d", lambda: (random(*X), random(*W), None, (2, 1), (0, 3), (1, 1), 1),
              "conv2d f64 nchw 2x9x8x6 to 4 by 3x2 stride 2x1 pad 0x3"),
    "same": ("conv2d", lambda: (random(*X), random(4, 6, 1, 7), None, 1, "same", 1, 1),
             "conv2d f64 nchw 2x9x8x6 to 4 by 1x7 pad 0x3"),
    "valid": ("conv2d", lambda: (random(*X), random(*W), None, [1], "valid", 1, 1),
              "conv2d f64 nchw 2x9x8x6 to 4 by 3x2"),
    "channels last": ("conv2d", lambda: (random(*X, form=LAST), random(*W, form=LAST), None, 1, (1, 0), 1, 1),
                      "conv2d f64 nhwc 2x9x8x6 to 4 by 3x2 pad 1x0 ohwi"),
    "an image with channels last": ("conv2d", lambda: (random(*X, form=LAST), random(*W), None, 1, 0, 1, 1),
                                    "conv2d f64 nhwc 2x9x8x6 to 4 by 3x2 oihw"),
    "a bias": ("conv2d", lambda: (random(*X), random(*W), random(*BIAS), 1, 0, 1, 1),
               "dilated_conv2d f64 N=2 H=9 W=8 CI=6 CO=4 k=3x2 dilation=1 layout=nchw epilogue=bias"),
    "dilated groups": ("conv2d", lambda: (random(*X, form=LAST), random(4, 3, 3, 2, form=LAST), None, 1, 0, (2, 1), 2),
                       "dilated_conv2d f64 N=2 H=9 W=8 CI=6 CO=4 k=3x2 dilation=2x1 groups=2 weight_layout=ohwi"),
    "depthwise": ("conv2d", lambda: (random(*X), random(6, 1, 3, 3), random(6), 1, 1, 1, 6),
                  "depthwise_conv2d f64 N=2 H=9 W=8 C=6 k=3 pad=1 layout=nchw epilogue=bias"),
    "one dimension": ("conv1d", lambda: (random(2, 6, 20), random(4, 6, 3), random(*BIAS), (2,), (1,), (2,), 1),
                      "conv1d f64 N=2 L=20 CI=6 CO=4 k=3 stride=2 pad=1 dilation=2 layout=ncl epilogue=bias"),
    "three": ("conv3d", lambda: (random(1, 3, 4, 5, 6), random(2, 3, 1, 3, 3), None, 1, (0, 1, 1), 1, 1),
              "conv3d f64 N=1 D=4 H=5 W=6 CI=3 CO=2 k=1x3x3 pad=0x1x1 layout=ncdhw"),
    "transposed": ("conv_transpose2d", lambda: (random(*X), random(6, 4, 3, 2), None, (2, 1), (1, 0), (1, 0), 1, 1),
                   "conv_transpose2d f64 N=2 H=9 W=8 CI=6 CO=4 k=3x2 stride=2x1 pad=1x0 out_pad=1x0 layout=nchw"),
    "transposed, channels last": (
        "conv_transpose2d", lambda: (random(*X, form=LAST), random(6, 4, 3, 2, form=LAST), None, 2, 0, 0, 1, 1),
        "conv_transpose2d f64 N=2 H=9 W=8 CI=6 CO=4 k=3x2 stride=2 weight_layout=ihwo"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_an_operator_computes_what_the_call_does(name: str) -> None:
    kind, args, says = CALLS[name]
    asked = KINDS[kind](*args())
    assert asked is not None and asked.operator.describe() == says
    assert kinds_of(asked.operator) == (kind,)
    want = getattr(F, kind)(*args())
    arrays = dict(zip(("x", "weight", "bias"), (one.numpy() for one in asked.tensors), strict=False))
    assert all(a.shape == t.shape for a, t in zip(arrays.values(), asked.operator.tensors(), strict=False))
    got = torch.from_numpy(asked.operator.reference(arrays)["y"].values.copy())
    strides = asked.strides or want.stride()
    torch.testing.assert_close(got.as_strided(asked.shape, strides), want, rtol=1e-10, atol=1e-10)
    assert strides == want.stride()


@pytest.mark.parametrize(
    "args",
    [
        (random(*X), random(4, 6, 3, 3), None, 1, "other", 1, 1),
        (random(*X), random(4, 6, 2, 2), None, 1, "same", 1, 1),
        (random(6, 9, 8), random(*W), None, 1, 0, 1, 1),
        (random(*X), random(*W, form=LAST), None, 1, 0, 1, 1),
        (random(*X)[:, :, ::2], random(*W), None, 1, 0, 1, 1),
        (random(*X), random(*W).float(), None, 1, 0, 1, 1),
        (random(*X), random(4, 6, 10, 2), None, 1, 0, 1, 1),
    ],
    ids=["another padding", "more at the end", "no batch", "mixed", "a slice", "formats", "too large"],
)
def test_other_calls_stay_with_torch(args: tuple[Any, ...]) -> None:
    assert KINDS["conv2d"](*args) is None


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, (1, 7), padding=(0, 3), bias=False)
        self.second = torch.nn.Conv2d(8, 8, 3, stride=(2, 1), padding=1)
        self.third = torch.nn.ConvTranspose2d(8, 4, 2, stride=2)

    def forward(self, x: Any) -> Any:
        return self.third(torch.relu(self.second(self.first(x))))


@pytest.mark.parametrize("form", [torch.contiguous_format, LAST])
def test_a_model_is_recorded_and_served(form: Any) -> None:
    torch.manual_seed(1)
    model, x = Model().to(memory_format=form), torch.randn(2, 3, 8, 9).contiguous(memory_format=form)
    with torch.no_grad(), dt.record() as work:
        want = model(x)
    recorded = {part.what for part in work.work.tunable()}
    assert {one.name for one in recorded} >= {"conv2d", "dilated_conv2d", "conv_transpose2d"}
    with torch.no_grad(), dt.use(Everything(kinds=OPERATORS), race=False) as used:
        first, again = model(x), model(x)
    served = {met.operator for met in used.met if met.ours}
    assert len(served) == 3 and served <= recorded
    assert all(met.calls.served == 2 for met in used.met)
    for result in (first, again):
        torch.testing.assert_close(result, want)
        assert result.stride() == want.stride()
    assert np.isfinite(first.numpy()).all()


def test_with_gradients_torch_serves() -> None:
    model, x = Model(), torch.randn(2, 3, 8, 9)
    want = torch.autograd.grad(model(x).sum(), [*model.parameters()])
    with dt.use(Everything(kinds=OPERATORS), race=False):
        got = torch.autograd.grad(model(x).sum(), [*model.parameters()])
    torch.testing.assert_close(got, want)
