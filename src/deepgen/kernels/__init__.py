"""Expert kernels, by operator and family, and users' own kernels; and the interface of all generators, which is a space
for an operator and a target, and a kernel for each config.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from deepgen.operators import Operator, words_of
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.targets import Target
from deepgen.vocabulary import BadInput, JsonObject, Kernel

if TYPE_CHECKING:
    from deepgen.space import Space


_SHOWN = 0.1  # share of shorter overlapping work that is not hidden
OWN_KERNELS = "own kernel"  # the name of the family of users' own kernels


class Generator(Protocol):
    """One kernel family."""

    @property
    def name(self) -> str: ...

    def refuses(self, operator: Operator, target: Target) -> str | None:
        """None if this family supports the operator on the target, otherwise the reason why it does not."""
        ...

    def space(self, operator: Operator, target: Target) -> Space: ...

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel: ...

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        """A valid config that is good without any search: where a search may start, and what a demo builds."""
        ...


class Rank(IntEnum):
    """The position of a family among those that support an operator on a target: lower ranks come first.

    Within a rank, families that are `Compared` come first, in the order of their times, and then the others in the
    order of `families()`. A family without a rank is specialised. In a study those before `SURPASSED` compete.
    """

    SPECIALISED = 0  # made for this kind of operator
    YIELDS = 1  # made for it, but another specialised one is faster here
    GENERAL = 2  # serves every kind of operator
    SURPASSED = 3  # supports it, but another is known to be faster here: used only by name, or if no other does
    BY_NAME = 4  # assumes that some input is constant: it must be requested by name


@runtime_checkable
class HasRank(Protocol):
    """Optional interface: a family that is not the best choice for everything it supports."""

    def rank(self, operator: Operator, target: Target) -> Rank:
        """Called only for supported operators; must be deterministic."""
        ...


@runtime_checkable
class Modelled(Protocol):
    """Optional interface: a family with a model of how a kernel's time changes with the shape."""

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        """The approximate time of a run; only ratios between shapes and configs matter. None: unknown."""
        ...


@dataclass(frozen=True)
class CostPart:
    """The time of one kind of work alone, and its amount."""

    name: str
    seconds: float
    amount: float = 0.0
    unit: str = ""


def overlapped(times: Sequence[float]) -> float:
    """The time of overlapping work: the longest part hides most of the others."""
    return max(times, default=0.0) + _SHOWN * sum(times)


@dataclass(frozen=True)
class CostPhase:
    """A phase of a kernel, such as a GPU launch: concurrent work (`beside`), and `fixed` costs that nothing hides."""

    name: str
    beside: tuple[CostPart, ...]
    fixed: tuple[CostPart, ...] = ()

    @property
    def seconds(self) -> float:
        return overlapped([part.seconds for part in self.beside]) + sum(part.seconds for part in self.fixed)


@dataclass(frozen=True)
class Cost:
    """The approximate time of a run, by phases; only ratios between configs and shapes matter."""

    phases: tuple[CostPhase, ...]

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)


@runtime_checkable
class Costed(Protocol):
    """Optional interface: a family with a cost breakdown of its kernels."""

    def cost(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Cost: ...


def cost_of(family: Generator, operator: Operator, target: Target, config: Mapping[str, Any]) -> Cost | None:
    """The predicted cost of a config; None if unknown."""
    if isinstance(family, Costed):
        return family.cost(operator, target, config)
    seconds = family.modelled_seconds(operator, target, config) if isinstance(family, Modelled) else None
    return None if seconds is None else Cost((CostPhase(family.name, (), (CostPart("whole run", seconds),)),))


@runtime_checkable
class Compared(Modelled, Protocol):
    """Optional interface: a family whose model predicts seconds; the one with the fastest default is chosen."""

    def least_seconds(self, operator: Operator, target: Target) -> float:
        """A lower bound of its model: a family need not choose a default if another's is already faster than this."""
        ...


@runtime_checkable
class Ranked(Protocol):
    """Optional interface: a family that can rank several promising configs without any search."""

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        """Valid configs, the most promising first, the default among them."""
        ...


class FirstRanked:
    """A family whose default is the first of its ranked configs."""

    def default(self: Ranked, operator: Operator, target: Target) -> Mapping[str, Any]:
        return next(self.ranked(operator, target))


@runtime_checkable
class Scheduled(Protocol):
    """Optional interface: a family whose kernels are made by schedules, and can show them as text."""

    def schedule_text(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> str:
        """The steps of a config, and the resulting loops."""
        ...

    def passes_text(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> str:
        """The loops after each pass of lowering."""
        ...


@runtime_checkable
class AsksRules(Protocol):
    """Optional interface: a family whose schedules are made by rules."""

    def answers(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> list[JsonObject]:
        """What each rule answered about each stage: `stage`, `rule`, `asked`, `sketches`, `chosen` and `why`."""
        ...

    def checked_passes(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> JsonObject:
        """Check passes on small `sizes`: `passes`, and `wrong`, the one that changes a result, and how."""
        ...


@runtime_checkable
class BringsFamily(Protocol):
    """Optional interface: an operator that comes with its only family, such as a user's own kernel."""

    @property
    def family(self) -> Generator: ...


def rank_of(family: Generator, operator: Operator, target: Target) -> Rank:
    """The rank of a family that supports the operator on the target."""
    return family.rank(operator, target) if isinstance(family, HasRank) else Rank.SPECIALISED


_OF_EXPRESSIONS = "rules"  # the family that serves any of them
_LARGEST = 2**63 - 1  # bytes: what addresses and 64-bit indices can distinguish


def served_instead(operator: Operator, target: Target, families: Sequence[Generator]) -> str:
    """Changes of single parameters with which the target would support the operator, as text."""
    if isinstance(operator, ExpressionOperator):  # it has no such parameters
        return "; ".join(f"{f.name}: {f.refuses(operator, target)}" for f in families if f.name == _OF_EXPRESSIONS)
    offers = []
    for word in words_of(type(operator)).values():
        choices = [one for one in word.choices if _serves(operator, word.name, one, target, families)]
        if choices:
            offers.append(f"{word.name} {', '.join(choices)}")
    if not offers:
        return f"{target.name} does not support this {operator.name}; see why: {_ask(operator, target)}"
    return f"supported there: {'; or '.join(offers)}; see why: {_ask(operator, target)}"


def check_addressable(operator: Operator) -> None:
    """Refuses tensors that no memory can hold, before anything is computed with their sizes."""
    for tensor, size in _sizes(operator):
        if size > _LARGEST:
            what = f"{operator.describe()}: {tensor} takes {size:.3g} bytes"
            raise BadInput(what, allowed=f"at most {_LARGEST:.3g} bytes a tensor: the limit of its indices")


def least_bytes(operator: Operator) -> int:
    """The memory for its tensors, each counted once."""
    return sum(size for _, size in _sizes(operator))


def _sizes(operator: Operator) -> Iterator[tuple[str, int]]:
    for tensor in operator.tensors():
        size = tensor.dtype.bytes
        for length in tensor.shape:
            size *= length
        yield tensor.name, size


def _serves(operator: Operator, word: str, value: str, target: Target, families: Sequence[Generator]) -> bool:
    parameters = operator.parameters()
    if parameters.get(word) == value:
        return False
    try:
        other = type(operator).make({**parameters, word: value})
    except BadInput:
        return False
    return any(family.refuses(other, target) is None for family in families)


def _ask(operator: Operator, target: Target) -> str:
    words = " ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in _stated(operator)
    )
    return f"deepgen space {operator.name} {words} --target {target.name} --why"


def _stated(operator: Operator) -> list[tuple[str, object]]:
    return [(name, value) for name, value in operator.parameters().items() if value is not None]
