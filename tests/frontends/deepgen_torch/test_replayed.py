"""A recorded model is replayed, and its time decides which kernels serve it in each form."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stand_in import Everything  # noqa: E402

import deepgen as dg  # noqa: E402
import deepgen.torch as dt  # noqa: E402
from deepgen import targets  # noqa: E402
from deepgen.frontends.cli import session  # noqa: E402
from deepgen.frontends.cli.main import main  # noqa: E402
from deepgen.frontends.torch import deciding, inductor, routes  # noqa: E402
from deepgen.frontends.torch.replaying import as_called, replay  # noqa: E402
from deepgen.libraries import Library  # noqa: E402
from deepgen.libraries.entry import DecidedKernel, ModelTimes  # noqa: E402
from deepgen.operators import Operator, gemm, softmax  # noqa: E402
from deepgen.tuning import work  # noqa: E402
from deepgen.vocabulary import BadInput  # noqa: E402

F, nn = torch.nn.functional, torch.nn
CPU = targets.resolve("cpu")
PRODUCT, ROWS = gemm(20, 48, 64, layout="nt", bias=True), softmax(20, 48)


class Layer(nn.Module):  # type: ignore[misc]
    """What a replay has to keep: views, in-place writes, results of several, integers, functions torch takes apart."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.conv = nn.Embedding(50, 64), nn.Conv1d(64, 64, 3, padding=1)
        self.attend = nn.TransformerEncoderLayer(64, 4, 96, batch_first=True, dropout=0.0)
        self.norm, self.scale = nn.RMSNorm(64), nn.Parameter(torch.ones(64))

    def forward(self, ids: Any) -> Any:
        x = self.norm(self.attend(self.words(ids)))
        x = x + self.conv(x.transpose(1, 2)).transpose(1, 2) * self.scale
        x[0].clamp_(min=-float("inf"), max=4.0)
        rows = x[x.sum(-1) != 0.0]  # of another number with other numbers
        return torch.softmax(rows, -1), F.scaled_dot_product_attention(x, x, x)


def calls_of(model: Any, *inputs: Any, gradients: bool = False) -> work.RecordedWork:
    with torch.set_grad_enabled(gradients), dt.record() as recorded:
        out = model(*inputs)
        for one in out if gradients else ():
            one.sum().backward(retain_graph=True)
    data = json.loads(json.dumps(recorded.work.to_json(), allow_nan=False))
    read = work.from_json(data, "work.json")
    assert read == recorded.work
    return read


@pytest.mark.parametrize("gradients", [False, True])
def test_a_recorded_model_is_replayed_with_its_shapes_and_strides(gradients: bool) -> None:
    model, ids = Layer(), torch.randint(50, (2, 10))
    recorded = calls_of(model, ids, gradients=gradients).calls
    assert recorded is not None and recorded.threads == torch.get_num_threads()
    plain = replay(recorded, "cpu")
    for one, like in zip(plain.inputs, recorded.tensors, strict=True):
        assert (tuple(one.shape), one.stride()) == (like.shape, like.strides)
    with torch.no_grad():
        first, second = plain(), as_called(plain)()
    shapes = [tuple(one.shape) for one in first if isinstance(one, torch.Tensor)]
    if not gradients:
        assert (2, 10, 64) in shapes and (20, 64) in shapes
    kinds = {call.name for call in recorded.calls}
    assert {"rms_norm.default", "scaled_dot_product_attention.default", "convolution.default"} <= kinds
    assert "index.Tensor" not in kinds, "its result's shape depends on numbers"
    assert all(one.isfinite().all() for one in first if isinstance(one, torch.Tensor))
    torch.testing.assert_close(second, first)


def test_a_replay_calls_what_a_library_serves() -> None:
    """Functions that `use` replaces are looked up in each call."""
    recorded = calls_of(nn.Sequential(nn.Linear(64, 48), nn.Softmax(-1)), torch.randn(20, 64)).calls
    assert recorded is not None
    run = as_called(replay(recorded, "cpu"))
    with torch.no_grad(), dt.use(Everything(), race=False) as used:
        run()
    assert [met.operator for met in used.met if met.calls.served] == [PRODUCT, ROWS]


@pytest.mark.parametrize(
    "call",
    [
        {"name": "from_file.default", "args": ["weights.bin"], "named": {}, "results": None},
        {"name": "relu.default", "args": ["tanh"], "named": {}, "results": None},
        {"name": "__class__.default", "args": [{"tensor": 0}], "named": {}, "results": None},
        {"name": "relu.default", "args": [{"tensor": 7}], "named": {}, "results": None},
        {"name": "relu.default", "args": [{"torch": "load"}], "named": {}, "results": None},
        {"name": "relu.default", "args": [{"result": 1, "tensor": 0}], "named": {}, "results": None},
    ],
)
def test_calls_that_no_recording_has_are_refused(call: dict[str, Any]) -> None:
    tensor = work.RecordedTensor((2,), (1,), "float32")
    with pytest.raises(BadInput, match="cannot be replayed"):
        replay(work.RecordedCalls(1, (tensor,), (work.RecordedCall.from_json(call),)), "cpu")


class Deciding(Everything):
    """A library that keeps what was decided."""

    def __init__(self, serves: Mapping[tuple[Operator, str], bool] | None = None) -> None:
        super().__init__()
        self.models: dict[str, ModelTimes] = {}
        self._serves = serves or {}

    def list(self) -> Any:
        return [SimpleNamespace(operator=one, target=CPU, kernel_id=one.name) for one in (PRODUCT, ROWS)]

    def choose(self, operator: Operator, target: Any, among: tuple[str, ...]) -> Any:
        choice = super().choose(operator, target, among)
        choice.entry.kernel_id = operator.name
        return choice

    def add_model(self, times: ModelTimes) -> None:
        self.models[times.form] = times

    def by_models(self, operator: Operator, kernel: str, form: str, device: str, threads: int | None) -> bool | None:
        assert (kernel, device) == (operator.name, CPU.device_kind)
        return self._serves.get((operator, form))


@pytest.fixture
def recorded() -> work.RecordedWork:
    return calls_of(nn.Sequential(nn.Linear(64, 48), nn.Softmax(-1)), torch.randn(20, 64))


def timed_as(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[set[str]], float]) -> None:
    """A model's time by the names of the kernels that serve it."""

    def sample(way: Any) -> float:
        with way.within() as used:
            before = {} if used is None else {id(met): met.calls.served for met in used.met}
            way.run()
            met = () if used is None else used.met
        return seconds({one.operator.name for one in met if one.calls.served > before.get(id(one), 0)})

    monkeypatch.setattr(deciding, "sample", sample)


TAKES = {
    "all gain": (lambda serve: 1.0 - 0.1 * len(serve), {"gemm", "softmax"}),
    "one makes the whole slower": (lambda serve: 1.0 - 0.1 * ("gemm" in serve) + 0.05 * ("softmax" in serve), {"gemm"}),
    "none gains": (lambda serve: 1.0 + 0.01 * len(serve), set()),
    "only both together gain": (lambda serve: 0.9 if len(serve) == 2 else 1.1 if serve else 1.0, {"gemm", "softmax"}),
}


@pytest.mark.parametrize("case", TAKES)
def test_the_time_of_the_whole_decides_what_serves(
    case: str, recorded: work.RecordedWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, want = TAKES[case]
    timed_as(monkeypatch, seconds)
    library, lines = Deciding(), list[str]()
    monkeypatch.setattr(deciding, "_COMPILING", 1e9)
    deciding.decide(recorded, library, CPU, seconds=100.0, stop=Event(), say=lines.append)  # type: ignore[arg-type]
    times = library.models["eager"]
    assert {one.operator.name for one in times.kernels if one.serves} == want
    assert {one.operator.name for one in times.kernels} == {"gemm", "softmax"}
    assert times.seconds <= times.without == 1.0, "no model is slower"
    assert f"the model, eager: {len(want)} of 2 kernels serve" in lines[-2]
    assert "compiled: not decided: too little time" in lines[-1] and set(library.models) == {"eager"}


def test_what_is_stopped_or_has_no_time_stays_undecided(
    recorded: work.RecordedWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, lines, stop = Deciding(), list[str](), Event()
    timed_as(monkeypatch, lambda serve: 1.0)
    deciding.decide(recorded, library, CPU, seconds=0.0, stop=stop, say=lines.append)  # type: ignore[arg-type]
    assert not library.models and len(lines) == 2 and all("too little time" in line for line in lines)
    timed_as(monkeypatch, lambda serve: float(bool(stop.set())) or 1.0)
    deciding.decide(recorded, library, CPU, seconds=100.0, stop=stop, say=lines.append)  # type: ignore[arg-type]
    assert not library.models


def test_a_kernel_serves_as_recorded_models_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """No races: the eager model is faster with one kernel, the compiled one with the other."""
    monkeypatch.setattr(routes, "race", lambda *_: pytest.fail("it is decided"))
    serves = {(PRODUCT, "eager"): True, (PRODUCT, "compiled"): False, (ROWS, "eager"): False, (ROWS, "compiled"): True}
    router = routes.Router(Deciding(serves))  # type: ignore[arg-type]
    x, weight, bias = torch.randn(20, 64), torch.randn(48, 64), torch.randn(48)
    product = router.route("linear", (x, weight, bias), F.linear)
    rows = router.route("softmax", (torch.randn(20, 48), -1), torch.softmax)
    assert product is not None and rows is not None
    assert (product.called, product.compiled, rows.called, rows.compiled) == (True, False, False, True)
    node = SimpleNamespace(meta={"val": torch.empty(20, 48)})
    assert [inductor._pays(router, one, "addmm", (), node) for one in (product, rows)] == [False, True]


def test_what_no_model_gains_from_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepgen.frontends.torch.dispatching.core", lambda: None)
    forms = ("eager", "compiled")
    x, own, linear = torch.randn(20, 48), torch.softmax, F.linear
    library = Deciding({(one, form): one == PRODUCT for one in (PRODUCT, ROWS) for form in forms})
    with torch.no_grad(), dt.use(library) as used:
        assert torch.softmax is own and F.linear is not linear
        F.linear(torch.randn(20, 64), torch.randn(48, 64), torch.randn(48)), torch.softmax(x, -1)
    assert [(met.operator, met.why) for met in used.met] == [(PRODUCT, "recorded models are faster with it")]
    with dt.use(Deciding({(one, form): False for one in (PRODUCT, ROWS) for form in forms})) as used:
        assert torch.softmax is own and F.linear is linear
    assert not used.unused


def test_decisions_are_kept_in_a_library_until_models_differ(tmp_path: Path) -> None:
    def times(model: str, *serves: bool, threads: int | None = 2) -> ModelTimes:
        kernels = tuple(DecidedKernel(one, one.name, serve) for one, serve in zip((PRODUCT, ROWS), serves, strict=True))
        return ModelTimes(model, "eager", "a device", threads, 1.0, 1.5, kernels)

    def answers(library: Library, threads: int | None = 2) -> list[bool | None]:
        ask = library.by_models
        return [ask(one, one.name, "eager", "a device", threads) for one in (PRODUCT, ROWS)]

    library = dg.library(tmp_path / "lib", create=True)
    assert answers(library) == [None, None]
    library.add_model(times("one", True, False))
    assert answers(library) == [True, False] and answers(library, 1) == answers(library, None) == [None, None]
    assert library.by_models(PRODUCT, "another", "eager", "a device", 2) is None, "the kernel was replaced"
    other = dg.library(tmp_path / "other", create=True)
    other.add_model(times("two", True, True))
    library.merge(other)
    assert answers(dg.library(tmp_path / "lib")) == [True, None]
    library.add_model(times("two", True, False))
    assert answers(library) == [True, False]
    (path,) = (tmp_path / "lib/models").glob(f"{times('two', True, True).name}.json")
    path.write_text("{}")
    assert [*dg.library(tmp_path / "lib").damaged()] == [f"models/{path.name}"]


def test_the_command_leaves_time_for_the_model(
    recorded: work.RecordedWork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.save(tmp_path / "work.json")
    monkeypatch.chdir(tmp_path)
    steps = list[Any]()
    monkeypatch.setattr(session, "carry_out", lambda jobs, *_, **__: steps.append(jobs[0].request.time_budget))
    monkeypatch.setattr(session, "decide_by_model", lambda work, folder, target, seconds: steps.append(seconds))
    assert main(["tune", "work.json", "--time-budget", "1000", "--library", "lib"]) == 0
    assert steps[0] == pytest.approx(850.0) and steps[1] == pytest.approx(150.0)
