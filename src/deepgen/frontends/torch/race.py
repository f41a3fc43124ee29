"""Races a kernel against torch at the call: timed alternately, on the call's own tensors and torch's threads. And
what a look at a call takes that is not worth a race.

torch's compiler has C++ functions for its own guards: they distinguish calls, and allocate results, in a third of the
time. In Python the same takes reading ten properties, which costs more than a small product. These functions are not
public: where a version of torch lacks them, everything is done in Python.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from deepgen.run.call.calling import Loaded
from deepgen.run.call.native import torchs_threads
from deepgen.run.measure.race import paired_ratio

_ROUNDS = 15
_LEAST = 3
_SECONDS = 0.3  # of a race; rounds beyond the first few are left out where they take longer
_GAIN = 0.98  # of torch's time: a median that is less than this is more than noise
_CLOSE = 1.1  # of torch's time on a GPU: a kernel that takes no more may gain by what its calls take the CPU
_FOLLOWING = 3  # operators of torch's for each call of a kernel: a layer like BERT's has 1 to 2
_CALLS = 20  # that are enqueued one after the other: far fewer than a GPU's queue holds
_CACHE = 256 << 20  # more than the last-level cache of any GPU so far
Timer: TypeAlias = "Callable[[Callable[[], Any]], float]"
_GRAIN = 1 << 15  # elements that torch gives each thread at least
_MOVED = 64 << 20  # bytes of a tensor that is copied for a race
# Subclasses have their own meaning of every call.
PLAIN = (torch.Tensor, torch.nn.Parameter)

_guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
# Modes of the user's own that see every call of torch's functions: how many there are, and each of them.
modes: Callable[[], int] = torch._C._len_torch_function_stack
_mode: Callable[[int], Any] = torch._C._get_function_stack_at
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack  # of those that see operators
# Whether torch.func's transforms are at work: vmap, grad, ...
_transformed: Callable[[], bool] = torch._C._are_functorch_transforms_active
Check = Callable[..., bool]
SECONDS = 1e-6  # of a look at a call that stays torch's: half of it in a loop, up to three times in a model
LOOKS = 256  # until it is seen what they earned
_MOST_SAVED = 4  # times as much may be left over from better times
View: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...]]"  # sizes and strides, from the tensor's first element on
Views: TypeAlias = "tuple[View | None, View | None]"  # of a product's matrices; None: the tensor itself


@dataclass(frozen=True)
class TorchRace:
    """The seconds of a kernel and of torch, medians of rounds, and whether the kernel is faster."""

    mine: float
    other: float
    won: bool
    # On a GPU, what the CPU takes for a call, ours and torch's: that is what counts where the GPU waits for it.
    calling: tuple[float, float] | None = None

    @property
    def called(self) -> bool:
        """Whether the kernel is to serve calls. Graphs of a GPU's, whose replays call nothing, it serves if it won."""
        return not self._slow_to_call if self.won else self._quick_to_call

    @property
    def _slow_to_call(self) -> bool:
        """Whether a program that the CPU limits would be slower by a kernel that won. Where the kernel runs
        longer than its call takes the CPU, that is ahead of the GPU; then only what is lost beyond the GPU's gain
        counts.
        """
        if self.calling is None:
            return False
        mine, other = self.calling
        ahead = self.mine > mine and self.other - self.mine > mine - other
        return mine > other and not ahead

    @property
    def _quick_to_call(self) -> bool:
        """Whether the GPU waits for torch's calls so long that a kernel that did not win gains by its own, which take
        the CPU less. Elsewhere in a program the GPU may limit it: there, less than half as much must be lost.
        """
        if self.calling is None:
            return False
        mine, other = self.calling
        return max(self.mine, mine) < _GAIN * other and 2 * (self.mine - self.other) < other - mine

    def __str__(self) -> str:
        times = f"{self.mine * 1e6:.1f} us, torch {self.other * 1e6:.1f} us"
        if self.calling is None or self.called is self.won:
            return times
        mine, other = (seconds * 1e6 for seconds in self.calling)
        return f"{times}, but a call costs {mine:.1f} us, torch's {other:.1f} us"


def race(ours: Callable[[], Any], theirs: Callable[[], Any], device: Any) -> TorchRace:
    """Both are timed alternately. What is faster by little must be so in nearly all rounds.

    On a GPU a call's work and what the CPU does for it overlap. Either may limit a program, so both are timed.
    """
    with torch.no_grad():
        ours(), theirs()
        if device.type != "cuda":
            return decided(*_alternated(_on_cpu, ours, theirs))
        raced = decided(*_alternated(_on_gpu(device), ours, theirs))
        if not raced.won and raced.mine > _CLOSE * raced.other:
            return raced
        return replace(raced, calling=calling(ours, theirs))


def calling(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float]:
    """The CPU's seconds for a call that a GPU is to carry out.

    The least of each: other programs, such as a compiler's own processes, only add to what a call takes.
    """
    mine, other = _alternated(lambda run: _enqueued(run, torch.cuda.synchronize), ours, theirs)
    return min(mine), min(other)


def decided(mine: Sequence[float], other: Sequence[float]) -> TorchRace:
    ratio = paired_ratio(other, mine)
    return TorchRace(median(mine), median(other), ratio.low > 1.0 or median(mine) < _GAIN * median(other))


def _alternated(
    seconds: Timer, ours: Callable[[], Any], theirs: Callable[[], Any]
) -> tuple[Sequence[float], Sequence[float]]:
    mine: list[float] = []
    other: list[float] = []
    ends = time.perf_counter() + _SECONDS
    while len(mine) < _ROUNDS and (len(mine) < _LEAST or time.perf_counter() < ends):
        mine.append(seconds(ours))
        other.append(seconds(theirs))
    return mine, other


def race_for_cores(ours: Callable[[], Any], theirs: Callable[[], Any]) -> TorchRace:
    """The same on a CPU whose cores a kernel's own threads share with torch's.

    Each is timed with what torch does next, as in a model: it may have to wait for its threads. That counts by how much
    longer it takes than after the other.
    """
    operator = work()

    def timed(run: Callable[[], Any]) -> tuple[float, float]:
        return _on_cpu(run), _on_cpu(lambda: [operator() for _ in range(_FOLLOWING)])

    times: dict[Any, list[tuple[float, float]]] = {ours: [], theirs: []}
    with torch.no_grad():
        ends = time.perf_counter() + _SECONDS
        while len(times[ours]) < _ROUNDS and (not times[ours] or time.perf_counter() < ends):
            for run, samples in times.items():
                timed(run)  # threads still wait as they did after the other
                samples += [timed(run) for _ in range(_LEAST)]
    (mine, after_mine), (other, after_other) = (map(median, zip(*samples, strict=True)) for samples in times.values())
    sooner = min(after_mine, after_other)
    mine, other = mine + after_mine - sooner, other + after_other - sooner
    return TorchRace(mine, other, mine < _GAIN * other)


def _on_cpu(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _enqueued(run: Callable[[], Any], wait: Callable[[], object]) -> float:
    """Seconds of the CPU's for a call, into a queue that is empty at first and not waited for.

    The last result is kept until the next is there, so that results lie at other addresses from call to call as in a
    model: what a kernel knows about addresses is made again.
    """
    wait()
    kept = None
    started = time.perf_counter()
    for _ in range(_CALLS):
        kept = run()
    taken = time.perf_counter() - started
    wait()
    del kept
    return taken / _CALLS


def _on_gpu(device: Any) -> Timer:
    """Times by events. The cache is filled with something else first, which also hides how long a launch takes."""
    other = torch.empty(_CACHE, dtype=torch.int8, device=device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def seconds(run: Callable[[], Any]) -> float:
        other.zero_()
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    return seconds


def several() -> bool:
    """Whether torch computes with several threads."""
    return bool(torch.get_num_threads() > 1)


def lend(kernel: Loaded) -> bool:
    """A kernel's work is done by torch's threads from now on. False: it has others, or torch's cannot be had."""
    parallel = torchs_threads()
    return parallel is not None and kernel.run_on(parallel)


def work() -> Callable[[], object]:
    """A short operator that torch computes with all its threads."""
    numbers = torch.zeros(_GRAIN * torch.get_num_threads())
    return lambda: numbers.add_(1.0)


def elsewhere(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same at other addresses, as they are from layer to layer. What is large stays, and so do views in which one
    element stands for several: they cannot be written.
    """

    def moved(arg: Any) -> Any:
        movable = isinstance(arg, torch.Tensor) and arg.nbytes <= _MOVED and 0 not in arg.stride()
        return _empty_like(arg).copy_(arg) if movable else arg

    return tuple(map(moved, args))


def made_real(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tensors with memory in place of a compiler's, which have none: kinds of calls are tried on them."""

    def real(arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor):
            return arg
        if type(arg) in PLAIN:
            return arg.detach()
        # A generator of its own: what the caller draws at random stays as it was.
        chance = torch.Generator(arg.device).manual_seed(0)
        return _empty_like(arg).copy_(torch.randn(arg.shape, generator=chance, device=arg.device))

    return tuple(map(real, args))


def _empty_like(tensor: Any) -> Any:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def check_of(tensors: Sequence[Any]) -> Check | None:
    """Whether other tensors are like these: classes, formats, devices, sizes, strides and `requires_grad`, and what
    changes the meaning of calls: autocast, inference mode, vmap and dispatch modes. Not whether gradients are enabled.
    """
    guards = getattr(_guards, "TensorGuards", None)
    if guards is None or len({id(tensor) for tensor in tensors}) < len(tensors):  # one that is given twice is refused
        return None
    check: Check = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides: tuple[int, ...] = torch.empty(shape, device="meta").stride()
    return strides


def watched() -> bool:
    """Whether calls must reach torch's own functions: they are transformed, tangents go along, or modes see them."""
    if forward_ad._current_level >= 0 or _transformed() or _dispatch_modes():
        return True
    return any(type(_mode(place)) is not DeviceContext for place in range(modes()))


class Looks:
    """Counts looks at calls that stay torch's. `take` counts one; it raises IndexError where `settle` is due.

    An item is taken from a list: nothing that Python has counts more quickly.
    """

    def __init__(self, earned: Callable[[], float], give_up: Callable[[], None]) -> None:
        """`earned`: the seconds that kernels saved so far. `give_up`: stop looking, as torch's calls cost more."""
        self._earned, self._give_up = earned, give_up
        self._settled = self._saved = 0.0
        self._left: list[None] = [None] * LOOKS
        self.take = self._left.pop

    def settle(self) -> None:
        """Go on if kernels earned what the looks took, and otherwise give up."""
        earned = self._earned()
        self._saved += earned - self._settled if earned > self._settled else 0.0
        self._settled = earned
        price = SECONDS * LOOKS
        if self._saved < price:
            self._give_up()
        self._saved = min(max(self._saved - price, 0.0), _MOST_SAVED * price)
        self._left[:] = [None] * LOOKS


def viewed(a: Any, b: Any, views: Views) -> tuple[Any, Any]:
    """The views after all, for what looks at more than addresses."""
    in_a, in_b = views
    return (
        a if in_a is None else a.as_strided(*in_a, a.storage_offset()),
        b if in_b is None else b.as_strided(*in_b, b.storage_offset()),
    )
