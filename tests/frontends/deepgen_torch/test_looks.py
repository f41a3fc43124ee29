"""Inspecting calls that stay with torch costs CPU time: if kernels save less, torch's own methods are restored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stand_in import Everything  # noqa: E402

import deepgen.torch as dt  # noqa: E402
from deepgen.frontends.torch.race import LOOKS, SECONDS, Looks  # noqa: E402

OWN = torch.Tensor.__mul__
SMALL = torch.ones(4)
LARGE = torch.ones(1 << 15)
PRICE = LOOKS * SECONDS


def look(times: int) -> None:
    for _ in range(times):
        SMALL * SMALL


def using(saves: float) -> Any:
    """A library whose kernels save this many seconds per call."""
    return dt.use(Everything(kinds=("expression",), torch_seconds=1e-3 + saves), race=False)


def test_what_earns_its_price_goes_on_and_what_does_not_gives_up() -> None:
    given_up: list[float] = []
    earned = 0.0
    looks = Looks(lambda: earned, lambda: given_up.append(earned))

    def window(more: float) -> None:
        nonlocal earned
        for _ in range(LOOKS):
            looks.take()
        earned += more
        with pytest.raises(IndexError):
            looks.take()
        looks.settle()

    window(1.5 * PRICE)
    window(0.6 * PRICE)  # plus what was left over
    assert not given_up
    window(0.5 * PRICE)
    assert len(given_up) == 1


def test_good_times_long_ago_do_not_count() -> None:
    earned = 1000 * PRICE
    given_up: list[int] = []
    looks = Looks(lambda: earned, lambda: given_up.append(1))
    for _ in range(7):
        looks.settle()
    assert given_up


@pytest.mark.parametrize(("large", "stays"), [(3, True), (1, False)])
def test_operators_are_looked_at_while_kernels_save_more_than_that_takes(large: int, stays: bool) -> None:
    with torch.no_grad(), using(saves=100e-6) as used:
        for _ in range(large):
            assert torch.equal(LARGE * LARGE.clone(), LARGE)
        look(LOOKS + 1)
        assert (torch.Tensor.__mul__ is not OWN) is stays
        assert torch.equal(SMALL * SMALL, SMALL) and torch.equal(LARGE * LARGE.clone(), LARGE)
    assert used.met[0].calls.served == large + stays
    assert ("are removed" in used.met[0].why) is not stays
    assert torch.Tensor.__mul__ is OWN


def test_other_kinds_and_functions_stay_and_so_does_the_decision() -> None:
    ours = using(saves=0.0)
    for _ in range(2):
        with ours, torch.no_grad():
            look(LOOKS + 1)
            assert torch.Tensor.__mul__ is OWN and "__mul__" not in vars(torch.Tensor)
            assert torch.Tensor.__add__ is not torch._C.TensorBase.__add__
            assert torch.mul.__module__ == "deepgen.frontends.torch.functions", (
                "the compiler tells libraries apart by these"
            )
    assert torch.Tensor.__add__ is torch._C.TensorBase.__add__


def test_a_scope_without_looks_left_is_given_up_at_the_first_calls_in_the_next() -> None:
    """A server's requests may each be short."""
    ours = using(saves=0.0)
    for _ in range(LOOKS // 64 + 1):
        with ours, torch.no_grad():
            look(64)
    with ours:
        assert torch.Tensor.__mul__ is OWN


def test_graphs_are_captured_with_all_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("capture_begin", "capture_end"):
        monkeypatch.setattr(torch.cuda.CUDAGraph, name, lambda graph: None)
    graph = SimpleNamespace()
    with torch.no_grad(), using(saves=0.0) as used:
        look(LOOKS + 1)
        torch.cuda.CUDAGraph.capture_begin(graph)
        LARGE * LARGE.clone()
        look(2 * LOOKS)
        assert torch.Tensor.__mul__ is not OWN
        torch.cuda.CUDAGraph.capture_end(graph)
        assert torch.Tensor.__mul__ is OWN
        LARGE * LARGE.clone()
    assert used.met[0].calls.served == 1


def test_nothing_is_compiled_again() -> None:
    def step(a: Any, b: Any) -> Any:
        return (a * b).mul(b) + a

    with torch.no_grad(), using(saves=0.0):
        compiled = torch.compile(step, backend="eager")
        want = compiled(SMALL, SMALL)
        look(LOOKS + 1)
        assert torch.Tensor.__mul__ is OWN
        with torch.compiler.set_stance("fail_on_recompile"):
            assert torch.equal(compiled(SMALL, SMALL), want)
