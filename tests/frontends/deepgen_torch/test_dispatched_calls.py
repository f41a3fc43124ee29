"""Calls in C++: what reaches kernels below torch's dispatcher, and what stays unchanged."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")


from stand_in import Everything  # noqa: E402

import deepgen.torch as dt  # noqa: E402
from deepgen.frontends.torch import routes  # noqa: E402
from deepgen.operators import gemm  # noqa: E402
from deepgen.run.call.calling import Loaded  # noqa: E402
from deepgen.vocabulary import DeepgenError  # noqa: E402

F = torch.nn.functional
pytestmark = pytest.mark.parametrize("way", ["C++"], indirect=True)
X, SQUARE = torch.randn(6, 24), torch.randn(24, 24)


def registered(name: str) -> bool:
    return "deepgen" in torch._C._dispatch_dump(name)


def test_only_operators_that_a_library_serves_are_registered_and_only_while_it_is_in_use() -> None:
    library = Everything()
    library.list = lambda: [SimpleNamespace(operator=gemm(8, 8, 8), target=SimpleNamespace(runner="cpu"))]  # type: ignore[attr-defined]
    before = registered("aten::_softmax")  # idle, if other threads were active when a library was left
    with torch.no_grad(), dt.use(library):
        assert registered("aten::mm") and registered("aten::addmm") and registered("aten::_softmax") == before
        torch.mm(X, SQUARE)
    assert threading.active_count() > 1 or not registered("aten::mm")
    torch.testing.assert_close(torch.mm(X, SQUARE), X @ SQUARE)


def test_gradients_autocast_and_vmap_stand_above_kernels() -> None:
    weight = torch.randn(16, 24, requires_grad=True)
    want = torch.autograd.grad(F.linear(X, weight).sin().sum(), weight)
    several = torch.randn(3, 6, 24)
    batched = torch.vmap(torch.mm, (0, None))(several, SQUARE)
    with dt.use(Everything(kinds=("gemm",)), race=False) as used:
        torch.testing.assert_close(torch.autograd.grad(F.linear(X, weight).sin().sum(), weight), want)
        forward_and_backward = sum(met.calls.served for met in used.met)
        torch.testing.assert_close(torch.vmap(torch.mm, (0, None))(several, SQUARE), batched)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.mm(X, SQUARE).dtype == torch.bfloat16
    assert forward_and_backward == 2
    assert {"bf16", "f32"} <= {word for met in used.met for word in met.operator.describe().split()}


def test_layers_with_a_path_of_their_own_inside_torch_are_served() -> None:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    x = torch.randn(2, 5, 32)
    with torch.no_grad():
        want = layer(x)
        with dt.use(Everything(kinds=("gemm",)), race=False) as used:
            torch.testing.assert_close(layer(x), want)
    assert any(met.calls.served for met in used.met)


def test_a_kernel_that_fails_is_given_up_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(at: Any, stream: int) -> None:
        raise RuntimeError("no memory")

    want = torch.mm(X, SQUARE)
    with torch.no_grad(), dt.use(Everything(), race=False) as used:
        monkeypatch.setattr(routes.Route, "ready", lambda self, args=None: fails)
        with pytest.warns(RuntimeWarning, match="a kernel failed, and torch serves such calls .* no memory"):
            torch.testing.assert_close(torch.mm(X, SQUARE), want)
        torch.testing.assert_close(torch.mm(X, SQUARE), want)
    assert [met.calls.served for met in used.met] == [0]


def test_a_kernel_that_fails_when_another_thread_meets_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, *tensors: Any) -> Any:
        raise DeepgenError("no memory")

    results: list[Any] = []
    call = torch.no_grad()(lambda: results.append(torch.mm(X, SQUARE)))
    with dt.use(Everything(), race=False) as used:
        call()
        monkeypatch.setattr(Loaded, "meet", fails)
        with pytest.warns(RuntimeWarning, match="a kernel failed, and torch serves such calls .* no memory") as said:
            for thread in [threading.Thread(target=call) for _ in range(2)]:
                thread.start()
                thread.join()
    assert len(said) == 1 and [met.calls.served for met in used.met] == [1]
    torch.testing.assert_close(results, [X @ SQUARE] * 3)


def test_a_library_may_be_left_while_threads_call() -> None:
    wrong: list[Any] = []
    ends = threading.Event()
    want = X @ SQUARE

    def calls() -> None:
        with torch.no_grad():
            while not ends.is_set():
                if not torch.allclose(torch.mm(X, SQUARE), want, atol=1e-4):
                    wrong.append("another result")

    library = Everything()
    threads = [threading.Thread(target=calls) for _ in range(3)]
    for thread in threads:
        thread.start()
    with torch.no_grad():
        for _ in range(30):
            with dt.use(library, race=False) as used:
                for _ in range(5):
                    torch.mm(X, SQUARE)
            assert used.met[0].calls.served >= 5
    ends.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_where_nothing_is_called_that_a_library_has_one_is_told() -> None:
    library = Everything(kinds=("softmax",))
    library.list = lambda: [SimpleNamespace(operator=gemm(8, 8, 8), target=SimpleNamespace(runner="cpu"))]  # type: ignore[attr-defined]
    used = dt.use(library)
    with pytest.warns(UserWarning, match="No call was met that the library has a kernel for: gemm f32"), used:
        torch.mm(X, SQUARE)


@pytest.mark.slow
def test_torchs_own_samples_are_as_without_a_library() -> None:
    """In a separate process: torch's tests change compiler settings when they are imported."""
    words = [sys.executable, str(Path(__file__).with_name("opinfo.py")), "--seed", "1", "--samples", "1"]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    assert run.returncode == 0 and run.stdout.count("as torch") >= 4 * 8, run.stdout + run.stderr


@pytest.mark.slow
def test_two_processes_share_a_layer() -> None:
    """Started by torchrun, on loopback: each has a library of its own in use."""
    script = str(Path(__file__).with_name("tensor_parallel.py"))
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    assert run.returncode == 0 and run.stdout.count("as one process") == 2, run.stdout + run.stderr
