"""The interface of measuring on any device: the task, the policy, and the runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from deepgen import operators, targets
from deepgen.operators import Operator, is_built_in, record
from deepgen.run.counters.base import Counted
from deepgen.targets import Target
from deepgen.vocabulary import Artifact, BadInput, JsonObject, Kernel, Measurement, completed
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
_OTHERS = ("also", "neighbours", "multiples", "variants")  # operators of a task besides its own
_OF_FINALS = ("calm_seconds", "race_seconds", "calls_seconds")
PEAK_MARGIN = 1.2  # a peak measured on a busy machine is too low: only kernels far above it are doubted


@dataclass(frozen=True)
class Policy:
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
    strict_floats: bool = False  # kernels that lose NaN or infinities, or flush denormals, are wrong

    def __post_init__(self) -> None:
        for name in _OF_FINALS:
            if not 0.0 <= getattr(self, name) < inf:
                raise BadInput(f"{name} is {getattr(self, name)!r}", allowed="a number of seconds, at least 0")

    def to_json(self) -> JsonObject:
        return {name: value for name, value in asdict(self).items() if name != "strict_floats" or value}

    def identity(self) -> JsonObject:
        """The part that identifies a study. The limits of finals may differ between runs."""
        return {name: value for name, value in self.to_json().items() if name not in _OF_FINALS}


@dataclass(frozen=True)
class Task:
    """The task of a runner: every kernel it gets computes this operator on these inputs.

    Kernels may have to support several shapes. Requests give a shape as an index into `shapes`.
    """

    operator: Operator
    target: Target
    seed: int = 0
    policy: Policy = field(default_factory=Policy)
    also: tuple[Operator, ...] = ()  # other shapes that kernels are timed at
    neighbours: tuple[Operator, ...] = ()  # shapes at which the winner is verified, but not timed
    own_baselines: Mapping[str, CodeSource] = field(default_factory=dict)  # the user's own, on this machine only
    counters: tuple[str, ...] = ()  # counted for correct kernels, besides their time
    multiples: tuple[Operator, ...] = ()  # shapes at which kernels that refuse neighbours are verified
    variants: tuple[Operator, ...] = ()  # the same shape with other run-time scalars, to verify the winner at

    @property
    def timed(self) -> tuple[Operator, ...]:
        return self.operator, *self.also

    @property
    def shapes(self) -> tuple[Operator, ...]:
        return *self.timed, *self.neighbours, *self.multiples, *self.variants

    def at(self, shape: int) -> Task:
        """The task for a single shape."""
        return replace(self, operator=self.shapes[shape], also=(), neighbours=(), multiples=(), variants=())

    def to_json(self) -> JsonObject:
        out: JsonObject = {
            "operator": _portable(self.operator),
            "target": self.target.to_json(),
            "seed": self.seed,
            "policy": self.policy.to_json(),
        }
        for name in _OTHERS:
            if operators_of := getattr(self, name):
                out[name] = [_portable(operator) for operator in operators_of]
        if self.own_baselines:
            out["own_baselines"] = {name: source.to_json() for name, source in self.own_baselines.items()}
        if self.counters:
            out["counters"] = list(self.counters)
        return out

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Task:
        return Task(
            operator=operators.from_json(data["operator"]),
            target=targets.from_json(data["target"]),
            seed=data["seed"],
            policy=Policy(**data["policy"]),
            own_baselines={name: CodeSource.from_json(row) for name, row in data.get("own_baselines", {}).items()},
            counters=tuple(data.get("counters", ())),
            **{name: tuple(map(operators.from_json, data.get(name, ()))) for name in _OTHERS},
        )


def _portable(operator: Operator) -> JsonObject:
    """An operator as JSON; only recorded facts if it is not deepgen's, as readers may lack its code."""
    return (operator if is_built_in(operator) else record(operator)).to_json()


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


@dataclass(frozen=True)
class Helper:
    """A helper kernel of deepgen that runs beside the measured kernels: its launch plan and its binary."""

    kernel: Kernel
    binary: Path

    def to_json(self) -> JsonObject:
        return {"kernel": self.kernel.without_sources().to_json(), "binary": str(self.binary.absolute())}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Helper:
        return Helper(Kernel.from_json(data["kernel"]), Path(data["binary"]))


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
    named: JsonObject = {"name": contender.name, "timed": contender.timed}
    if contender.kernel is None or contender.artifact is None:
        return named
    return {**named, "worn": contender.worn, **entry(contender.kernel, contender.artifact)}
