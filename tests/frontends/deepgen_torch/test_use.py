"""`with deepgen.torch.use(library):` a model gives the same results, and the library's kernels compute its products."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from stand_in import Everything  # noqa: E402

import deepgen.torch as dt  # noqa: E402
from deepgen.frontends.torch import calls as calls_of_torch  # noqa: E402
from deepgen.frontends.torch import functions, race, routes  # noqa: E402
from deepgen.operators import gemm, softmax  # noqa: E402
from deepgen.vocabulary import BadInput, DeepgenError  # noqa: E402
from deepgen.vocabulary.measurement import Properties  # noqa: E402

F = torch.nn.functional


def random(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def integers(*shape: int) -> Any:
    return (random(*shape) * 50).clamp(-128, 127).to(torch.int8)


OFFSETS = torch.tensor([11, 11, 30], dtype=torch.int32)
ALL_OF_24 = torch.tensor([8, 8, 24], dtype=torch.int32)
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "linear": (lambda: F.linear(random(20, 24), random(16, 24)), "gemm f32 nt 20x16x24"),
    "linear with bias": (lambda: F.linear(random(2, 10, 24), random(16, 24), random(16)), "gemm f32 nt 20x16x24 bias"),
    "nn.Linear": (lambda: torch.nn.Linear(24, 16)(random(20, 24)).detach() * 0, "gemm f32 nt 20x16x24 bias"),
    "mm": (lambda: torch.mm(random(20, 24), random(24, 16)), "gemm f32 nn 20x16x24"),
    "mm of a transposed matrix": (lambda: torch.mm(random(24, 20).t(), random(16, 24).t()), "gemm f32 tt 20x16x24"),
    "the operator @": (lambda: random(3, 5, 24) @ random(24, 16), "gemm f32 nn 15x16x24"),
    "matmul of batches": (lambda: random(2, 3, 5, 24) @ random(2, 3, 24, 8), "gemm f32 nn batch 6 of 5x8x24"),
    "bmm": (lambda: torch.bmm(random(4, 5, 24), random(4, 8, 24).mT), "gemm f32 nt batch 4 of 5x8x24"),
    "addmm": (lambda: torch.addmm(random(16), random(20, 24), random(24, 16)), "gemm f32 nn 20x16x24 bias"),
    "products of integers": (lambda: torch._int_mm(integers(20, 24), integers(16, 24).t()), "gemm i8_i32 nt 20x16x24"),
    "softmax": (lambda: F.softmax(random(2, 4, 40), dim=-1), "softmax f32 rows=8 cols=40"),
    "layer_norm": (lambda: F.layer_norm(random(6, 40), (40,), random(40), random(40)), "layer_norm f32 rows=6 cols=40"),
    "grouped_mm": (lambda: torch._grouped_mm(random(30, 24), random(3, 16, 24).mT, offs=OFFSETS),
                   "grouped_gemm f32 nt 3 experts 30x16x24"),
    "grouped_mm of weights in rows": (lambda: torch._grouped_mm(random(30, 24), random(3, 24, 16), OFFSETS),
                                      "grouped_gemm f32 nn 3 experts 30x16x24"),
    "gradient of grouped_mm": (lambda: torch._grouped_mm(random(30, 24).mT, random(30, 16), offs=OFFSETS),
                               "grouped_gemm f32 tn 3 experts 24x16x30"),
    "rms_norm": (lambda: F.rms_norm(random(6, 40), (40,), random(40), 1e-5), "rms_norm f32 rows=6 cols=40"),
    "attention": (lambda: F.scaled_dot_product_attention(*(random(2, 4, 9, n) for n in (16, 16, 16))),
                  "attention f32 bhsd batch 2, 4 heads, 9, width 16"),
    "attention with a mask": (lambda: F.scaled_dot_product_attention(
                                  random(2, 4, 9, 16), random(2, 4, 12, 16), random(2, 4, 12, 16), random(9, 12)),
                              "attention f32 bhsd batch 2, 4 heads, 9x12, width 16 bias"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call_gives_what_torch_gives_and_a_kernel_serves_it(name: str) -> None:
    call, operator = CALLS[name]
    with torch.no_grad():
        want = call()
        with dt.use(Everything(), race=False) as used:
            first, again = call(), call()
    assert [met.operator.describe() for met in used.met] == [operator]
    assert used.met[0].ours, used.met[0].why
    assert first.shape == want.shape and first.is_contiguous()
    torch.testing.assert_close(first, want)
    torch.testing.assert_close(again, want)


def test_where_a_library_has_no_kernel_torch_serves() -> None:
    """torch's own functions call each other through our replacements: F.rms_norm once recursed for ever."""
    calls = [call for call, _ in CALLS.values()]
    calls += [lambda: F.rms_norm(random(6, 40), (40,), random(40)), lambda: torch.rms_norm(random(6, 40), (40,))]
    with torch.no_grad():
        for call in calls:
            want = call()
            with dt.use(Everything(kinds=()), race=False):
                torch.testing.assert_close(call(), want)


def _autocast() -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(random(4, 8), random(6, 8))


def attend(*more: Any, dtype: Any = torch.float32, **named: Any) -> Any:
    return F.scaled_dot_product_attention(*(random(2, 4, 9, 16, dtype=dtype) for _ in range(3)), *more, **named)


UNSERVED: dict[str, Callable[[], Any]] = {
    "rows that are not contiguous": lambda: random(20, 48)[:, ::2] @ random(24, 16),
    "a broadcast batch": lambda: torch.matmul(random(3, 5, 24), random(1, 24, 8)),
    "a vector": lambda: torch.matmul(random(24), random(24, 8)),
    "integers": lambda: torch.mm(torch.ones(4, 4, dtype=torch.int64), torch.ones(4, 4, dtype=torch.int64)),
    "nothing": lambda: torch.mm(random(0, 4), random(4, 4)),
    "softmax of columns": lambda: torch.softmax(random(4, 5), 0),
    "softmax in another format": lambda: torch.softmax(random(4, 5), 1, dtype=torch.float64),
    "beta": lambda: torch.addmm(random(8), random(4, 5), random(5, 8), beta=2.0),
    "autocast": _autocast,
    "a grouped product without offsets": lambda: torch._grouped_mm(random(3, 8, 8), random(3, 8, 8)),
    "a grouped product by ranges of columns": lambda: torch._grouped_mm(random(3, 8, 8), random(8, 24), offs=ALL_OF_24),
    "attention with a mask of booleans": lambda: attend(torch.ones(9, 9, dtype=torch.bool).tril()),
    "attention with dropout of everything": lambda: attend(dropout_p=1.0),
    "attention in another format": lambda: attend(dtype=torch.float64),
    "vmap": lambda: torch.vmap(torch.mm)(random(3, 4, 5), random(3, 5, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSERVED)
def test_what_kernels_do_not_serve_stays_with_torch(name: str) -> None:
    want = UNSERVED[name]()
    with dt.use(Everything(), race=False):
        torch.testing.assert_close(UNSERVED[name](), want)
        torch.testing.assert_close(UNSERVED[name](), want)


@st.composite
def matrices(draw: st.DrawFn, rows: int, columns: int) -> Any:
    """A matrix of integers: in its own memory, transposed, a slice, or at an odd offset."""
    kind = draw(st.sampled_from(("dense", "transposed", "slice", "offset")))
    if kind == "transposed":
        return torch.arange(rows * columns).remainder(7).float().view(columns, rows).t()
    wide = columns + 3 if kind == "slice" else columns
    first = 1 if kind == "offset" else 0
    numbers = torch.arange(rows * wide + first).remainder(5).float()
    return numbers[first:].view(rows, wide)[:, :columns]


def test_views_of_any_kind_give_what_torch_gives() -> None:
    """Integers, so that sums are exact. One library for all, so that cached decisions are used by later calls."""
    used = dt.use(Everything(kinds=("gemm",)), race=False)

    @given(data=st.data(), sizes=st.tuples(*[st.integers(1, 9)] * 3), rows=st.sampled_from(("mm", "linear", "matmul")))
    def same(data: st.DataObject, sizes: tuple[int, int, int], rows: str) -> None:
        m, n, k = sizes
        a, b = data.draw(matrices(m, k)), data.draw(matrices(k, n))
        call = {
            "mm": lambda: torch.mm(a, b),
            "linear": lambda: F.linear(a, b.t()),
            "matmul": lambda: torch.matmul(a.unsqueeze(0), b),
        }[rows]
        want = call()
        with used:
            for _ in range(2):
                assert torch.equal(call(), want)

    same()
    assert any(met.ours for met in used.met) and not all(met.ours for met in used.met)


def test_normalisations_without_weight_or_bias_are_torchs() -> None:
    """The second such call once ended in an error: the cached entry of the first one had fewer tensors."""
    x, vector = random(6, 40), random(40)
    calls: list[Callable[[], Any]] = [
        lambda: F.layer_norm(x, (40,), None, None, 1e-5),
        lambda: F.layer_norm(x, (40,), vector, None, 1e-5),
        lambda: F.layer_norm(x, (40,), None, vector, 1e-5),
        lambda: F.rms_norm(x, (40,), None, 1e-5),
    ]
    for call in calls:
        want = call()
        with torch.no_grad(), dt.use(Everything(), race=False):
            for _ in range(3):
                assert torch.equal(call(), want)


@pytest.mark.usefixtures("in_python")
def test_a_result_that_overlaps_an_operand_is_torchs() -> None:
    a, b = random(8, 8), random(8, 8)
    want = torch.mm(a, b, out=torch.empty(16, 8)[4:12])
    buffer = torch.empty(16, 8)
    with torch.no_grad(), dt.use(Everything(), race=False) as used:
        for _ in range(2):
            torch.testing.assert_close(torch.mm(a, b, out=buffer[8:]), want)
            left = buffer[:8].copy_(a)
            torch.testing.assert_close(torch.mm(left, b, out=buffer[8:]), want)
            torch.mm(left, b, out=buffer[4:12])  # torch does not refuse it
    assert used.met[0].calls.refused == 2


def test_a_mistake_is_torchs_own_error() -> None:
    with dt.use(Everything(), race=False):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                torch.mm(random(4, 5), random(4, 5))
            with pytest.raises(RuntimeError, match="dtype"):
                F.linear(random(4, 5), random(3, 5, dtype=torch.float64))


@pytest.mark.parametrize("change", [lambda w: w.t(), lambda w: w[:5], lambda w: w.double(), lambda w: w * 2.0])
def test_a_parameter_that_gets_other_data_is_looked_at_again(change: Callable[[Any], Any]) -> None:
    """Square, so that its shape does not reveal that it was transposed."""
    weight, x = torch.nn.Parameter(random(24, 24), requires_grad=False), random(10, 24)
    with dt.use(Everything(), race=False):
        F.linear(x, weight)
        weight.data = change(weight.data)
        like = x.to(weight.dtype)
        torch.testing.assert_close(F.linear(like, weight), like @ weight.t())


def test_a_slice_that_comes_first_does_not_decide_for_whole_tensors() -> None:
    weight, x = torch.nn.Parameter(random(16, 24), requires_grad=False), random(10, 48)[:, :24]
    with dt.use(Everything(), race=False) as used:
        torch.testing.assert_close(F.linear(x, weight), x @ weight.t())
        torch.testing.assert_close(F.linear(x.contiguous(), weight), x @ weight.t())
    assert [met.ours for met in used.met if met.operator.describe() == "gemm f32 nt 10x16x24"] == [False, True]


def test_what_is_added_is_looked_at_by_its_shape() -> None:
    weight, x = torch.nn.Parameter(random(16, 24), requires_grad=False), random(10, 24)
    with dt.use(Everything(), race=False):
        for bias in (random(16), random(1), random(32)[::2], random(10, 16)):
            torch.testing.assert_close(F.linear(x, weight, bias), x @ weight.t() + bias)


def test_another_thread_gets_its_own_binding() -> None:
    """For any order of tensors and other arguments."""
    a, b, vector = random(20, 24), random(24, 24), random(24)
    other = random(24) + 1.0
    calls: list[Callable[[], Any]] = [
        lambda: torch.mm(a, b),
        lambda: torch.addmm(vector, a, b),
        lambda: torch.softmax(a, -1),
        lambda: F.layer_norm(a, (24,), vector, other, 1e-5),
        lambda: F.rms_norm(a, (24,), vector, 1e-5),
    ]
    found: list[Any] = []
    with torch.no_grad():
        want = [call() for call in calls]
        with dt.use(Everything(), race=False) as used:
            for _ in range(2):
                torch.testing.assert_close([call() for call in calls], want)
            thread = threading.Thread(target=torch.no_grad()(lambda: found.extend(call() for call in calls)))
            thread.start()
            thread.join()
    torch.testing.assert_close(found, want)
    assert [(met.calls.served, met.calls.refused) for met in used.met] == [(3, 0)] * len(calls)


def test_torch_is_as_before_once_the_library_is_left() -> None:
    places = ((F, "linear"), (torch, "mm"), (torch.Tensor, "__matmul__"), (torch, "compile"), (torch.jit, "trace"))
    before = [getattr(owner, name) for owner, name in places]
    with pytest.raises(ZeroDivisionError), dt.use(Everything()):
        assert F.linear is not before[0]
        raise ZeroDivisionError
    assert [getattr(owner, name) for owner, name in places] == before
    used = dt.patch(Everything())
    with pytest.raises(BadInput, match="in use already"):
        dt.patch(Everything())
    used.close()
    assert F.linear is before[0]
    with pytest.raises(BadInput, match="not a library"):
        dt.use("deepgen-library")


@pytest.mark.usefixtures("in_python")
def test_functions_that_no_kernel_serves_stay_in_their_places() -> None:
    library = Everything()
    library.list = lambda: [SimpleNamespace(operator=softmax(8, 8))]  # type: ignore[attr-defined]
    before = (F.linear, torch.mm, torch._scaled_mm)
    with dt.use(library):
        assert (F.linear, torch.mm, torch._scaled_mm) == before
        assert "other_of" in torch.softmax.__qualname__
    library.list = lambda: [SimpleNamespace(operator=gemm(8, 8, 8))]  # type: ignore[attr-defined]
    with dt.use(library):
        assert F.linear is not before[0] and torch._scaled_mm is before[2]


def test_torch_keeps_what_it_does_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The race is decided by given times: a busy machine would sometimes decide otherwise."""
    a, b = random(20, 24), random(24, 16)
    for rounds, ours in (([0.5], False), ([1.01, 0.99, 1.01], False), ([1.01] * 9, True), ([2.0], True)):
        for name in ("race", "race_for_cores"):
            raced = race.decided([1.0] * len(rounds), rounds)
            monkeypatch.setattr(routes, name, lambda *_, raced=raced: raced)
        with torch.no_grad(), dt.use(Everything()) as used:
            torch.mm(a, b)
        assert [met.ours for met in used.met] == [ours]
        assert "us, torch" in str(used)


def test_a_race_times_both_in_turns() -> None:
    order: list[str] = []
    raced = race.race(lambda: order.append("ours"), lambda: order.append("torch"), torch.device("cpu"))
    assert order[:4] == ["ours", "torch"] * 2 and min(raced.mine, raced.other) >= 0


def test_a_race_for_cores_counts_what_torch_does_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds are given; those of torch's next operators depend on what ran before."""
    seconds = {"ours": 1.0, "torch": 2.0, "torch's next after ours": 5.0, "torch's next after torch": 3.0}
    before = ""

    def given(run: Callable[[], str | None]) -> float:
        nonlocal before
        name = run()
        if not isinstance(name, str):
            return seconds[f"torch's next after {before}"]
        before = name
        return seconds[name]

    monkeypatch.setattr(race, "_on_cpu", given)
    raced = race.race_for_cores(lambda: "ours", lambda: "torch")
    assert (raced.mine, raced.other, raced.won) == (3.0, 2.0, False)
    seconds["torch's next after ours"] = 0.5  # on a busy machine
    raced = race.race_for_cores(lambda: "ours", lambda: "torch")
    assert (raced.mine, raced.other, raced.won) == (1.0, 4.5, True)


def test_on_a_gpu_calls_and_graphs_are_decided_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU is simulated: its event times, and the CPU times of a call."""

    def ours() -> None: ...

    def theirs() -> None: ...

    gpu: Any = SimpleNamespace(type="cuda")
    on_gpu, calling = {ours: 1.0, theirs: 2.0}, {ours: 3.0, theirs: 3.0}
    monkeypatch.setattr(race, "_on_gpu", lambda device: on_gpu.__getitem__)
    monkeypatch.setattr(race, "_enqueued", lambda run, wait: calling[run])
    raced = race.race(ours, theirs, gpu)
    assert raced.won and raced.called and str(raced) == "1000000.0 us, torch 2000000.0 us"
    calling[ours] = 3.1
    raced = race.race(ours, theirs, gpu)
    assert raced.won and not raced.called and "a call costs 3100000.0 us, torch's 3000000.0 us" in str(raced)
    on_gpu.update({ours: 20.0, theirs: 21.0})  # long kernels: the CPU is ahead of the GPU
    assert race.race(ours, theirs, gpu).won and race.race(ours, theirs, gpu).called
    calling[ours] = 4.5
    assert not race.race(ours, theirs, gpu).called
    on_gpu[ours] = 21.0
    assert not race.race(ours, theirs, gpu).won
    on_gpu.update({ours: 11.7, theirs: 11.0})  # a short kernel that lost: the GPU waits even longer for torch's calls
    calling.update({ours: 10.0, theirs: 17.0})
    raced = race.race(ours, theirs, gpu)
    assert not raced.won and raced.called and "a call costs 10000000.0 us, torch's 17000000.0 us" in str(raced)
    calling[theirs] = 11.2  # the loss where the GPU is the limit exceeds the gain where it waits
    assert not race.race(ours, theirs, gpu).called
    on_gpu.update({ours: 18.0, theirs: 17.5})  # longer kernels: the GPU does not wait
    calling[theirs] = 17.0
    raced = race.race(ours, theirs, gpu)
    assert not raced.called and str(raced) == "18000000.0 us, torch 17500000.0 us"


def test_what_the_processor_takes_for_a_call_is_timed_without_waiting_in_between() -> None:
    order: list[str] = []
    assert race._enqueued(lambda: order.append("call"), lambda: order.append("wait")) >= 0
    assert order[0] == order[-1] == "wait" and {*order[1:-1]} == {"call"} and len(order) > 10


@pytest.mark.usefixtures("in_python")
@pytest.mark.parametrize(
    ("raced", "outside", "captured"),
    [
        pytest.param(race.TorchRace(1.0, 2.0, True, (2.0, 1.0)), 0, 1, id="calls take the processor longer"),
        pytest.param(race.TorchRace(1.0, 0.98, False, (1.0, 2.0)), 1, 0, id="only calls are faster"),
    ],
)
def test_a_kernel_may_serve_graphs_only_or_calls_only(
    raced: race.TorchRace, outside: int, captured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graph replays make no calls, and no graph is captured at first. The GPU is simulated."""
    state = SimpleNamespace(capturing=False)
    for name in ("race", "race_for_cores"):
        monkeypatch.setattr(routes, name, lambda *_: raced)
    idle = property(lambda self: not (self.captured if state.capturing else self.called))
    monkeypatch.setattr(routes.Route, "idle", idle)
    a, b, square = random(20, 24), random(24, 16), torch.nn.Parameter(random(24, 24), requires_grad=False)
    with torch.no_grad(), dt.use(Everything()) as used:
        for call in (lambda: torch.mm(a, b), lambda: F.linear(a, square), lambda: torch.softmax(a, -1)):
            state.capturing = False
            want = call()
            met, served = used.met[-1], outside
            for capturing in (False, True, True, False):
                state.capturing = capturing
                torch.testing.assert_close(call(), want)
                served += captured if capturing else outside
                assert met.ours and met.calls.served == served
            assert "a call costs" in met.why


@pytest.mark.usefixtures("in_python")
def test_calls_are_counted_by_who_served_them() -> None:
    weight, x = torch.nn.Parameter(random(16, 24), requires_grad=False), random(10, 24)
    with torch.no_grad(), dt.use(Everything(), race=False) as used:
        for _ in range(3):
            F.linear(x, weight)
        torch.mm(x, random(24, 16), out=torch.empty(16, 10).t())  # a layout that the kernel does not write
    assert [(met.calls.served, met.calls.refused) for met in used.met] == [(3, 0), (0, 1)]
    assert "deepgen         3 gemm f32 nt 10x16x24" in str(used)


def test_the_compiler_sees_operators_in_traced_tensors() -> None:
    """Calls with symbolic shapes have no operator; with concrete shapes it is the same as for a real tensor."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from deepgen.frontends.torch import calls, products

    with FakeTensorMode():
        a, b = torch.empty(20, 24), torch.empty(16, 24)
        assert products.mm(a, b.t()).operator == gemm(20, 16, 24, layout="nt")  # type: ignore[union-attr]
        assert calls.softmax_of(a, 1).operator == softmax(20, 24)  # type: ignore[union-attr]


def test_a_kernel_with_memory_of_its_own_has_some_for_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """During the capture of a graph nothing can be allocated, and its stream is new. torch's GPU is simulated."""
    from contextlib import nullcontext

    from deepgen.frontends.torch.products import KINDS, mm

    fired: list[tuple[str, int]] = []
    state = SimpleNamespace(stream=1, capturing=False)

    class Kernel:
        align, by_stream = 1, True
        bound = 0

        def meet(self, *tensors: Any) -> Any:
            assert not state.capturing, "it would allocate"
            self.bound += 1
            name = f"binding {self.bound}"
            return torch.zeros(4, 6), lambda at, stream: fired.append((name, stream))

    monkeypatch.setattr(routes, "_stream", lambda device: state.stream)
    monkeypatch.setattr(routes, "capturing", lambda device: state.capturing)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    a, b = random(4, 5), random(5, 6)
    asked = mm(a, b)
    assert asked is not None
    route = routes.Route(asked, KINDS["mm"], routes.Won(Kernel(), 1.0, ""), (a, b))  # type: ignore[arg-type]
    route.on_gpu = True
    state.capturing = True
    run = route.quick()
    assert run(a, b) is None, "nothing was kept yet: torch serves"
    state.capturing = False
    run(a, b)
    run(a, b)
    state.capturing, state.stream = True, 7
    assert run(a, b) is not None
    assert fired == [("binding 2", 1), ("binding 1", 7)]


def test_products_of_8_bit_floats_are_seen_with_their_scale() -> None:
    from deepgen.frontends.torch import calls, products

    a, b = (random(16, 32).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.tensor(1.0)
    want = gemm(16, 16, 32, dtype="f8e4m3", layout="nt", scales="tensor")
    asked = products.scaled_mm(a, b.t(), one)
    assert asked is not None and asked.operator == want and asked.shape == (16, 16)
    assert [tensor.shape for tensor in asked.tensors] == [(16, 32), (16, 32), (1,)]
    seen = calls.ATEN[torch.ops.aten._scaled_mm.default](a, b.t(), one, one, None, None, torch.bfloat16)
    assert seen is not None and seen.operator == want


def test_shapes_that_never_repeat_stay_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "KINDS_DECIDED", 2)
    with torch.no_grad(), dt.use(Everything(kinds=("gemm",)), race=False) as used:
        for rows in range(1, 6):
            torch.testing.assert_close(torch.mm(torch.ones(rows, 4), torch.ones(4, 4)), torch.full((rows, 4), 4.0))
    assert len(used.met) == 2


def test_of_shapes_that_never_repeat_a_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "KINDS_KEPT", 2)
    asked: list[int] = []
    monkeypatch.setattr(routes.Router, "route", lambda *_: asked.append(1))
    with torch.no_grad(), dt.use(Everything(kinds=("rms_norm",)), race=False):
        for rows in range(1, 6):
            F.rms_norm(random(rows, 40), (40,), random(40), 1e-5)
    assert len(asked) == 2


def test_torchs_attention_shows_its_layout_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads, and graphs that are captured, have calls like it."""
    looks: list[int] = []
    attend = calls_of_torch.attend
    monkeypatch.setattr(calls_of_torch, "attend", lambda *args: looks.append(1) or attend(*args))
    results: list[Any] = []

    def call() -> None:
        with torch.no_grad():
            results.append(F.scaled_dot_product_attention(*(random(1, 2, 9, 16) for _ in range(3))))

    with dt.use(Everything(), race=False) as used:
        for thread in [threading.Thread(target=call) for _ in range(3)]:
            thread.start()
            thread.join()
    assert len(looks) == 1 and used.met[0].calls.served == 3
    torch.testing.assert_close(results[1:], results[:1] * 2)


def test_attention_reads_caches_and_has_torchs_layout() -> None:
    """Heads of a position lie together where a layer has made them, and a cache has room for more keys."""
    q = random(2, 5, 4, 16).transpose(1, 2)
    cache = random(2, 2, 30, 16)
    calls: list[Callable[[], Any]] = [
        lambda: F.scaled_dot_product_attention(q, q + 1, q - 1, is_causal=True),
        lambda: F.scaled_dot_product_attention(q[:, :, -1:], cache[:, :, :20], cache[:, :, 1:21], enable_gqa=True),
    ]
    with torch.no_grad():
        for call in calls:
            want = call()
            with dt.use(Everything(), race=False) as used:
                results = [call() for _ in range(2)]
            assert used.met[0].ours and "bshd" in used.met[0].operator.describe()
            for result in results:
                assert result.stride() == want.stride()
                torch.testing.assert_close(result, want)


def test_a_kernel_that_fails_in_python_is_given_up_with_one_warning() -> None:
    x, weight = random(6, 40), random(40)
    with torch.no_grad(), dt.use(Everything(), race=False) as used:
        want = F.rms_norm(x, (40,), weight, 1e-5)
        [route] = [one for one in used._router._routes.values() if one is not None]

        def fails(at: Any, stream: int) -> None:
            raise DeepgenError("no memory")

        for thread in route._fires:
            route._fires[thread] = fails
        with pytest.warns(RuntimeWarning, match="a kernel failed, and torch serves such calls .* no memory") as said:
            for _ in range(3):
                torch.testing.assert_close(F.rms_norm(x, (40,), weight, 1e-5), want)
        assert len(said) == 1 and used.met[0].calls.served == 1


def test_a_growing_cache_is_decided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    raced: list[int] = []
    answer = race.TorchRace(1.0, 2.0, True)
    monkeypatch.setattr(routes, "race", lambda *_: raced.append(1) or answer)
    library = Everything(kinds=("attention",))
    q = random(1, 2, 1, 16)
    with torch.no_grad(), dt.use(library) as used:
        keys = [random(1, 2, count, 16) for count in (40, 41, 47, 55, 60)]
        results = [F.scaled_dot_product_attention(q, k, k + 1) for k in keys]
        F.scaled_dot_product_attention(q, q, q)
    assert len(raced) == len(used.met) == 3, "40 and 60 are more than half an octave apart, and 1 is far away"
    assert sum(met.calls.served for met in used.met) == 6
    torch.testing.assert_close(results, [F.scaled_dot_product_attention(q, k, k + 1) for k in keys])


@pytest.mark.parametrize("properties", [Properties(), Properties("kept"), Properties("kept", "lost")])
def test_a_kernel_that_was_not_tried_with_special_numbers_does_not_serve(properties: Properties) -> None:
    with torch.no_grad(), dt.use(Everything(properties=properties), race=False) as used:
        torch.testing.assert_close(torch.relu(a := random(40, 8)), a.clamp(min=0))
        F.linear(random(4, 8), random(6, 8))
    assert used.met and not any(met.ours for met in used.met)
    assert all("the kernel " in met.why and "infinities" in met.why for met in used.met), [m.why for m in used.met]
