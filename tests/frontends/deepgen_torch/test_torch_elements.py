"""Elementwise operators on large tensors: kernels serve views as well, and small ones are left to torch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from stand_in import Everything  # noqa: E402

import deepgen.torch as dt  # noqa: E402
from deepgen.frontends.torch import calls, elements, routes  # noqa: E402

F = torch.nn.functional
TOKENS, HEADS, WIDTH = 128, 8, 64


def random(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def heads() -> Any:
    """As in attention: the heads are the first dimension, but tokens come first in memory."""
    return random(1, TOKENS, HEADS * WIDTH).view(1, TOKENS, HEADS, WIDTH).transpose(1, 2)


def turned(x: Any, cos: Any, sin: Any) -> Any:
    """Rotated by a token's position."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


COS, SIN, SCALE = random(TOKENS, WIDTH), random(TOKENS, WIDTH + 1)[:, 1:].contiguous(), torch.tensor(0.3)
CALLS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "a view times what is the same for all heads": (lambda: heads() * COS, ["mul bf16 to out 128x8x64"]),
    "the same, by a method": (lambda: heads().mul(COS), ["mul bf16 to out 128x8x64"]),
    "the same, by a function": (lambda: torch.mul(heads(), COS), ["mul bf16 to out 128x8x64"]),
    "a sum of tensors in two orders": (lambda: heads() + heads().contiguous(), ["add bf16 to out 128x8x64"]),
    "what is contiguous": (lambda: heads().contiguous() - random(1, HEADS, TOKENS, WIDTH), ["sub bf16 to out 65536"]),
    "a quotient by a scale of another format": (lambda: random(128, 512) / SCALE, ["div bf16_f32 to out 65536"]),
    "a negative half": (lambda: -random(1, TOKENS, HEADS * 128).view(1, TOKENS, HEADS, 128).transpose(1, 2)[..., 64:],
                        ["neg bf16 to out 1024x64"]),
    "silu": (lambda: torch.nn.SiLU()(random(128, 512, dtype=torch.float32)), ["silu f32 to out 65536"]),
    "two after each other": (lambda: torch.cat((heads(), heads()), -1), ["cat bf16 to out 8x128x128"]),
    "a token more": (lambda: torch.cat([random(2, 4, 128, 64), random(2, 4, 1, 64)], dim=2),
                     ["cat bf16 to out 8x129x64"]),
}  # fmt: skip


def without_digest(text: str) -> str:
    return text.rpartition(" (")[0]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_gives_what_torch_gives_in_the_same_layout(name: str) -> None:
    call, operators = CALLS[name]
    with torch.no_grad():
        want = call()
        with dt.use(Everything(kinds=("expression",)), race=False) as used:
            for _ in range(2):
                found = call()
                torch.testing.assert_close(found, want, rtol=0.008, atol=0)
                assert found.stride() == want.stride() and found.dtype == want.dtype
    assert [without_digest(met.operator.describe()) for met in used.met] == operators
    assert used.met[0].ours and used.met[0].calls.served == 2, used.met


def test_a_rotation_by_kernels_is_bit_for_bit_torchs() -> None:
    with torch.no_grad():
        want = turned(heads(), COS, SIN)
        with dt.use(Everything(kinds=("expression",)), race=False) as used:
            found = turned(heads(), COS, SIN)
    assert torch.equal(found, want) and found.stride() == want.stride()
    assert sum(met.calls.served for met in used.met) == 5


def test_small_calls_on_a_gpu_are_looked_at_in_captures_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for the CPU: a block that decodes tokens once became slower because of inspecting them."""
    a, b = random(128, 512), random(128, 512)
    known = calls.KINDS["mul"](a, b)

    class OnGpu(Everything):
        def list(self) -> Any:
            return [SimpleNamespace(operator=known.operator, target=SimpleNamespace(runner="cuda"))]

    begin, end = torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.capture_end
    graph, failing = SimpleNamespace(fails=False), SimpleNamespace(fails=True)

    def told(graph: Any) -> None:
        if graph.fails:
            raise RuntimeError("the stream is captured already")

    for name in ("capture_begin", "capture_end"):
        monkeypatch.setattr(torch.cuda.CUDAGraph, name, told)
    with torch.no_grad(), dt.use(OnGpu(kinds=("expression",)), race=False) as used:

        def served(count: int) -> int:
            before = sum(met.calls.served for met in used.met)
            for _ in range(count):
                a * b
            return sum(met.calls.served for met in used.met) - before

        assert served(40) == 16, "the first ones, so that graphs find their kernels ready"
        torch.cuda.CUDAGraph.capture_begin(graph)
        assert served(40) == 40
        torch.cuda.CUDAGraph.capture_end(graph)
        assert served(40) == 0
        with pytest.raises(RuntimeError, match="captured already"):
            torch.cuda.CUDAGraph.capture_begin(failing)
        assert served(40) == 0
    monkeypatch.undo()
    assert (torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.capture_end) == (begin, end)


UNSERVED: dict[str, Callable[[], Any]] = {
    "few elements": lambda: random(4, 8) * random(4, 8),
    "a plain number": lambda: random(128, 512) * 2.0,
    "a number first": lambda: 2.0 - random(128, 512),
    "integers": lambda: torch.ones(1 << 16, dtype=torch.int64) + torch.ones(1 << 16, dtype=torch.int64),
    "two formats": lambda: random(128, 512) + random(128, 512, dtype=torch.float32),
    "what is smaller than the result first": lambda: random(512) * random(128, 512),
    "a factor": lambda: torch.add(random(128, 512), random(128, 512), alpha=2),
    "by names": lambda: torch.mul(input=random(128, 512), other=random(512)),
    "whole quotients": lambda: torch.div(random(128, 512), random(512), rounding_mode="floor"),
    "three tensors": lambda: torch.cat([random(128, 512)] * 3),
    "into a tensor": lambda: torch.cat((random(128, 512), random(1, 512)), out=torch.empty(129, 512).bfloat16()),
    "into one's own": lambda: [one := random(128, 512), torch.neg(random(512, 128).view(128, 512), out=one)][0],
    "by an axis": lambda: torch.cat((random(128, 512), random(1, 512)), axis=0),
    "by names only": lambda: torch.cat(tensors=[random(128, 512)] * 3, dim=1),
    "in place": lambda: F.silu(random(128, 512), inplace=True),
    "vmap": lambda: torch.vmap(torch.mul)(random(128, 512), random(128, 512)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSERVED)
def test_what_kernels_do_not_serve_stays_with_torch(name: str) -> None:
    want = UNSERVED[name]()
    with dt.use(Everything(kinds=("expression",)), race=False) as used:
        assert torch.equal(UNSERVED[name](), want)
    assert not any(met.ours for met in used.met)


def test_gradients_are_torchs() -> None:
    x, y = (random(128, 512).requires_grad_() for _ in range(2))
    with dt.use(Everything(kinds=("expression",)), race=False) as used:
        (x * y).sum().backward()
        detached = x.detach() * y.detach()
    assert torch.equal(x.grad, y) and torch.equal(detached, (x * y).detach())
    assert [met.calls.served for met in used.met] == [1]


def test_errors_are_torchs_own() -> None:
    with dt.use(Everything(kinds=("expression",)), race=False):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="must match the size"):
                random(128, 512) + random(128, 511)
            with pytest.raises(TypeError):
                random(128, 512) * "two"
            with pytest.raises(TypeError):
                torch.mul()
    assert torch.Tensor.__mul__ is torch._C.TensorBase.__mul__


def test_compiled_code_keeps_them_to_itself() -> None:
    """The compiler fuses elementwise operators: a library's kernel would prevent that."""
    with torch.no_grad(), dt.use(Everything(kinds=("expression",)), race=False) as used:
        found = torch.compile(turned, fullgraph=True, backend="aot_eager")(heads(), COS, SIN)
    assert used.met == ()
    torch.testing.assert_close(found, turned(heads(), COS, SIN))


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """A tensor of a shape, or broadcast along some dimensions, with any memory order, perhaps a slice."""
    own = [size if draw(st.integers(0, 3)) else 1 for size in shape]
    order = draw(st.permutations(range(len(own))))
    more = [draw(st.sampled_from((0, 0, 3))) for _ in own]
    memory = torch.arange(1, 1 + _count([own[d] + more[d] for d in order])).remainder(7).add(1).float()
    wide = memory.view([own[d] + more[d] for d in order])
    back = [order.index(d) for d in range(len(own))]
    return wide.permute(back)[tuple(slice(extra, None) for extra in more)]


def _count(sizes: list[int]) -> int:
    return int(torch.Size(sizes).numel())


@given(data=st.data(), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_the_expression_of_any_views_means_what_torch_computes(data: st.DataObject, sizes: list[int]) -> None:
    """numpy's result for the expression, for the memory that a kernel would get, in torch's layout."""
    shape = tuple(sizes)
    kind = data.draw(st.sampled_from(sorted(elements.KINDS)))
    tensors = [data.draw(views(shape)) for _ in range(elements.TENSORS[kind])]
    if kind == "cat":
        dim = data.draw(st.integers(-len(shape), len(shape) - 1))
        tensors = [one.expand(shape) for one in tensors]
        args, want = (dim, *tensors), torch.cat(tensors, dim)
    else:
        args = tuple(tensors)
        want = getattr(F if kind == "silu" else torch, kind)(*args)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elements, "LEAST", 0)
        asked = calls.KINDS[kind](*args)
    if asked is None:
        assert want.numel() == 1 or want.numel() > tensors[0].numel()
        return
    names = [tensor.name for tensor in asked.operator.definition.tensors]
    given = {name: line.numpy() for name, line in zip(names, asked.tensors, strict=True)}
    answer = asked.operator.reference(given)["out"].values
    found = torch.as_tensor(answer).flatten().float().as_strided(asked.shape, asked.strides)
    torch.testing.assert_close(found, want)
    assert [s for s, n in zip(want.stride(), want.shape, strict=True) if n > 1] == [
        s for s, n in zip(asked.strides, want.shape, strict=True) if n > 1
    ]


def test_scripts_are_made_of_torchs_own_functions() -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, x).mul(torch.cat((x, x))[: x.size(0)])

    x = random(64, 512, dtype=torch.float32)
    with dt.use(Everything(kinds=("expression",)), race=False):
        assert torch.equal(torch.jit.script(doubled)(x), doubled(x))


def test_shapes_that_a_library_has_no_kernel_for_are_not_even_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that grows by a token has a new shape at every step: deciding on it would take longer than the step."""
    past, token = random(2, 4, 128, 64), random(2, 4, 1, 64)
    known = calls.KINDS["cat"](2, past, token)

    class Listed(Everything):
        def list(self) -> Any:
            return [SimpleNamespace(operator=known.operator, target=SimpleNamespace(runner="cpu"))]

    with torch.no_grad(), dt.use(Listed(kinds=("expression",)), race=False) as used:
        assert torch.Tensor.__mul__ is torch._C.TensorBase.__mul__
        torch.cat((past, token), 2)
        monkeypatch.setattr(routes.Router, "route", None)
        for length in range(129, 133):
            past = torch.cat((random(2, 4, length, 64), token), 2)
    assert [met.calls.served for met in used.met] == [1]
