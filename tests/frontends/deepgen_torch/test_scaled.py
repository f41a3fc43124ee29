"""Products of 8-bit floats with scales, torch._scaled_mm: a library's kernel serves them, compiled or not."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stand_in_scaled import K, Layer, Library, M, N, Product  # noqa: E402

import deepgen  # noqa: E402
import deepgen.torch as dt  # noqa: E402
from deepgen.frontends.torch.ops import scaled_mm  # noqa: E402
from deepgen.frontends.torch.scaled import Factors  # noqa: E402
from deepgen.operators import gemm  # noqa: E402


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_scaled_product_is_served_with_the_scales_as_they_are(compiled: bool) -> None:
    layer, x, kernel = Layer(), torch.randn(M, K), Product()
    with torch.no_grad(), dt.use(Library(kernel), race=False) as used:  # type: ignore[arg-type]
        run = torch.compile(layer, fullgraph=True) if compiled else layer
        found = [run(x), run(x)]
        assert used.met[0].ours, used.met[0].why
        layer.scale.fill_(2.0)
        other = run(x)
        calls = kernel.calls
    assert calls >= 3
    with torch.no_grad():
        torch.testing.assert_close(other, layer(x))
        layer.scale.fill_(0.5)
        torch.testing.assert_close(found, [layer(x)] * 2)
    assert kernel.calls == calls, "torch serves once the library is left"


def test_scales_whose_data_was_exchanged_are_read_again() -> None:
    """torch does not count that as a change: a product of the old scales was once reused."""
    layer, x = Layer(), torch.randn(M, K)
    with torch.no_grad(), dt.use(Library(Product()), race=False) as used:  # type: ignore[arg-type]
        for value in (0.5, 2.0, 4.0):
            for scale in (layer.scale, layer.of_input):
                scale.data = torch.tensor(value)
                layer(x)
                found = layer(x)
                small = (x / layer.of_input).to(torch.float8_e4m3fn)
                want = scaled_mm(small, layer.weight.t(), layer.of_input * layer.scale, False).relu()
                torch.testing.assert_close(found, want)
    assert used.met[0].calls.served == 12


def test_arguments_may_be_given_by_their_names() -> None:
    layer = Layer()
    given = {"input": torch.randn(M, K).to(torch.float8_e4m3fn), "mat2": layer.weight.t(), "scale_a": layer.of_input,
             "scale_b": layer.scale, "out_dtype": torch.bfloat16}  # fmt: skip
    want = torch._scaled_mm(**given)
    others: list[dict[str, Any]] = [{"out_dtype": torch.float32}, {"bias": torch.ones(N).bfloat16()}]
    wants = [torch._scaled_mm(**{**given, **other}) for other in others]
    with torch.no_grad(), dt.use(Library(Product()), race=False) as used:  # type: ignore[arg-type]
        for _ in range(2):
            torch.testing.assert_close(torch._scaled_mm(**given), want)
            for other, same in zip(others, wants, strict=True):
                assert torch.equal(torch._scaled_mm(**{**given, **other}), same)
    assert [met.calls.served for met in used.met if met.ours] == [2]


def test_scales_are_multiplied_once_while_they_stay() -> None:
    factors, a, b = Factors(), torch.tensor(2.0), torch.tensor(3.0)
    first = factors.product(a, b, inf)
    assert first is factors.product(a, b, inf) and first.item() == 6.0
    a.mul_(2.0)
    assert factors.product(a, b, inf).item() == 12.0
    assert factors.product(a, torch.tensor(5.0), inf).item() == 20.0
    with torch.inference_mode():
        unknown = torch.tensor(7.0)
        assert factors.product(unknown, b, inf).item() == 21.0
        unknown.fill_(1.0)
        assert factors.product(unknown, b, inf).item() == 3.0


def test_what_a_cuda_graph_of_the_compilers_writes_is_multiplied_each_time() -> None:
    """It returns the same tensor from replay to replay, which torch does not count as a change."""
    factors, result, b = Factors(), torch.tensor(2.0), torch.tensor(3.0)
    torch._C._set_cached_tensors_enabled(True)
    torch._C._add_cached_tensor(result)
    try:
        for value in (2.0, 4.0):
            with torch.autograd._unsafe_preserve_version_counter(result):
                result.fill_(value)
            assert factors.product(result, b, inf).item() == value * 3.0
    finally:
        torch._C._remove_cached_tensor(result)
        torch._C._set_cached_tensors_enabled(False)


def test_scales_that_are_new_in_each_call_are_torchs_where_their_product_costs_more_than_a_kernel_gains() -> None:
    factors, b, little = Factors(), torch.tensor(3.0), 1e-6
    for value in range(4):
        assert factors.product(torch.tensor(float(value)), b, little) is None
    stays = torch.tensor(2.0)
    assert factors.product(stays, b, little) is None
    assert factors.product(stays, b, little).item() == 6.0
    stays.fill_(4.0)
    assert factors.product(stays, b, little) is None
    assert factors.product(stays, b, little).item() == 12.0


def test_what_is_scaled_by_rows_stays_torchs() -> None:
    kernel = Product()
    a, b = (torch.randn(size, K).to(torch.float8_e4m3fn) for size in (M, N))
    rows, columns = torch.rand(M, 1), torch.rand(1, N)
    want = torch._scaled_mm(a, b.t(), rows, columns, out_dtype=torch.bfloat16)
    with torch.no_grad(), dt.use(Library(kernel), race=False):  # type: ignore[arg-type]
        for _ in range(2):
            assert torch.equal(torch._scaled_mm(a, b.t(), rows, columns, out_dtype=torch.bfloat16), want)
            with pytest.raises((RuntimeError, TypeError)):
                torch._scaled_mm(a, b.t())
    assert kernel.calls == 0


@pytest.mark.slow
def test_scales_of_blocks_are_served_with_any_strides_by_the_shapes_of_the_scales(tmp_path: Path) -> None:
    m, n, k = 40, 200, 300
    target = deepgen.targets.resolve("cpu")
    operator = gemm(m, n, k, dtype="f8e4m3", layout="nt", scales="1x128,128x128")
    study = deepgen.tune(operator, target=target, trials=1, out=tmp_path / "study", progress=False, baselines=False)
    library = deepgen.library(tmp_path / "library", create=True)
    library.add(study)
    a, b = (torch.randn(size, k).to(torch.float8_e4m3fn) for size in (m, n))
    with torch.no_grad(), dt.use(library, race=False) as used:
        for one, other in ((torch.rand(m, 3), torch.rand(3, 2)), (torch.rand(3, m).T, torch.rand(2, 3).T)):
            wide = a.float() * one.repeat_interleave(128, 1)[:, :k]
            want = wide @ (b.float() * other.T.repeat_interleave(128, 0).repeat_interleave(128, 1)[:n, :k]).T
            for _ in range(2):
                result = torch._scaled_mm(a, b.t(), one, other, out_dtype=torch.bfloat16)
                torch.testing.assert_close(result.float(), want, rtol=1e-2, atol=1e-2)
        # Other blocks are torch's, which has none on processors.
        with pytest.raises((RuntimeError, ValueError)):
            torch._scaled_mm(a, b.t(), torch.rand(m, 5), torch.rand(5, 2), out_dtype=torch.bfloat16)
    assert [met.calls.served for met in used.met if met.ours] == [2, 2]
