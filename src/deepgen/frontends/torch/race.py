"""Races a kernel against torch at the call: timed alternately, on the call's own tensors and torch's threads. Also
weighs the cost of inspecting calls that are not worth a race.

torch's compiler has C++ functions for its own guards: they distinguish calls, and allocate results, in a third of the
time. In Python this requires reading ten properties, which costs more than a small product. These functions are not
public: if a version of torch lacks them, everything is done in Python.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from ctypes import c_uint64
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from deepgen.operators import Operator
from deepgen.run.call.calling import Loaded
from deepgen.run.call.native import torchs_threads
from deepgen.run.measure.race import paired_ratio

_ROUNDS = 15
_LEAST = 3
_SECONDS = 0.3  # of a race; further rounds are skipped if they exceed this
GAIN = 0.98  # of torch's time: a smaller median is a gain beyond noise
_CLOSE = 1.1  # of torch's time on a GPU: below this, a kernel may still gain through cheaper calls on the CPU
_FOLLOWING = 3  # torch operators after each call of a kernel: a layer like BERT's has 1 to 2
_CALLS = 20  # calls enqueued in a row: far fewer than a GPU's queue holds
_CACHE = 256 << 20  # more than the last-level cache of any GPU so far
Timer: TypeAlias = "Callable[[Callable[[], Any]], float]"
_GRAIN = 1 << 15  # minimum number of elements that torch gives each thread
_MOVED = 64 << 20  # bytes: larger tensors are not copied for a race
# Subclasses may define any call differently.
PLAIN = (torch.Tensor, torch.nn.Parameter)
# The forms in which recorded models are timed, as libraries name them.
EAGER, OPTIMIZED, COMPILED, GRAPH = "eager", "optimized", "compiled", "graph"

_guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
# User-defined modes that intercept every call of torch's functions: how many there are, and each of them.
modes: Callable[[], int] = torch._C._len_torch_function_stack
_mode: Callable[[int], Any] = torch._C._get_function_stack_at
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack  # the same for modes that intercept operators
# Whether torch.func's transforms are active: vmap, grad, ...
_transformed: Callable[[], bool] = torch._C._are_functorch_transforms_active
Check = Callable[..., bool]
# Twenty times faster than the public function. A torch without GPU support lacks it.
capturing_now: Callable[[], bool] = getattr(
    torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)
SECONDS = 1e-6  # to inspect a call that is left to torch: half of it in a loop, up to three times in a model
LOOKS = 256  # inspections between two checks of what they gained
_MOST_SAVED = 4  # maximum surplus carried over, relative to the cost
View: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...]]"  # sizes and strides, starting at the tensor's first element
Views: TypeAlias = "tuple[View | None, View | None]"  # of a product's matrices; None: the tensor itself


@dataclass(frozen=True)
class TorchRace:
    """The seconds of a kernel and of torch, as medians of rounds, and whether the kernel is faster."""

    mine: float
    other: float
    won: bool
    # On a GPU, the CPU times of a call, ours and torch's: they matter if the GPU waits for the CPU.
    calling: tuple[float, float] | None = None

    @property
    def called(self) -> bool:
        """Whether the kernel should serve calls. It serves CUDA graphs, whose replays make no calls, if it won."""
        return not self._slow_to_call if self.won else self._quick_to_call

    @property
    def _slow_to_call(self) -> bool:
        """Whether a kernel that won would slow down a program limited by the CPU. If the kernel runs longer than its
        call takes on the CPU, the CPU is ahead of the GPU; then only a loss beyond the GPU's gain counts.
        """
        if self.calling is None:
            return False
        mine, other = self.calling
        ahead = self.mine > mine and self.other - self.mine > mine - other
        return mine > other and not ahead

    @property
    def _quick_to_call(self) -> bool:
        """Whether the GPU waits so long for torch's calls that a kernel that did not win gains through cheaper calls on
        the CPU. Other parts of the program may be limited by the GPU: there the loss must be less than half of the
        gain.
        """
        if self.calling is None:
            return False
        mine, other = self.calling
        return max(self.mine, mine) < GAIN * other and 2 * (self.mine - self.other) < other - mine

    def __str__(self) -> str:
        times = f"{self.mine * 1e6:.1f} us, torch {self.other * 1e6:.1f} us"
        if self.calling is None or self.called is self.won:
            return times
        mine, other = (seconds * 1e6 for seconds in self.calling)
        return f"{times}, but a call costs {mine:.1f} us, torch's {other:.1f} us"


@dataclass
class Calls:
    """How many calls of one kind a kernel served, and how many it handed back to torch. Replays are not counted."""

    in_python: int = 0  # served
    refused: int = 0
    in_c: c_uint64 = field(default_factory=c_uint64)  # served, by dispatch.cpp

    @property
    def served(self) -> int:
        return self.in_python + self.in_c.value


@dataclass(frozen=True)
class Met:
    """A kind of call that was seen, for display: what it computes, what serves it, why, and how often."""

    operator: Operator
    ours: bool
    why: str
    calls: Calls = field(default_factory=Calls)


@dataclass(frozen=True)
class Forms:
    """Whether recorded models are faster with a kernel: in calls, compiled code and CUDA graphs. None: unknown."""

    called: bool | None = None
    compiled: bool | None = None
    captured: bool | None = None

    def decide(self, *, on_gpu: bool) -> bool:
        """Whether no race is needed."""
        return None not in (self.called, self.compiled) and (self.captured is not None or not on_gpu)

    def without_race(self) -> Forms:
        """The same where a race was lost."""
        return Forms(bool(self.called), bool(self.compiled), bool(self.captured))

    @property
    def any(self) -> bool:
        return True in (self.called, self.compiled, self.captured)


@dataclass(frozen=True)
class Won:
    """A kernel that is faster than torch, by `gain` seconds per call.

    `raced`: how both were timed, unless the library's times decided.
    """

    kernel: Loaded
    gain: float
    why: str
    raced: TorchRace | None = None
    calls: Calls = field(default_factory=Calls)
    entry: Any = None  # of the library
    forms: Forms = Forms()

    def serves_in(self) -> tuple[bool, bool, bool | None]:
        """Calls, graphs, and compiled code: as recorded models decided, or else a race or the library's times."""
        called, captured = (True, True) if self.raced is None else (self.raced.called, self.raced.won)
        forms = self.forms
        called = called if forms.called is None else forms.called
        return called, captured if forms.captured is None else forms.captured, forms.compiled

    def serves(self, operator: Operator) -> bool:
        return self.entry is not None and self.entry.serves(operator) is None


def race(ours: Callable[[], Any], theirs: Callable[[], Any], device: Any) -> TorchRace:
    """Both are timed alternately. A small gain must show in nearly all rounds.

    On a GPU, its work and the CPU's work for a call overlap. Either may limit a program, so both are timed.
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
    """CPU seconds of a call that runs on a GPU.

    The minimum of each: other programs, such as a compiler's own processes, only increase the time.
    """
    mine, other = _alternated(lambda run: _enqueued(run, torch.cuda.synchronize), ours, theirs)
    return min(mine), min(other)


def decided(mine: Sequence[float], other: Sequence[float]) -> TorchRace:
    ratio = paired_ratio(other, mine)
    return TorchRace(median(mine), median(other), ratio.low > 1.0 or median(mine) < GAIN * median(other))


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
    """Like `race`, on a CPU whose cores are shared by the kernel's own threads and torch's.

    Each is timed together with the torch operators that follow, as in a model: they may have to wait for their threads.
    The extra time of these operators, compared with the other case, is added.
    """
    operator = work()

    def timed(run: Callable[[], Any]) -> tuple[float, float]:
        return _on_cpu(run), _on_cpu(lambda: [operator() for _ in range(_FOLLOWING)])

    times: dict[Any, list[tuple[float, float]]] = {ours: [], theirs: []}
    with torch.no_grad():
        ends = time.perf_counter() + _SECONDS
        while len(times[ours]) < _ROUNDS and (not times[ours] or time.perf_counter() < ends):
            for run, samples in times.items():
                timed(run)  # threads may still be waiting as after the other
                samples += [timed(run) for _ in range(_LEAST)]
    (mine, after_mine), (other, after_other) = (map(median, zip(*samples, strict=True)) for samples in times.values())
    sooner = min(after_mine, after_other)
    mine, other = mine + after_mine - sooner, other + after_other - sooner
    return TorchRace(mine, other, mine < GAIN * other)


def _on_cpu(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _enqueued(run: Callable[[], Any], wait: Callable[[], object]) -> float:
    """CPU seconds of a call, into a queue that is empty at first and not waited for.

    The last result is kept until the next exists, so that results have different addresses from call to call as in a
    model, and what a kernel caches about addresses is recomputed.
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
    """Times with events. The cache is filled with other data first, which also hides the launch latency."""
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
    """Whether torch uses several threads."""
    return bool(torch.get_num_threads() > 1)


def lend(kernel: Loaded) -> bool:
    """Run a kernel's work on torch's threads from now on. False if it has its own threads, or torch's are not
    accessible.
    """
    parallel = torchs_threads()
    return parallel is not None and kernel.run_on(parallel)


def crowds(entry: Any, device: Any, lent: bool) -> bool:
    """Whether a library's kernel and torch both have several threads; assumed if the config does not say."""
    return device.type == "cpu" and not lent and several() and getattr(entry, "config", {}).get("THREADS") != 1


def work() -> Callable[[], object]:
    """A short operator that torch runs on all its threads."""
    numbers = torch.zeros(_GRAIN * torch.get_num_threads())
    return lambda: numbers.add_(1.0)


def capturing(device: Any) -> bool:
    """Whether a CUDA graph is being captured."""
    return device.type == "cuda" and capturing_now()


def elsewhere(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same tensors at other addresses, as from layer to layer. Large ones are not copied, nor are views in which
    elements overlap, since they cannot be written.
    """

    def moved(arg: Any) -> Any:
        movable = isinstance(arg, torch.Tensor) and arg.nbytes <= _MOVED and 0 not in arg.stride()
        return _empty_like(arg).copy_(arg) if movable else arg

    return tuple(map(moved, args))


def made_real(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tensors with memory in place of a compiler's fake tensors, to try kinds of calls on."""

    def real(arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor):
            return arg
        if type(arg) in PLAIN:
            return arg.detach()
        # A separate generator, so that the caller's random state is unchanged.
        chance = torch.Generator(arg.device).manual_seed(0)
        return _empty_like(arg).copy_(torch.randn(arg.shape, generator=chance, device=arg.device))

    return tuple(map(real, args))


def _empty_like(tensor: Any) -> Any:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def check_of(tensors: Sequence[Any]) -> Check | None:
    """A check whether other tensors are like these: classes, formats, devices, sizes, strides and `requires_grad`, and
    what changes the meaning of calls: autocast, inference mode, vmap and dispatch modes. It ignores whether gradients
    are enabled.
    """
    guards = getattr(_guards, "TensorGuards", None)
    if guards is None or len({id(tensor) for tensor in tensors}) < len(tensors):  # duplicates are rejected
        return None
    check: Check = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides: tuple[int, ...] = torch.empty(shape, device="meta").stride()
    return strides


def watched() -> bool:
    """Whether calls must reach torch's own functions, because of transforms, forward-mode gradients, or modes."""
    if forward_ad._current_level >= 0 or _transformed() or _dispatch_modes():
        return True
    return any(type(_mode(place)) is not DeviceContext for place in range(modes()))


class Looks:
    """Counts inspections of calls that are left to torch. `take` counts one; it raises IndexError when `settle` is due.

    An item is popped from a list: Python has no faster way to count.
    """

    def __init__(self, earned: Callable[[], float], give_up: Callable[[], None]) -> None:
        """`earned`: the seconds saved by kernels so far. `give_up`: stops inspecting, since it costs more than it
        saves.
        """
        self._earned, self._give_up = earned, give_up
        self._settled = self._saved = 0.0
        self._left: list[None] = [None] * LOOKS
        self.take = self._left.pop

    def settle(self) -> None:
        """Continue if kernels saved more than the inspections cost, otherwise give up."""
        earned = self._earned()
        self._saved += earned - self._settled if earned > self._settled else 0.0
        self._settled = earned
        price = SECONDS * LOOKS
        if self._saved < price:
            self._give_up()
        self._saved = min(max(self._saved - price, 0.0), _MOST_SAVED * price)
        self._left[:] = [None] * LOOKS


def viewed(a: Any, b: Any, views: Views) -> tuple[Any, Any]:
    """The actual views, for functions that look at more than addresses."""
    in_a, in_b = views
    return (
        a if in_a is None else a.as_strided(*in_a, a.storage_offset()),
        b if in_b is None else b.as_strided(*in_b, b.storage_offset()),
    )
