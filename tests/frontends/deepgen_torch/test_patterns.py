"""Several calls of torch as one operator: recorded, in compiled code, and in a model by `optimize`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stand_in import Everything  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import deepgen.torch as dt  # noqa: E402
from deepgen.frontends.torch import inductor, ops, products, tracing  # noqa: E402
from deepgen.frontends.torch.fused_products import exchange_regions  # noqa: E402
from deepgen.frontends.torch.optimizing import EagerBackend  # noqa: E402
from deepgen.frontends.torch.routes import Router  # noqa: E402
from deepgen.vocabulary import BadInput  # noqa: E402

F, nn = torch.nn.functional, torch.nn
HIDDEN, WIDE = 24, 40


class Gated(nn.Module):  # type: ignore[misc]
    """An MLP like Llama's, with what surrounds it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(HIDDEN, WIDE, bias=False) for _ in range(2))
        self.down, self.norm = nn.Linear(WIDE, HIDDEN, bias=False), nn.RMSNorm(HIDDEN)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Joined(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(HIDDEN, 2 * WIDE, bias=False)

    def forward(self, x: Any) -> Any:
        gate, up = self.both(x).chunk(2, dim=-1)
        return F.silu(gate) * up


class Dropped(nn.Module):  # type: ignore[misc]
    """The end of a layer like BERT's."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.dropout, self.norm = nn.Linear(HIDDEN, HIDDEN), nn.Dropout(0.5), nn.LayerNorm(HIDDEN)

    def forward(self, x: Any) -> Any:
        return self.norm(self.dropout(self.dense(x)) + x)


class Tanh(nn.Module):  # type: ignore[misc]
    """GELU as GPT-2 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(HIDDEN, WIDE)

    def forward(self, x: Any) -> Any:
        y = self.dense(x)
        return 0.5 * y * (1.0 + torch.tanh(0.7978845608028654 * (y + 0.044715 * torch.pow(y, 3.0))))


class Residual(nn.Module):  # type: ignore[misc]
    """A block of a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, padding=1)
        self.down, self.norms = nn.Conv2d(4, 8, 1, bias=False), nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))
        self.relu = nn.ReLU(inplace=True)
        for norm in self.norms:
            for vector in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                nn.init.uniform_(vector, 0.5, 1.5)

    def forward(self, x: Any) -> Any:
        y = self.norms[1](self.other(self.relu(self.norms[0](self.one(x)))))
        y += self.norms[2](self.down(x))
        return self.relu(y)


def in_place() -> Any:
    return nn.Sequential(nn.Linear(HIDDEN, WIDE), nn.ReLU(inplace=True))


MODELS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "GELU": (lambda: nn.Sequential(nn.Linear(HIDDEN, WIDE), nn.GELU()), ["gemm f32 nt 10x40x24 gelu(x + bias[n])"]),
    "in place": (in_place, ["gemm f32 nt 10x40x24 relu bias"]),
    "gated": (Gated, ["gemm f32 nt 10x40x24 silu(x) * residual[m, n]", "gemm f32 nt 10x40x24",
                      "gemm f32 nt 10x24x40 residual[m, n] + x"]),
    "residual": (Dropped, ["gemm f32 nt 10x24x24 x + bias[n] + residual[m, n]"]),
    "GELU by its parts": (Tanh, ["gemm f32 nt 10x40x24 gelu bias"]),
}  # fmt: skip
PAIRS = {"gated": (Gated, ["gemm f32 nt 10x40x24 silu(x) * y", "gemm f32 nt 10x24x40 residual[m, n] + x"]),
         "joined": (Joined, ["gemm f32 nt 10x40x24 silu(x) * y"])}  # fmt: skip


def drawn(make: Callable[[], Any]) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return make().eval(), torch.randn(2, 5, HIDDEN)


@pytest.mark.parametrize("name", MODELS)
def test_a_recording_has_patterns_as_operators(name: str) -> None:
    make, operators = MODELS[name]
    model, x = drawn(make)
    with torch.no_grad(), dt.record(patterns=True) as work:
        model(x), model(x)
    counts = {part.describe(): part.count for part in work.work.tunable()}
    assert {one: counts.get(one) for one in operators} == dict.fromkeys(operators, 2), counts
    assert not any(one.startswith("gemm") and one not in operators for one in counts)


@pytest.mark.parametrize("name", PAIRS)
def test_a_gated_layer_is_one_operator_where_there_are_kernels_for_pairs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "PAIRS_ON", ("cpu",))
    make, operators = PAIRS[name]
    model, x = drawn(make)
    with torch.no_grad(), dt.record(patterns=True) as work:
        model(x)
    assert [part.describe() for part in work.work.tunable() if part.describe().startswith("gemm")] == operators


def test_tensors_that_begin_at_one_place_in_a_call_may_not_in_the_next() -> None:
    """What was added to a product had been multiplied instead."""
    weight, x, added = torch.randn(HIDDEN, HIDDEN), torch.randn(7, HIDDEN), torch.randn(7, HIDDEN)

    class Added(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, more: Any) -> Any:
            return F.gelu(F.linear(x, weight) + more)

    model = Added()
    want = model(x, x), model(x, added)
    with torch.no_grad():
        dt.optimize(model, Everything(), race=False)  # type: ignore[arg-type]
        torch.testing.assert_close((model(x, x.detach()), model(x, added)), want)


def traced_for(backend: Any, function: Any, *inputs: Any) -> Any:
    """A backend's code for a function, without the compiler and its guards."""
    graph = torch.fx.symbolic_trace(function)
    for node, value in zip(graph.graph.nodes, inputs, strict=False):
        node.meta["example_value"] = value
    return backend(graph, inputs)


@pytest.mark.parametrize("twice_first", [True, False])
def test_one_tensor_may_be_passed_twice(twice_first: bool) -> None:
    """Results do not rely on the compiler's guards, and kernels serve the calls after it: torch once did."""
    x, weight, more = torch.randn(7, HIDDEN), torch.randn(HIDDEN, HIDDEN), torch.randn(7, HIDDEN)

    def added(x: Any, weight: Any, more: Any) -> Any:
        return F.gelu(F.linear(x, weight) + more)

    def in_place(x: Any, weight: Any, more: Any) -> Any:
        y = F.linear(x, weight)
        y += more
        return F.relu(y, inplace=True)

    with torch.no_grad():
        for function in (added, in_place):
            router = Router(Everything(), race=False)  # type: ignore[arg-type]
            run = traced_for(EagerBackend(router), function, x, weight, more)
            for other in (x, more, x, x.detach(), more) if twice_first else (more, x, more, x.detach()):
                torch.testing.assert_close(run(x, weight, other), function(x, weight, other))
            assert router.met and all(met.ours and met.calls.served for met in router.met), function.__name__


def test_joined_weights_may_have_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second half is read at an offset."""
    monkeypatch.setattr(products, "PAIRS_ON", ("cpu",))
    x, weight, bias = torch.randn(7, HIDDEN), torch.randn(2 * WIDE, HIDDEN), torch.randn(2 * WIDE)

    def gated(x: Any, weight: Any, bias: Any) -> Any:
        gate, up = F.linear(x, weight, bias).chunk(2, dim=-1)
        return F.silu(gate) * up

    routers = [Router(Everything(), race=False) for _ in range(2)]  # type: ignore[arg-type]
    graph = make_fx(gated, decomposition_table=tracing._parts(), tracing_mode="fake")(x, weight, bias)
    exchange_regions(graph.graph, routers[0], lambda *_: True)
    [call] = (node for node in graph.graph.nodes if node.target is ops.OPS.region.default)
    order = [[node for node in graph.graph.nodes if node.op == "placeholder"].index(one) for one in call.args[0]]
    region = ops.REGIONS[call.args[1]]
    compiled = inductor.call_of("region", region.route, (region,))

    def in_compiled_code(*inputs: Any) -> Any:
        out = torch.empty(7, WIDE)
        compiled(*(inputs[place] for place in order), out=out)
        return out

    with torch.no_grad():
        in_model = traced_for(EagerBackend(routers[1]), gated, x, weight, bias)
        for _ in range(3):
            for run in (in_compiled_code, in_model):
                torch.testing.assert_close(run(x, weight, bias), gated(x, weight, bias))
            x, weight, bias = torch.randn_like(x), torch.randn_like(weight), torch.randn_like(bias)
    for router in routers:
        served = [(met.operator.describe(), met.calls.served) for met in router.met]
        assert served == [("gemm f32 nt 7x40x24 silu(x + bias[n]) * (y + bias2[n])", 3)]


def test_regions_of_compiled_code_are_kept_once_and_only_if_they_pay() -> None:
    def compiled() -> Any:
        return make_fx(lambda x, w: torch.ops.aten.relu(torch.ops.aten.mm(x, w)), tracing_mode="fake")(x, w).graph

    x, w = torch.randn(9, HIDDEN), torch.randn(HIDDEN, WIDE)
    router = Router(Everything(), race=False)  # type: ignore[arg-type]
    before = len(ops.REGIONS)
    for _ in range(3):
        exchange_regions(compiled(), router, lambda *_: False)
    assert len(ops.REGIONS) == before
    numbers = set()
    for _ in range(3):
        graph = compiled()
        exchange_regions(graph, router, lambda *_: True)
        numbers |= {node.args[1] for node in graph.nodes if node.target is ops.OPS.region.default}
    assert numbers == {before} and len(ops.REGIONS) == before + 1
    torch.testing.assert_close(ops.OPS.region([x, w], before), torch.relu(x @ w))


def test_what_is_read_elsewhere_is_no_pattern() -> None:
    x, w = torch.randn(9, HIDDEN), torch.randn(HIDDEN, HIDDEN)

    def two_readers(y: Any) -> Any:
        return torch.relu(y) + y.sum()

    def written(y: Any) -> Any:
        y.view(-1).cos_()
        return torch.relu(y)

    def gradients(y: Any) -> Any:
        return torch.relu(y.requires_grad_())

    def read_in_place(y: Any) -> Any:
        x.clone().add_(y)
        return torch.relu(y)

    for name in (two_readers, written, gradients, read_in_place):
        with dt.record(patterns=True) as work:
            name(x @ w)
        assert "gemm f32 nn 9x24x24" in {part.describe() for part in work.work.tunable()}, name.__name__


def summed_rms(x: Any, y: Any, weight: Any, bias: Any) -> Any:
    total = x + y
    return total * 2.0, F.rms_norm(total, (HIDDEN,), weight, 1e-5)


def summed_layers(x: Any, y: Any, weight: Any, bias: Any) -> Any:
    total = torch.add(x, y)
    return total, F.layer_norm(total, (HIDDEN,), weight, bias, 1e-5)


SUMS = {"sum_rms_norm": summed_rms, "sum_layer_norm": summed_layers}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_and_its_norm_are_one_operator_with_two_results(name: str, dtype: Any) -> None:
    inputs = [torch.randn(2, 5, HIDDEN).to(dtype) for _ in range(2)] + [torch.rand(HIDDEN).to(dtype) for _ in range(2)]
    with torch.no_grad():
        with dt.record(patterns=True) as work:
            SUMS[name](*inputs), SUMS[name](*inputs)
        [part] = (one for one in work.work.tunable() if one.describe().startswith("sum_"))
        assert part.describe().startswith(f"{name} ") and part.count == 2
        others = {one.describe().partition(" ")[0] for one in work.work.parts}
        assert others <= {name, "aten::mul"}, "the norm's parts belong to it"
        router = Router(Everything(kinds=("expression",)), race=False)  # type: ignore[arg-type]
        run = traced_for(EagerBackend(router), SUMS[name], *inputs)
        for _ in range(3):
            torch.testing.assert_close(run(*inputs), SUMS[name](*inputs))
            inputs = [torch.randn_like(one) for one in inputs]
    assert [(met.operator, met.calls.served) for met in router.met] == [(part.what, 3)]


def test_a_norm_is_not_computed_before_what_it_reads_is_written() -> None:
    def weight_written(x: Any, y: Any, weight: Any, bias: Any) -> Any:
        total = x + y
        weight.add_(1.0)
        return total, F.rms_norm(total, (HIDDEN,), weight, 1e-5)

    def sum_written(x: Any, y: Any, weight: Any, bias: Any) -> Any:
        total = x + y
        total.mul_(2.0)
        return total, F.rms_norm(total, (HIDDEN,), weight, 1e-5)

    def weight_later(x: Any, y: Any, weight: Any, bias: Any) -> Any:
        total = x + y
        return total, F.rms_norm(total, (HIDDEN,), weight * 2.0, 1e-5)

    def other_rows(x: Any, y: Any, weight: Any, bias: Any) -> Any:
        total = x + y
        return total, F.layer_norm(total, (5, HIDDEN), total[0], total[1], 1e-5)

    inputs = [torch.randn(2, 5, HIDDEN), torch.randn(5, HIDDEN), torch.rand(HIDDEN), torch.rand(HIDDEN)]
    for function in (weight_written, sum_written, weight_later, other_rows, summed_rms):
        router = Router(Everything(kinds=("expression",)), race=False)  # type: ignore[arg-type]
        with torch.no_grad():
            want = function(*copy.deepcopy(inputs))
            torch.testing.assert_close(
                traced_for(EagerBackend(router), function, *inputs)(*copy.deepcopy(inputs)), want
            )
        assert not router.met, function.__name__


@pytest.mark.slow  # torch's compiler
class TestOptimized:
    @pytest.mark.parametrize("name", MODELS)
    def test_kernels_serve_patterns(self, name: str) -> None:
        make, operators = MODELS[name]
        model, x = drawn(make)
        with torch.no_grad():
            want = model(x)
            optimized = dt.optimize(model, Everything(), race=False)  # type: ignore[arg-type]
            for _ in range(3):
                torch.testing.assert_close(model(x), want)
        served = {met.operator.describe(): met.calls.served for met in optimized.met}
        assert {one: served.get(one) for one in operators} == dict.fromkeys(operators, 3), str(optimized)

    @pytest.mark.parametrize("name", MODELS)
    def test_kernels_serve_patterns_of_compiled_code(self, name: str) -> None:
        make, operators = MODELS[name]
        model, x = drawn(make)
        with torch.no_grad():
            want = model(x)
            with dt.use(Everything(), race=False) as used:  # type: ignore[arg-type]
                compiled = torch.compile(model, fullgraph=True)
                for _ in range(3):
                    torch.testing.assert_close(compiled(x), want)
        served = {met.operator.describe(): met.calls.served for met in used.met}
        assert {one: served.get(one) for one in operators} == dict.fromkeys(operators, 3), str(used)

    @pytest.mark.parametrize("name", PAIRS)
    def test_kernels_serve_pairs(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(products, "PAIRS_ON", ("cpu",))
        make, operators = PAIRS[name]
        model, x = drawn(make)
        with torch.no_grad():
            want = model(x)
            with dt.use(Everything(), race=False) as used:  # type: ignore[arg-type]
                torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), want)
            optimized = dt.optimize(model, Everything(), race=False)  # type: ignore[arg-type]
            torch.testing.assert_close(model(x), want)
        for each in (used, optimized):
            served = {met.operator.describe() for met in each.met if met.operator.name == "gemm" and met.calls.served}
            assert served == {*operators}, str(each)

    @pytest.mark.parametrize("last", [False, True])
    def test_batch_norms_are_factors_of_channels(self, last: bool) -> None:
        torch.manual_seed(0)
        model, alone, x = Residual().eval(), Residual().eval(), torch.randn(2, 4, 9, 7)
        alone.load_state_dict(model.state_dict())
        if last:
            x = x.to(memory_format=torch.channels_last)
        kinds = ("dilated_conv2d",)
        optimized = dt.optimize(model, Everything(kinds=kinds), race=False)  # type: ignore[arg-type]
        with torch.no_grad():
            for _ in range(3):
                torch.testing.assert_close(model(x), alone(x), rtol=1e-4, atol=1e-4)
                for one in (model, alone):
                    one.norms[0].running_var *= 2.0  # statistics that change
            served = {met.operator["epilogue"]: met.calls.served for met in optimized.met}
            assert served == {"scale,bias,relu": 3, "scale,bias,residual,relu": 3, "scale,bias": 3}, str(optimized)
            for one in (model.train(), alone.train()):
                one(x)
            for (name, mine), theirs in zip(model.state_dict().items(), alone.state_dict().values(), strict=True):
                torch.testing.assert_close(mine, theirs, msg=lambda text, name=name: f"{name}: {text}")
            torch.testing.assert_close(model.eval()(x), alone.eval()(x), rtol=1e-4, atol=1e-4)

    def test_gradients_training_and_changes_are_torchs(self) -> None:
        model, x = drawn(Dropped)
        alone = copy.deepcopy(model)
        optimized = dt.optimize(model, Everything(), race=False)  # type: ignore[arg-type]

        def same(what: str) -> None:
            for one in (model, alone):
                one.zero_grad()
            results = []
            for one in (model, alone):
                torch.manual_seed(1)
                results.append(one(x))
                if results[-1].requires_grad:
                    results[-1].sin().sum().backward()
            torch.testing.assert_close(*results, msg=lambda text: f"{what}: {text}")
            for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, theirs.grad, msg=lambda text: f"{what}: {text}")

        same("gradients")
        with torch.no_grad():
            same("no gradients")
            for one in (model, alone):
                one.train()
            same("dropout")
            for one in (model, alone):
                one.eval()
                one.dense.weight.mul_(2.0)
            same("other numbers")
            for one in (model, alone):
                one.dense.weight = nn.Parameter(one.dense.weight[:, torch.arange(HIDDEN - 1, -1, -1)])
            same("another parameter")
            for one in (model, alone):
                one.dense.register_forward_hook(lambda module, args, out: out + 1.0)
            same("a hook")
            for one in (model, alone):
                nn.utils.parametrizations.weight_norm(one.dense)
            same("a parametrization")
        assert any(met.calls.served for met in optimized.met)
        optimized.close()
        with torch.no_grad():
            same("closed")

    def test_what_is_written_between_stays_as_it_was(self) -> None:
        class Written(nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.dense = nn.Linear(HIDDEN, HIDDEN)

            def forward(self, x: Any) -> Any:
                y = self.dense(x)
                x.add_(1.0)
                return torch.relu(y) + x

        model, x = drawn(Written)
        want = model(x.clone())
        dt.optimize(model, Everything(), race=False)  # type: ignore[arg-type]
        with torch.no_grad():
            torch.testing.assert_close(model(x.clone()), want)

    def test_shapes_and_weights_that_are_shared(self) -> None:
        class Shared(nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.one = nn.Linear(HIDDEN, HIDDEN)
                self.other = nn.Linear(HIDDEN, HIDDEN)
                self.other.weight = self.one.weight

            def forward(self, x: Any) -> Any:
                return F.gelu(self.other(F.gelu(self.one(x))))

        model, _ = drawn(Shared)
        alone = copy.deepcopy(model)
        optimized = dt.optimize(model, Everything(), race=False)  # type: ignore[arg-type]
        with torch.no_grad():
            for rows in (4, 9, 1, 30, 4):
                x = torch.randn(rows, HIDDEN)
                torch.testing.assert_close(model(x), alone(x))
            y = x.T.contiguous().T
            torch.testing.assert_close(model(y), alone(y))
        assert sum(met.calls.served for met in optimized.met) >= 8, str(optimized)

    def test_mistakes_are_named(self) -> None:
        with pytest.raises(BadInput, match="not a module"):
            dt.optimize(lambda x: x, Everything())  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="not a library"):
            dt.optimize(nn.Linear(2, 2), "lib")  # type: ignore[arg-type]
        model = nn.Linear(2, 2)
        dt.optimize(model, Everything())  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="compiled already"):
            dt.optimize(model, Everything())  # type: ignore[arg-type]
