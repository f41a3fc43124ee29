"""torch.ops.deepgen.*: gradients, torch.compile without a graph break, torch.export."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stand_in import Everything  # noqa: E402

import deepgen.torch as dt  # noqa: E402

F = torch.nn.functional
OPS: dict[str, tuple[Any, Any, tuple[tuple[int, ...], ...]]] = {
    "linear": (dt.linear, F.linear, ((2, 6, 8), (5, 8), (5,))),
    "mm": (dt.mm, torch.mm, ((6, 8), (8, 5))),
    "bmm": (dt.bmm, torch.bmm, ((3, 6, 8), (3, 8, 5))),
    "matmul": (dt.matmul, torch.matmul, ((2, 6, 8), (8, 5))),
    "addmm": (dt.addmm, torch.addmm, ((5,), (6, 8), (8, 5))),
}


def tensors(shapes: tuple[tuple[int, ...], ...]) -> list[Any]:
    chance = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=chance, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("served", [False, True], ids=["torch", "kernels"])
def test_results_and_gradients_are_torchs(name: str, served: bool) -> None:
    ours, theirs, shapes = OPS[name]
    given = tensors(shapes)
    want = theirs(*given)
    wanted = torch.autograd.grad(want.sin().sum(), given)
    library = Everything(kinds=("gemm",) if served else ())
    with dt.use(library, race=False):
        found = ours(*given)
        gradients = torch.autograd.grad(found.sin().sum(), given)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(gradients, wanted)


def test_the_operators_keep_torchs_rules() -> None:
    """Fake kernels, schemas and registrations, checked by torch's own opcheck."""
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for ours, _, shapes in OPS.values():
        torch.library.opcheck(ours.default, tuple(tensors(shapes)), test_utils=tests)


def test_training_goes_through_kernels_where_much_is_gained() -> None:
    layer, x = torch.nn.Linear(8, 5), torch.randn(6, 8, requires_grad=True)
    with dt.use(Everything(torch_seconds=1.0), race=False) as used:
        layer(x).sin().sum().backward()
    assert {met.operator.describe() for met in used.met} >= {"gemm f32 nt 6x5x8 bias", "gemm f32 nn 6x8x5"}
    gradient = x.grad.clone()
    x.grad = None
    layer(x).sin().sum().backward()
    torch.testing.assert_close(gradient, x.grad)


def test_without_a_race_torch_serves_what_it_is_the_faster_at_by_the_librarys_times() -> None:
    """A library lets its own kernel serve if it is as fast within the noise."""
    x = torch.randn(6, 8)
    with torch.no_grad(), dt.use(Everything(torch_seconds=0.99e-3), race=False) as used:
        torch.nn.functional.linear(x, x)
    assert [met.ours for met in used.met] == [False]


def test_a_model_with_our_operators_is_exported() -> None:
    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(5, 8))

        def forward(self, x: Any) -> Any:
            return dt.linear(x, self.weight).relu()

    model, x = Model(), torch.randn(6, 8)
    exported = torch.export.export(model, (x,), strict=False)
    assert "torch.ops.deepgen.linear" in exported.graph_module.code
    with torch.no_grad():
        torch.testing.assert_close(exported.module()(x), model(x))


def test_compiled_code_calls_kernels_without_a_break() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8, bias=False))
    x = torch.randn(20, 24)
    with torch.no_grad():
        want = model(x)
        with dt.use(Everything(kinds=("gemm",)), race=False) as used:
            found = torch.compile(model, fullgraph=True)(x)
        assert [met.operator.describe() for met in used.met if met.ours] == [
            "gemm f32 nt 20x16x24 relu bias",
            "gemm f32 nt 20x8x16",
        ]
        torch.testing.assert_close(found, want)
