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

    Helpers: TypeAlias = "Mapping[str, Helper] | Callable[[], Mapping[str, Helper]]"  # or what waits for their builds
    # What keeps still whatever is in the way while a trial is timed, though not while it is verified; None: nothing is.
    Apart: TypeAlias = "Callable[[], Callable[[], AbstractContextManager[None]] | None]"
    Least: TypeAlias = "float | Callable[[], float | None] | None"  # seconds of a run, or what knows them by and by

REFERENCE = "reference"  # what names of helpers begin with that compute answers
# Not probes of an operator, but other ways to call a kernel on the usual inputs: with room between the rows of
# tensors; again and again; and from several threads at once.
STRIDED, MANY_CALLS, SEVERAL_THREADS = "strided", "many calls", "several threads"
AFRESH = "afresh"  # the loaded kernel in a process of its own, on plain arrays
WAYS = (STRIDED, MANY_CALLS, SEVERAL_THREADS, AFRESH)
CALM_SECONDS, RACE_SECONDS, CALLS_SECONDS = 20.0, 30.0, 0.4  # limits of finals, unless a policy has others
_OTHERS = ("also", "neighbours", "multiples", "variants")  # operators of a task beside its own
_OF_FINALS = ("calm_seconds", "race_seconds", "calls_seconds")
PEAK_MARGIN = 1.2  # a peak that was measured on a busy machine is too low: only kernels far above it are doubted


@dataclass(frozen=True)
class Policy:
    """How a kernel is timed."""

    cold: bool = True  # flush the last-level cache before each timed run
    min_samples: int = 5
    max_samples: int = 100
    max_seconds: float = 0.5  # of timed runs, for one kernel
    precision: float = 0.01  # stop when the median's confidence interval is this narrow, as a share of it
    give_up: float = 1.5  # stop early when surely this many times slower than the time to beat
    timeout_seconds: float | None = None  # of one run; None: scaled with the operator's work
    threads: int | None = None  # for baselines and kernels without a thread knob; None: all cores
    calm_seconds: float = field(default_factory=lambda: CALM_SECONDS)  # that finals wait for a quiet machine at most
    race_seconds: float = field(default_factory=lambda: RACE_SECONDS)  # that a race lasts at most, but for its start
    calls_seconds: float = field(default_factory=lambda: CALLS_SECONDS)  # that a winner is called again and again
    strict_floats: bool = False  # kernels that lose NaN or infinities, or flush denormals, are wrong

    def __post_init__(self) -> None:
        for name in _OF_FINALS:
            if not 0.0 <= getattr(self, name) < inf:
                raise BadInput(f"{name} is {getattr(self, name)!r}", allowed="a number of seconds, at least 0")

    def to_json(self) -> JsonObject:
        return {name: value for name, value in asdict(self).items() if name != "strict_floats" or value}

    def identity(self) -> JsonObject:
        """The part that identifies a study. The limits of its finals may differ from run to run."""
        return {name: value for name, value in self.to_json().items() if name not in _OF_FINALS}


@dataclass(frozen=True)
class Task:
    """What a runner is opened for: every kernel it gets computes this operator on these inputs.

    Kernels may be wanted for several shapes of it. Requests name a shape by its place in `shapes`.
    """

    operator: Operator
    target: Target
    seed: int = 0
    policy: Policy = field(default_factory=Policy)
    also: tuple[Operator, ...] = ()  # other shapes that kernels are timed at
    neighbours: tuple[Operator, ...] = ()  # shapes at which the winner is verified, but not timed
    own_baselines: Mapping[str, CodeSource] = field(default_factory=dict)  # of the user's own, on this machine only
    counters: tuple[str, ...] = ()  # what is counted of correct kernels beside their time
    multiples: tuple[Operator, ...] = ()  # the same, for kernels that refuse neighbours
    variants: tuple[Operator, ...] = ()  # the same shape with other values of run-time scalars, to verify the winner at

    @property
    def timed(self) -> tuple[Operator, ...]:
        return self.operator, *self.also

    @property
    def shapes(self) -> tuple[Operator, ...]:
        return *self.timed, *self.neighbours, *self.multiples, *self.variants

    def at(self, shape: int) -> Task:
        """The task of one shape alone."""
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
    """The reader of a task may lack the code of an operator that is not deepgen's own."""
    return (operator if is_built_in(operator) else record(operator)).to_json()


def arithmetic(operator: Operator) -> str:
    """The dtype in which most of the operator's work is done: whose peak bounds it."""
    operations = operator.work().operations
    return max(operations, key=lambda name: operations[name], default="f32")


def least_seconds(task: Task, peak: float | None) -> float | None:
    """A lower bound on the time of one run, on a device with this many GFLOP/s."""
    return task.operator.flops() / (PEAK_MARGIN * peak * 1e9) if peak else None


# How a contender is timed. SINGLE: one run at a time between those of others, in the state that the policy asks for.
# BURST: runs that follow each other at once, so that threads are awake and caches warm. CALL: the same, of a kernel
# that is called from Python as its users do. What a device has not is timed in turns.
SINGLE, BURST, CALL = "single", "burst", "call"


@dataclass(frozen=True)
class Contender:
    """An entry in a comparison: a kernel, or a baseline by its name."""

    name: str
    kernel: Kernel | None = None
    artifact: Artifact | None = None  # once the kernel is built, as runners want it; a baseline has neither
    timed: str = SINGLE
    worn: int = 0  # calls before the first is timed, once in each process


@dataclass(frozen=True)
class Helper:
    """A helper kernel of deepgen that runs alongside those measured: its launch plan and its binary."""

    kernel: Kernel
    binary: Path

    def to_json(self) -> JsonObject:
        return {"kernel": self.kernel.without_sources().to_json(), "binary": str(self.binary.absolute())}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Helper:
        return Helper(Kernel.from_json(data["kernel"]), Path(data["binary"]))


@dataclass(frozen=True)
class RunnerOptions:
    """What a runner may use besides its task."""

    cache: Cache | Path | None = None  # where built helpers are kept, a folder or the caller's own
    toolchains: Mapping[str, str] | None = None  # the paths of programs that the user set
    builds_running: Callable[[], int] = lambda: 0  # builds at work now
    least_seconds: Least = None  # what one run takes at the machine's peak
    least_again: Callable[[], float | None] | None = None  # the same, with the peak measured again
    helpers: Helpers | None = None  # the built helpers themselves, where they came from elsewhere
    arrays: Path | None = None  # the folder with inputs and answers of an operator whose code is elsewhere
    ahead: bool = False  # start the worker at once, before the first request
    spare: Callable[[], float] = lambda: inf  # seconds that are left to the run, where it has a budget
    apart: Apart = lambda: None


class Runner(Protocol):
    """Measures kernels on one device. A bad kernel gets a verdict and never takes the runner down."""

    def measure(self, kernel: Kernel, artifact: Artifact, *, beat: float | None = None, shape: int = 0) -> Measurement:
        """Verify, time, verify again. `beat`: a kernel clearly slower than this many seconds is not timed further."""
        ...

    def verify(self, kernel: Kernel, artifact: Artifact, seed: int, probe: str, shape: int = 0) -> Measurement:
        """Only the verdict, on other inputs. As a probe, one of WAYS is refused where a device does not have it."""
        ...

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int, shape: int = 0) -> list[Measurement]:
        """Time all, interleaved in an order drawn again for each round; sample i of each is from round i."""
        ...

    def count(self, kernel: Kernel, artifact: Artifact, events: Sequence[str], shape: int = 0) -> Counted:
        """Count events in separate runs. What cannot be counted is reported with the reason."""
        ...

    def close(self) -> None: ...


def entry(kernel: Kernel, artifact: Artifact) -> JsonObject:
    """A built kernel, as it is launched."""
    launched = completed(kernel, artifact.plan).without_sources()
    return {"kernel": launched.to_json(), "binary": str(Path(artifact.binary).absolute())}


def row(contender: Contender) -> JsonObject:
    """A kernel or a baseline of a race."""
    named: JsonObject = {"name": contender.name, "timed": contender.timed}
    if contender.kernel is None or contender.artifact is None:
        return named
    return {**named, "worn": contender.worn, **entry(contender.kernel, contender.artifact)}
