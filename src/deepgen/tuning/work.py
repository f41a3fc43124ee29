"""A model's work as `deepgen.torch.record` writes it: operators with counts and times; and how a budget is divided."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from deepgen import operators
from deepgen.operators import Operator
from deepgen.operators.expr.nodes import HasExpression
from deepgen.targets import Target
from deepgen.tuning.speed import bound
from deepgen.tuning.study.text import seconds_text
from deepgen.vocabulary import BadInput, JsonObject, foreign
from deepgen.vocabulary.codec import Serializable
from deepgen.vocabulary.json import Json

FORMAT = "deepgen work 1"
_REACHED = 0.8  # share of the device's bound that good kernels reach
_UNKNOWN = 1.5  # expected speed-up if the bound is unknown
_MOST = 4.0  # times: a call slower than this spends its time outside the kernel
_LITTLE = 0.02  # least share of an operator's time expected as gain, even if the bound seems to be reached


@dataclass(frozen=True)
class RecordedTensor(Serializable):
    """A tensor that calls read and none of them computes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str  # torch's name


@dataclass(frozen=True)
class RecordedCall(Serializable):
    """A call of an operator of torch's. A tensor in its arguments is {"tensor": n}, or {"result": n} of all results."""

    name: str  # with the overload: addmm.default
    args: tuple[Json, ...]
    named: Mapping[str, Json]
    results: int | None  # in a tuple; None: a single one


@dataclass(frozen=True)
class RecordedCalls(Serializable):
    """The calls of a model in their order, from which it is replayed with other numbers."""

    threads: int  # torch's
    tensors: tuple[RecordedTensor, ...]
    calls: tuple[RecordedCall, ...]


@dataclass(frozen=True)
class RecordedPart:
    """An operator that was run, how often, and the seconds of all its runs. Unsupported operators have only a name."""

    what: Operator | str
    count: int
    seconds: float
    also: tuple[Operator, ...] = ()  # other shapes, which one study tunes together with it

    def describe(self) -> str:
        more = f" and {len(self.also)} other shapes" if self.also else ""
        return self.what if isinstance(self.what, str) else f"{self.what.describe()}{more}"


@dataclass(frozen=True)
class RecordedWork:
    """Everything that was recorded, with the longest total time first."""

    target: str  # the name of the target it ran on, such as cpu
    parts: tuple[RecordedPart, ...]
    calls: RecordedCalls | None = None

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    def share(self, part: RecordedPart) -> float:
        return part.seconds / self.seconds if self.seconds else 0.0

    def tunable(self) -> tuple[RecordedPart, ...]:
        return tuple(part for part in self.parts if isinstance(part.what, Operator))

    def gain(self, operator: Operator, target: Target) -> float:
        """The share of all time that tuning an operator may save: its own share times what a good kernel saves of it.

        A good kernel takes little longer than the device's arithmetic or memory requires, or a launch on a GPU.
        """
        part = next(part for part in self.parts if part.what == operator)
        least = bound(operator, target.peak(_arithmetic(operator)), target.bandwidth).seconds
        least = None if least is None else max(least, target.launch_seconds)
        faster = _UNKNOWN if least is None else min(_MOST, part.seconds / part.count * _REACHED / least)
        return self.share(part) * max(_LITTLE, 1.0 - 1.0 / faster)

    def to_json(self) -> JsonObject:
        return {
            "format": FORMAT,
            "target": self.target,
            "seconds": self.seconds,
            "operators": [
                {
                    **({"name": part.what} if isinstance(part.what, str) else {"operator": part.what.to_json()}),
                    **({"also": [other.to_json() for other in part.also]} if part.also else {}),
                    "describe": part.describe(),
                    "count": part.count,
                    "seconds": part.seconds,
                    "share": self.share(part),
                }
                for part in self.parts
            ],
            **({} if self.calls is None else {"calls": self.calls.to_json()}),
        }

    def save(self, path: str | Path) -> None:
        """Write the file that `deepgen tune` accepts."""
        try:
            Path(path).write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error.strerror}", allowed="a file in a folder") from error

    def __str__(self) -> str:
        """The work as a table."""
        rows = [("operator", "count", "time", "share")]
        rows += [(p.describe(), str(p.count), seconds_text(p.seconds), f"{self.share(p):.1%}") for p in self.parts]
        wide = [max(len(row[i]) for row in rows) for i in range(4)]
        return "\n".join(
            f"{what:<{wide[0]}}  {count:>{wide[1]}}  {time:>{wide[2]}}  {share:>{wide[3]}}"
            for what, count, time, share in rows
        )


def ordered(target: str, parts: Sequence[RecordedPart], calls: RecordedCalls | None = None) -> RecordedWork:
    return RecordedWork(target, tuple(sorted(parts, key=lambda part: (-part.seconds, part.describe()))), calls)


def from_json(data: Mapping[str, Any], where: str) -> RecordedWork:
    if data.get("format") != FORMAT:
        raise BadInput(f"its format is {data.get('format')!r:.60}", where=where, allowed=FORMAT)
    with foreign.shaped(where, "is not what deepgen.torch.record writes"):
        calls = RecordedCalls.from_json(data["calls"], where) if "calls" in data else None
        return ordered(str(data["target"]), [_part(row) for row in data["operators"]], calls)


def _part(row: Mapping[str, Any]) -> RecordedPart:
    what: Operator | str = operators.from_json(row["operator"]) if "operator" in row else str(row["name"])
    count, seconds = row["count"], row["seconds"]
    if type(count) is not int or count < 1 or type(seconds) not in (int, float) or not isfinite(seconds) or seconds < 0:
        raise ValueError(f"count is {count!r:.40} and seconds is {seconds!r:.40}")
    return RecordedPart(what, count, float(seconds), tuple(map(operators.from_json, row.get("also", ()))))


def _arithmetic(operator: Operator) -> str:
    """The dtype of most operations; copies have no operations."""
    counted = operator.work().operations
    return max(counted, key=lambda name: counted[name], default="f32")


LEAST_SECONDS = 20.0  # a shorter study is not worth its start and its finals
_ALIKE = 0.5  # share of the time that is divided equally: a study gains most in its first seconds
SHORT_SECONDS = 6.0  # for a study with few schedules; half of it may suffice
SHORT_SHARE = 0.3  # share of the time after which the other studies begin
WORTH = 0.0005  # share of a model's time that a short study, or one in time that is left, must be able to save


def is_short(operator: Operator) -> bool:
    """Whether it is only elementwise: without reductions there are few schedules, and any of them is good."""
    if not isinstance(operator, HasExpression):
        return False
    try:
        stages = operator.expression().stages
    except BadInput:  # an operator may have no expression in some forms
        return False
    return all(stage.reduce is None and not stage.scan for stage in stages)


def short_ones(operators: Sequence[Operator], gains: Sequence[float]) -> list[int]:
    """The operators that get a short study, those with the largest potential gain first."""
    short = (i for i, operator in enumerate(operators) if is_short(operator) and gains[i] >= WORTH)
    return sorted(short, key=lambda i: -gains[i])


def divided(gains: Sequence[float], seconds: float, least: float = LEAST_SECONDS) -> list[float]:
    """The seconds of each study, 0 if it is skipped.

    The studies with the least potential gain are skipped until each of the others gets enough time. At least one stays.
    """
    kept = sorted(range(len(gains)), key=lambda i: -gains[i])
    while len(kept) > 1 and seconds * _share(gains, kept, kept[-1]) < least:
        kept.pop()
    return [seconds * _share(gains, kept, i) if i in kept else 0.0 for i in range(len(gains))]


def _share(gains: Sequence[float], kept: Sequence[int], one: int) -> float:
    equal, total = 1.0 / len(kept), sum(gains[i] for i in kept)
    return _ALIKE * equal + (1.0 - _ALIKE) * (gains[one] / total if total > 0 else equal)
