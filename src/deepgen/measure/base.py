"""What measuring is, whatever the device: the task, the policy, and the runner that carries them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from deepgen import operators, targets
from deepgen.operators import Operator, is_built_in, record
from deepgen.targets import Target
from deepgen.vocabulary import Artifact, JsonObject, Kernel, Measurement

PEAK_MARGIN = 1.2  # a peak that was measured on a busy machine is too low: only what is far above it is doubted


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

    def to_json(self) -> JsonObject:
        return asdict(self)


@dataclass(frozen=True)
class Task:
    """What a runner is opened for: every kernel it gets computes this operator on these inputs."""

    operator: Operator
    target: Target
    seed: int = 0
    policy: Policy = field(default_factory=Policy)

    def to_json(self) -> JsonObject:
        return {
            # Whoever reads this may lack the code of an operator that is not deepgen's own.
            "operator": (self.operator if is_built_in(self.operator) else record(self.operator)).to_json(),
            "target": self.target.to_json(),
            "seed": self.seed,
            "policy": self.policy.to_json(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Task:
        return Task(
            operator=operators.from_json(data["operator"]),
            target=targets.from_json(data["target"]),
            seed=data["seed"],
            policy=Policy(**data["policy"]),
        )


def arithmetic(operator: Operator) -> str:
    """The dtype in which most of the operator's work is done: whose peak bounds it."""
    operations = operator.work().operations
    return max(operations, key=lambda name: operations[name], default="f32")


def least_seconds(task: Task, peak: float | None) -> float | None:
    """What no run can take less than, on a device of so many GFLOP/s."""
    return task.operator.flops() / (PEAK_MARGIN * peak * 1e9) if peak else None


@dataclass(frozen=True)
class Contender:
    """Someone in a comparison: a kernel, or a baseline by its name."""

    name: str
    kernel: Kernel | None = None
    artifact: Artifact | None = None  # once the kernel is built, as runners want it; a baseline has neither


@dataclass(frozen=True)
class Helper:
    """A kernel of our own that runs beside those that are measured: its launch plan, and where its binary lies."""

    kernel: Kernel
    binary: Path

    def to_json(self) -> JsonObject:
        return {"kernel": self.kernel.without_sources().to_json(), "binary": str(self.binary.absolute())}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Helper:
        return Helper(Kernel.from_json(data["kernel"]), Path(data["binary"]))


class Runner(Protocol):
    """Measures kernels on one device. A bad kernel costs a verdict, never the runner."""

    def measure(self, kernel: Kernel, artifact: Artifact, *, beat: float | None = None) -> Measurement:
        """Verify, time, verify again. `beat`: a kernel clearly slower than this many seconds is not timed further."""
        ...

    def verify(self, kernel: Kernel, artifact: Artifact, seed: int, probe: str) -> Measurement:
        """Only the verdict, on other inputs."""
        ...

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
        """Time all, interleaved in an order drawn anew for each round; sample i of each is from round i."""
        ...

    def close(self) -> None: ...
