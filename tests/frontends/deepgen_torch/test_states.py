"""Whatever state a program sets around its calls, results match torch: a kernel serves them, or torch does.

Each call is made before, in and after a state, so that what is cached for one must not serve another.
"""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stand_in import Everything  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import deepgen.torch as dt  # noqa: E402

F = torch.nn.functional
X, WEIGHT, BIAS = torch.randn(2, 5, 24), torch.nn.Parameter(torch.randn(16, 24)), torch.nn.Parameter(torch.randn(16))
ROWS, SQUARE = torch.randn(6, 24), torch.randn(24, 24)
HEADS, KEYS = torch.randn(1, 2, 8, 16), torch.randn(1, 2, 8, 16)

CALLS: dict[str, Callable[[], Any]] = {
    "linear": lambda: F.linear(X, WEIGHT),
    "linear with bias": lambda: F.linear(X, WEIGHT, BIAS),
    "linear by name": lambda: F.linear(input=X, weight=WEIGHT, bias=BIAS),
    "mm": lambda: torch.mm(ROWS, SQUARE),
    "mm by name": lambda: torch.mm(input=ROWS, mat2=SQUARE),
    "mm of a matrix with itself": lambda: torch.mm(SQUARE, SQUARE),
    "matmul by name": lambda: torch.matmul(input=X, other=SQUARE),
    "the operator @": lambda: X @ WEIGHT.t(),
    "softmax": lambda: torch.softmax(X, -1),
    "softmax by name": lambda: torch.softmax(input=X, dim=-1),
    "layer_norm": lambda: F.layer_norm(X, (24,), SQUARE[0], SQUARE[1]),
    "layer_norm of a list": lambda: F.layer_norm(X, [24], SQUARE[0], SQUARE[1], 1e-3),
    "rms_norm": lambda: F.rms_norm(X, (24,), SQUARE[0], 1e-5),
    "rms_norm by name": lambda: F.rms_norm(X, normalized_shape=(24,), weight=SQUARE[0], eps=1e-5),
    "attention": lambda: F.scaled_dot_product_attention(HEADS, KEYS, HEADS + 1),
    "attention by name": lambda: F.scaled_dot_product_attention(query=HEADS, key=KEYS, value=HEADS),
    "nothing": lambda: F.linear(X[:, :0], WEIGHT, BIAS),
    "into what is given": lambda: torch.mm(ROWS, SQUARE, out=torch.empty(6, 24)),
    "into what has another shape": lambda: torch.mm(ROWS, SQUARE, out=torch.empty(0)),
}


class Looking(TorchFunctionMode):  # type: ignore[misc]
    """A user-defined mode."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "a default device": lambda: torch.device("cpu"),
    "counted": lambda: FlopCounterMode(display=False),
    "looked at": Looking,
    "tangents": forward_ad.dual_level,
}


@pytest.fixture(scope="module")
def library() -> Everything:
    return Everything()


@contextmanager
def using(library: Any) -> Iterator[Any]:
    with dt.use(library, race=False) as used:
        yield used


@pytest.mark.parametrize("state", STATES)
def test_calls_give_what_torch_gives_in_any_state(state: str, library: Everything) -> None:
    def results(within: Callable[[], AbstractContextManager[Any]]) -> list[Any]:
        found = []
        for around in (nullcontext, within, within, nullcontext):
            with around():
                found.append([call() for call in CALLS.values()])
        return found

    want = results(STATES[state])
    with using(library):
        found = results(STATES[state])
    for place, name in enumerate(CALLS):
        for mine, theirs in zip(found, want, strict=True):
            assert mine[place].requires_grad == theirs[place].requires_grad, name
            torch.testing.assert_close(mine[place], theirs[place], msg=lambda text, name=name: f"{name}: {text}")


def test_modes_of_a_users_own_see_calls_that_a_kernel_would_serve(library: Everything) -> None:
    with torch.no_grad(), using(library):
        F.linear(X, WEIGHT)
        with Looking() as looking:
            F.linear(X, WEIGHT)
        with FlopCounterMode(display=False) as counted:
            F.linear(X, WEIGHT)
    assert "linear" in looking.seen
    assert counted.get_total_flops() == 2 * 10 * 16 * 24


def test_tangents_go_along(library: Everything) -> None:
    tangent = torch.randn(6, 24)
    with torch.no_grad(), using(library):
        torch.mm(ROWS, SQUARE)
    with using(library), forward_ad.dual_level():
        torch.mm(ROWS, SQUARE)
        made = torch.mm(forward_ad.make_dual(ROWS, tangent), SQUARE)
        torch.testing.assert_close(forward_ad.unpack_dual(made).tangent, tangent.mm(SQUARE))


def test_functions_of_functions_are_torchs(library: Everything) -> None:
    def loss(weight: Any) -> Any:
        return F.linear(ROWS, weight).sin().sum()

    weights = torch.randn(3, 16, 24)
    calls: dict[str, Callable[[], Any]] = {
        "grad": lambda: torch.func.grad(loss)(weights[0]),
        "jvp": lambda: torch.func.jvp(loss, (weights[0],), (weights[1],)),
        "vmap": lambda: torch.vmap(lambda weight: F.linear(ROWS, weight))(weights),
        "vmap of grad": lambda: torch.vmap(torch.func.grad(loss))(weights),
    }
    for name, call in calls.items():
        want = call()
        with using(library):
            loss(weights[0])
            torch.testing.assert_close(call(), want, msg=lambda text, name=name: f"{name}: {text}")


def test_gradients_come_and_go_with_what_asks_for_them(library: Everything) -> None:
    x = ROWS.clone()
    with using(library):
        for needed in (False, True, False, True):
            x.requires_grad_(needed)
            made = torch.mm(x, SQUARE)
            assert made.requires_grad == needed
            if needed:
                (gradient,) = torch.autograd.grad(made.sum(), x)
                torch.testing.assert_close(gradient, SQUARE.sum(1).expand(6, 24))


def test_threads_do_not_mix_their_calls(library: Everything) -> None:
    """The same kinds of calls concurrently, each with its own numbers."""
    wrong: list[int] = []
    start = threading.Barrier(4)

    def run(number: int) -> None:
        x, weight = torch.full((6, 24), float(number)), torch.ones(16, 24)
        start.wait()
        with torch.no_grad():
            for _ in range(200):
                if not torch.equal(F.linear(x, weight), torch.full((6, 16), 24.0 * number)):
                    wrong.append(number)

    with using(library):
        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_models_are_copied_and_forgotten_as_ever(library: Everything) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.Softmax(-1))
    with torch.no_grad(), using(library):
        want = model(ROWS)
        other = copy.deepcopy(model)
        torch.testing.assert_close(other(ROWS), want)
        gone = weakref.ref(model[0].weight)
        del model
        gc.collect()
        assert gone() is None
        torch.testing.assert_close(other(ROWS), want)


def test_an_exported_model_is_torchs_own(library: Everything) -> None:
    """Also for a dynamic number of rows. What is exported in the block runs without deepgen."""
    model = torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.ReLU())
    with torch.no_grad(), using(library):
        want = model(ROWS)
        rows = torch.export.Dim("rows", min=2, max=64)
        exported = torch.export.export(model, (ROWS,), dynamic_shapes=({0: rows},))
    assert "deepgen" not in exported.graph_module.code
    with torch.no_grad():
        torch.testing.assert_close(exported.module()(ROWS), want)
        assert exported.module()(torch.randn(9, 24)).shape == (9, 16)
