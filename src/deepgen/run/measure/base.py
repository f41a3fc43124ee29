"""The interface of measuring on any device: the task, the policy, and the runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from deepgen import operators, targets
from deepgen.operators import Operator, is_built_in, record
from deepgen.run.counters import Counted
from deepgen.targets import Target
from deepgen.vocabulary import Artifact, BadInput, JsonObject, Kernel, Measurement, completed
from deepgen.vocabulary.codec import Serializable, coded
from deepgen.vocabulary.finding import CodeSource

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    from deepgen.toolchains import Cache

    Helpers: TypeAlias = "Mapping[str, Helper] | Callable[[], Mapping[str, Helper]]"  # or a function that awaits them
    # Suspends other activity while a trial is timed, though not while it is verified; None: nothing to suspend.
    Apart: TypeAlias = "Callable[[], Callable[[], AbstractContextManager[None]] | None]"
    Least: TypeAlias = "float | Callable[[], float | None] | None"  # seconds of a run, or a function that may learn it

REFERENCE = "reference"  # prefix of the names of helpers that compute answers
# Not probes of an operator, but other ways to call a kernel on the usual inputs: with padded rows of tensors; many
# times; and from several threads at once.
STRIDED, MANY_CALLS, SEVERAL_THREADS = "strided", "many calls", "several threads"
AFRESH = "afresh"  # the loaded kernel in a separate process, on plain arrays
WAYS = (STRIDED, MANY_CALLS, SEVERAL_THREADS, AFRESH)
CALM_SECONDS, RACE_SECONDS, CALLS_SECONDS = 20.0, 30.0, 0.4  # default limits of finals
_OF_FINALS = ("calm_seconds", "race_seconds", "calls_seconds")
PEAK_MARGIN = 1.2  # a peak measured on a busy machine is too low: only kernels far above it are doubted


@dataclass(frozen=True)
class Policy(Serializable):
    """How a kernel is timed."""

    cold: bool = True  # flush the last-level cache before each timed run
    min_samples: int = 5
    max_samples: int = 100
    max_seconds: float = 0.5  # of timed runs per kernel
    precision: float = 0.01  # stop when the median's confidence interval is this narrow, as a share of it
    give_up: float = 1.5  # stop early when certainly this many times slower than the time to beat
    timeout_seconds: float | None = None  # of one run; None: scaled with the operator's work
    threads: int | None = None  # for baselines and kernels without a thread knob; None: all cores
    calm_seconds: float = field(default_factory=lambda: CALM_SECONDS)  # most waiting of finals for a quiet machine
    race_seconds: float = field(default_factory=lambda: RACE_SECONDS)  # longest race, apart from its start
    calls_seconds: float = field(default_factory=lambda: CALLS_SECONDS)  # for calling a winner many times
    # Kernels that lose NaN or infinities, or flush denormals, are wrong.
    strict_floats: bool = field(default=False, metadata=coded(omit=True))

    def __post_init__(self) -> None:
        for name in _OF_FINALS:
            if not 0.0 <= getattr(self, name) < inf:
                raise BadInput(f"{name} is {getattr(self, name)!r}", allowed="a number of seconds, at least 0")

    def identity(self) -> JsonObject:
        """The part that identifies a study. The limits of finals may differ between runs."""
        return {name: value for name, value in self.to_json().items() if name not in _OF_FINALS}


def _portable(operator: Operator) -> JsonObject:
    """An operator as JSON; only recorded facts if it is not deepgen's, as readers may lack its code."""
    return (operator if is_built_in(operator) else record(operator)).to_json()


_ONE = coded(read=operators.from_json, write=_portable)
_MORE = coded(
    omit=True,
    read=lambda rows: tuple(map(operators.from_json, rows)),
    write=lambda own: [*map(_portable, own)],
)


@dataclass(frozen=True)
class Task(Serializable):
    """The task of a runner: every kernel it gets computes this operator on these inputs.

    Kernels may have to support several shapes. Requests give a shape as an index into `shapes`.
    """

    operator: Operator = field(metadata=_ONE)
    target: Target = field(metadata=coded(read=targets.from_json))
    seed: int = 0
    policy: Policy = field(default_factory=Policy)
    # Other shapes that kernels are timed at; and at which the winner is verified, but not timed.
    also: tuple[Operator, ...] = field(default=(), metadata=_MORE)
    neighbours: tuple[Operator, ...] = field(default=(), metadata=_MORE)
    # The user's own, on this machine only.
    own_baselines: Mapping[str, CodeSource] = field(default_factory=dict, metadata=coded(omit=True))
    # Counted for correct kernels, besides their time.
    counters: tuple[str, ...] = field(default=(), metadata=coded(omit=True))
    # Shapes at which kernels that refuse neighbours are verified; the same shape with other run-time scalars.
    multiples: tuple[Operator, ...] = field(default=(), metadata=_MORE)
    variants: tuple[Operator, ...] = field(default=(), metadata=_MORE)

    @property
    def timed(self) -> tuple[Operator, ...]:
        return self.operator, *self.also

    @property
    def shapes(self) -> tuple[Operator, ...]:
        return *self.timed, *self.neighbours, *self.multiples, *self.variants

    def at(self, shape: int) -> Task:
        """The task for a single shape."""
        return replace(self, operator=self.shapes[shape], also=(), neighbours=(), multiples=(), variants=())


def arithmetic(operator: Operator) -> str:
    """The dtype of most of the operator's work, whose peak bounds it."""
    operations = operator.work().operations
    return max(operations, key=lambda name: operations[name], default="f32")


def least_seconds(task: Task, peak: float | None) -> float | None:
    """A lower bound on the time of one run, on a device with this many GFLOP/s."""
    return task.operator.flops() / (PEAK_MARGIN * peak * 1e9) if peak else None


# How a contender is timed. SINGLE: one run at a time, interleaved with others', in the state that the policy requires.
# BURST: consecutive runs, so that threads are awake and caches warm. CALL: the same for a kernel called from Python, as
# users call it. Devices without bursts use SINGLE.
SINGLE, BURST, CALL = "single", "burst", "call"


@dataclass(frozen=True)
class Contender:
    """An entry in a comparison: a kernel, or a baseline's name."""

    name: str
    kernel: Kernel | None = None
    artifact: Artifact | None = None  # when the kernel is built, as runners require; None for a baseline
    timed: str = SINGLE
    worn: int = 0  # calls before the first timed one, once per process
    behind: bool = False  # with arrays that begin behind a cache line, as numpy's do


@dataclass(frozen=True)
class Helper(Serializable):
    """A helper kernel of deepgen that runs beside the measured kernels: its launch plan and its binary."""

    kernel: Kernel = field(metadata=coded(write=lambda kernel: kernel.without_sources().to_json()))
    binary: Path = field(metadata=coded(write=lambda path: str(path.absolute())))


@dataclass(frozen=True)
class RunnerOptions:
    """Options of a runner besides its task."""

    cache: Cache | Path | None = None  # for built helpers: a folder, or the caller's cache
    toolchains: Mapping[str, str] | None = None  # paths of programs set by the user
    builds_running: Callable[[], int] = lambda: 0  # the number of builds running now
    least_seconds: Least = None  # time of one run at the machine's peak
    least_again: Callable[[], float | None] | None = None  # the same, with the peak measured again
    helpers: Helpers | None = None  # the helpers, if built elsewhere
    arrays: Path | None = None  # folder with inputs and answers of an operator whose code is elsewhere
    ahead: bool = False  # start the worker at once, before the first request
    spare: Callable[[], float] = lambda: inf  # seconds left to the run, if it has a budget
    apart: Apart = lambda: None


class Runner(Protocol):
    """Measures kernels on one device. A bad kernel gets a verdict and never takes the runner down."""

    def measure(self, kernel: Kernel, artifact: Artifact, *, beat: float | None = None, shape: int = 0) -> Measurement:
        """Verify, time, verify again. `beat`: a kernel clearly slower than this many seconds is not timed further."""
        ...

    def verify(self, kernel: Kernel, artifact: Artifact, seed: int, probe: str, shape: int = 0) -> Measurement:
        """Only the verdict, on other inputs. A probe from WAYS is refused if the device does not support it."""
        ...

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int, shape: int = 0) -> list[Measurement]:
        """Time all contenders, interleaved in a new random order each round; sample i of each is from round i."""
        ...

    def count(self, kernel: Kernel, artifact: Artifact, events: Sequence[str], shape: int = 0) -> Counted:
        """Count events in separate runs. Events that cannot be counted are reported with the reason."""
        ...

    def close(self) -> None: ...


def entry(kernel: Kernel, artifact: Artifact) -> JsonObject:
    """A built kernel in a request, with its completed launch plan."""
    launched = completed(kernel, artifact.plan).without_sources()
    return {"kernel": launched.to_json(), "binary": str(Path(artifact.binary).absolute())}


def row(contender: Contender) -> JsonObject:
    """A kernel or a baseline of a race, in a request."""
    named: JsonObject = {"name": contender.name, "timed": contender.timed, "behind": contender.behind}
    if contender.kernel is None or contender.artifact is None:
        return named
    return {**named, "worn": contender.worn, **entry(contender.kernel, contender.artifact)}
