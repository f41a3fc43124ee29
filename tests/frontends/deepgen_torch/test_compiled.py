"""What torch.compile's code calls for a product, and where it multiplies which scales."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stand_in import Everything  # noqa: E402
from stand_in_scaled import K, Layer, Library, M, N, Product  # noqa: E402

import deepgen.torch as dt  # noqa: E402
from deepgen.frontends.torch import inductor, routes  # noqa: E402
from deepgen.frontends.torch.race import TorchRace  # noqa: E402

pytestmark = pytest.mark.slow  # torch.compile
GIVEN, MULTIPLIED, TORCHS = "deepgen_two_scales_mm", "deepgen_scaled_mm", "extern_kernels._scaled_mm"
_F8 = torch.float8_e4m3fn


def _with_code(run: Callable[..., Any], *args: Any) -> tuple[Any, str]:
    """A compiled function's result, and the code."""
    from torch._inductor.utils import run_and_get_code

    found, code = run_and_get_code(run, *args)
    return found, "\n".join(code)


def _both(make: Callable[[], Callable[..., Any]], *args: Any, calls: int = 3) -> tuple[str, Product]:
    """Call a function several times, compiled with a kernel and uncompiled; each is created anew."""
    kernel, alone = Product(), make()
    with torch.no_grad(), dt.use(Library(kernel), race=False):  # type: ignore[arg-type]
        run = torch.compile(make(), fullgraph=True)
        first, code = _with_code(run, *args)
        found = [first, *(run(*args) for _ in range(calls - 1))]
    with torch.no_grad():
        torch.testing.assert_close(found, [alone(*args) for _ in range(calls)])
    return code, kernel


def _small(rows: int) -> Any:
    return torch.randn(rows, K).to(_F8)


def _product(a: Any, weight: Any, one: Any, other: Any) -> Any:
    return torch._scaled_mm(a, weight.t(), one, other, out_dtype=torch.bfloat16)


def test_scales_that_are_given_are_not_multiplied_in_the_graph() -> None:
    torch.manual_seed(0)
    layer = Layer()
    code, kernel = _both(lambda: layer, torch.randn(M, K))
    assert GIVEN in code and MULTIPLIED not in code and TORCHS not in code
    assert kernel.calls >= 3


def test_scales_that_a_graph_makes_are_multiplied_in_it() -> None:
    a, weight, other = _small(M), _small(N), torch.tensor(0.5)
    code, kernel = _both(lambda: lambda x: _product(a, weight, x.abs().amax(), other), torch.randn(M))
    assert MULTIPLIED in code and GIVEN not in code and kernel.calls >= 3


def test_scales_are_multiplied_in_graphs_that_are_replayed() -> None:
    from torch._inductor import config

    layer = Layer()
    with config.patch({"triton.cudagraphs": True}):
        code, kernel = _both(lambda: layer, torch.randn(M, K))
    assert MULTIPLIED in code and GIVEN not in code and kernel.calls >= 3


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_graph_may_write_a_scale(before: bool) -> None:
    """Before the product, or after it: then the next call must see it."""
    a, weight = _small(M), _small(N)

    def make() -> Callable[..., Any]:
        one, other = torch.tensor(2.0), torch.tensor(0.5)

        def run() -> Any:
            if before:
                one.mul_(2.0)
            found = _product(a, weight, one, other)
            if not before:
                one.mul_(2.0)
            return found

        return run

    code, kernel = _both(make)
    assert GIVEN not in code and kernel.calls >= 3


def test_a_scale_that_another_graph_writes_is_read_again() -> None:
    a, weight, one, other = _small(M), _small(N), torch.tensor(2.0), torch.tensor(0.5)
    with torch.no_grad():
        wants = [_product(a, weight, torch.tensor(2.0**power), other) for power in (1, 2, 3)]
    with torch.no_grad(), dt.use(Library(Product()), race=False) as used:  # type: ignore[arg-type]
        product = torch.compile(lambda: _product(a, weight, one, other), fullgraph=True)
        write = torch.compile(lambda: one.mul_(2.0), fullgraph=True)
        for want in wants:
            torch.testing.assert_close(product(), want)
            torch.testing.assert_close(product(), want)
            write()
    assert used.met[0].calls.served == 6


def test_scales_of_a_loop_are_read_each_time_round() -> None:
    """A loop's tensors are written unnoticed."""
    from torch._higher_order_ops.while_loop import while_loop

    a, weight, other = _small(M), _small(N), torch.tensor(0.5)

    def make() -> Callable[..., Any]:
        def body(count: Any, one: Any, total: Any) -> Any:
            return count + 1, one * 2.0, total + _product(a, weight, one, other)

        def run(one: Any) -> Any:
            total = torch.zeros(M, N, dtype=torch.bfloat16)
            return while_loop(lambda count, *_: count < 4, body, (torch.tensor(0), one, total))[2]

        return run

    code, _ = _both(make, torch.tensor(1.0))
    assert GIVEN not in code


def test_a_product_is_given_whole_tensors_and_no_views() -> None:
    """The views are used only on each thread's first call, and if torch serves after all."""
    a, weight, one, other = _small(M), _small(N), torch.tensor(2.0), torch.tensor(0.5)
    crooked = torch.empty(M * K + 1, dtype=torch.uint8)[1:].view(_F8).view(M, K).copy_(a)
    found: list[Any] = []
    with torch.no_grad():
        want = _product(a, weight, one, other)
        with dt.use(Library(Product()), race=False) as used:  # type: ignore[arg-type]
            run = torch.compile(lambda a: _product(a, weight, one, other), fullgraph=True)
            first, code = _with_code(run, a)
            found += [first, run(a)]
            thread = threading.Thread(target=torch.no_grad()(lambda: found.append(run(a))))
            thread.start()
            thread.join()
            found.append(run(crooked))
    assert GIVEN in code and "reinterpret_tensor(" not in code.partition("def call(")[2].partition("return")[0]
    torch.testing.assert_close(found, [want] * 4)
    assert (used.met[0].calls.served, used.met[0].calls.refused) == (3, 1)


def test_products_of_slices_and_batches_are_right() -> None:
    x, weight, bias = torch.randn(6, 20, 24), torch.randn(40, 24), torch.randn(16)

    def run() -> Any:
        low, high = weight[:16], weight[16:32]
        rows = x[1:3].reshape(-1, 24)
        return torch.addmm(bias, rows, high.t()), torch.mm(rows, low.t()), torch.bmm(x[2:], x[2:].mT)

    with torch.no_grad():
        want = run()
        with dt.use(Everything(kinds=("gemm",)), race=False) as used:
            found = torch.compile(run, fullgraph=True)()
    assert [met.ours for met in used.met] == [True] * 3
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("replayed", [False, True], ids=["called", "replayed"])
def test_torch_keeps_what_costs_the_processor_more_than_a_kernel_gains(
    replayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's race is simulated: the kernel gains 2 us, and a call from compiled code takes 4 us longer."""
    from torch._inductor import config

    raced = TorchRace(3e-6, 5e-6, True, calling=(6e-6, 7e-6))
    for name in ("race", "race_for_cores"):
        monkeypatch.setattr(routes, name, lambda *_: raced)
    monkeypatch.setattr(inductor, "_timed", lambda *_: (9e-6, 5e-6))
    x, weight = torch.randn(20, 24), torch.randn(24, 16)
    with torch.no_grad(), dt.use(Everything(kinds=("gemm",))) as used, config.patch({"triton.cudagraphs": replayed}):
        found, code = _with_code(torch.compile(lambda: torch.mm(x, weight), fullgraph=True))
        torch.mm(x, weight)
    torch.testing.assert_close(found, x @ weight)
    assert ("deepgen_mm" in code) == replayed
    assert used.met[0].ours and used.met[0].calls.served == 1 + replayed
    why = "compiled: 3.0 us, torch 5.0 us, but a call costs 9.0 us, torch's 5.0 us"
    assert (why in used.met[0].why) != replayed


def test_calls_by_compiled_code_are_timed_with_the_memory_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relevant on a GPU; here it only checks that both return results."""
    monkeypatch.setattr(inductor, "calling", lambda mine, other: (mine(), other()))
    a, weight, one, other = _small(M), _small(N), torch.tensor(2.0), torch.tensor(0.5)
    with torch.no_grad(), dt.use(Library(Product()), race=False) as used:  # type: ignore[arg-type]
        torch._scaled_mm(a, weight.t(), one, other, out_dtype=torch.bfloat16)
        route = used._router.route("scaled_mm", (a, weight.t(), one * other, False), torch.mm)
        assert route is not None
        for kind, scales in (("two_scales_mm", (one, other)), ("scaled_mm", (one * other,))):
            mine, others = inductor._timed(kind, route, (a, weight.t(), *scales, False))
            torch.testing.assert_close(mine, others)


def test_what_is_compiled_to_cpp_is_torchs() -> None:
    """Such code cannot call a Python function: compiling a product once failed."""
    from torch._inductor import config
    from torch.fx.experimental.proxy_tensor import make_fx

    x, weight = torch.randn(20, 24), torch.randn(24, 16)
    with torch.no_grad(), dt.use(Everything(kinds=("gemm",)), race=False) as used:
        for cpp in (True, False):
            graph = make_fx(torch.ops.aten.mm.default, tracing_mode="fake")(x, weight).graph
            with config.patch(cpp_wrapper=cpp):
                inductor.exchange(graph, used._router)
            assert any(node.target is torch.ops.deepgen.mm.default for node in graph.nodes) != cpp


def test_our_own_operators_are_compiled_to_cpp_as_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same if a model calls such an operator itself: no Python call may remain in the code."""
    x, weight = torch.randn(20, 24), torch.randn(24, 16)
    with torch.no_grad(), dt.use(Everything(kinds=("gemm",)), race=False):
        for python in (True, False):
            monkeypatch.setattr(inductor, "_in_python", lambda python=python: python)
            torch._dynamo.reset()
            found, code = _with_code(torch.compile(lambda: dt.mm(x, weight), fullgraph=True))
            torch.testing.assert_close(found, x @ weight)
            assert ("extern_kernels.deepgen_mm" in code) == python
            assert ("torch.ops.deepgen.mm.default(" in code) != python


def test_functions_that_uncompiled_code_calls_are_not_compiled_themselves() -> None:
    """After a graph break they were, piece by piece, and gave other results."""
    from torch._dynamo.utils import counters  # here: with the compiler loaded, others' tests of `use` take longer

    @torch._dynamo.disable(recursive=False)  # type: ignore[untyped-decorator]
    def aside(x: Any) -> Any:
        attended = torch.nn.functional.scaled_dot_product_attention(x, x + 1, x - 1)
        return torch.nn.functional.layer_norm(attended, (16,), x[0, 0, 0], x[0, 0, 1])

    x = torch.randn(2, 4, 16, 16)
    with torch.no_grad(), dt.use(Everything(), race=False) as used:
        want = aside(x)
        counters.clear()
        run = torch.compile(lambda x: aside(x) + 1, backend="eager")
        torch.testing.assert_close([run(x) for _ in range(2)], [want + 1] * 2)
    assert [met.calls.served for met in used.met] == [3, 3]
    assert len(counters["graph_break"]) == 1, "of the function that is left out"


def test_what_is_compiled_with_one_library_is_not_for_another() -> None:
    """When a library is used again, it finds the code compiled with it."""
    x, weight = torch.randn(20, 24), torch.nn.Parameter(torch.randn(16, 24), requires_grad=False)
    run = torch.compile(lambda: torch.nn.functional.linear(x, weight))
    served: dict[str, list[int]] = {"one": [], "two": [], "none": []}
    libraries = {"one": Everything(), "two": Everything(), "none": Everything(kinds=())}
    counted: dict[str, dt.Use] = {}
    with torch.no_grad():
        want = run()
        for name in ("one", "two", "none", "one"):
            used = dt.use(libraries[name], race=False)  # type: ignore[arg-type]
            counted.setdefault(name, used)
            with used:
                torch.testing.assert_close(run(), want)
            served[name].append(sum(met.calls.served for met in counted[name].met))
    assert served == {"one": [1, 2], "two": [1], "none": [0]}
