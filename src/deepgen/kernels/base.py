"""What every generator does: for an operator and a target it gives a space, and for each config a kernel."""

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


_SHOWN = 0.1  # of what is done beside something longer
OWN_KERNELS = "own kernel"  # the name of the family of kernels that users bring


class Generator(Protocol):
    """One family of kernels."""

    @property
    def name(self) -> str: ...

    def refuses(self, operator: Operator, target: Target) -> str | None:
        """None when this family serves the operator on the target, otherwise the reason why it cannot, in words."""
        ...

    def space(self, operator: Operator, target: Target) -> Space: ...

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel: ...

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        """A valid config that is good without any search: where a search may start, and what a demo builds."""
        ...


class Rank(IntEnum):
    """Where a family comes among those that serve an operator on a target: families of a lower rank come first.

    Within a rank those that are `Compared` come in the order of their times, and then the others in the order of
    `families()`. A family without a rank is specialised. In a study those before `SURPASSED` compete.
    """

    SPECIALISED = 0  # made for this kind of operator
    YIELDS = 1  # made for it, and a specialised one is faster here
    GENERAL = 2  # serves every kind of operator
    SURPASSED = 3  # serves it, and another one is known to be faster here: taken by name, or where none else serves
    BY_NAME = 4  # takes some input to be constant: whoever wants that asks for it


@runtime_checkable
class HasRank(Protocol):
    """What a family has beside, if it is not the best choice for all that it serves."""

    def rank(self, operator: Operator, target: Target) -> Rank:
        """Asked only of what it serves; always the same answer."""
        ...


@runtime_checkable
class Modelled(Protocol):
    """What a family has beside, if it knows how the time of a kernel changes with the shape."""

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        """Roughly what a run takes; only its ratios between shapes and configs count. None: there is no telling."""
        ...


@dataclass(frozen=True)
class CostPart:
    """How long one kind of work takes alone, and how much of it there is."""

    name: str
    seconds: float
    amount: float = 0.0
    unit: str = ""


def overlapped(times: Sequence[float]) -> float:
    """Of what is done at the same time: the longest hides most of the others."""
    return max(times, default=0.0) + _SHOWN * sum(times)


@dataclass(frozen=True)
class CostPhase:
    """What a kernel does at a time, as a launch of a GPU: `beside` each other, and `fixed`, which nothing hides."""

    name: str
    beside: tuple[CostPart, ...]
    fixed: tuple[CostPart, ...] = ()

    @property
    def seconds(self) -> float:
        return overlapped([part.seconds for part in self.beside]) + sum(part.seconds for part in self.fixed)


@dataclass(frozen=True)
class Cost:
    """Roughly what a run takes, by what it does; only ratios between configs and shapes count."""

    phases: tuple[CostPhase, ...]

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)


@runtime_checkable
class Costed(Protocol):
    """What a family has beside, if it knows what the time of a kernel comes from."""

    def cost(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Cost: ...


def cost_of(family: Generator, operator: Operator, target: Target, config: Mapping[str, Any]) -> Cost | None:
    """What a family expects of a config; None where it expects nothing."""
    if isinstance(family, Costed):
        return family.cost(operator, target, config)
    seconds = family.modelled_seconds(operator, target, config) if isinstance(family, Modelled) else None
    return None if seconds is None else Cost((CostPhase(family.name, (), (CostPart("whole run", seconds),)),))


@runtime_checkable
class Compared(Modelled, Protocol):
    """What a family has beside, if its model tells seconds: the family whose default takes the least serves."""

    def least_seconds(self, operator: Operator, target: Target) -> float:
        """What its model never stays below: a family that another's default is faster than need not choose one."""
        ...


@runtime_checkable
class Ranked(Protocol):
    """What a family has beside, if it knows more than one config that may be the best without any search."""

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        """Valid configs, the most promising first, the default among them."""
        ...


@runtime_checkable
class Scheduled(Protocol):
    """What a family has beside, if its kernels are made by schedules: how one comes about, as text for people."""

    def schedule_text(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> str:
        """The steps of a config, and the loops that they make."""
        ...

    def passes_text(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> str:
        """The loops after each pass of lowering."""
        ...


@runtime_checkable
class AsksRules(Protocol):
    """What a family has beside, if rules make its schedules."""

    def answers(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> list[JsonObject]:
        """What each rule answered about each stage: `stage`, `rule`, `asked`, `sketches`, `chosen` and `why`."""
        ...

    def checked_passes(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> JsonObject:
        """Whether passes keep what they lower, on small `sizes`: `passes`, and `wrong`, which of them does not, how."""
        ...


@runtime_checkable
class BringsFamily(Protocol):
    """What an operator has beside, if it comes with its only family, as a kernel of the user's own does."""

    @property
    def family(self) -> Generator: ...


def rank_of(family: Generator, operator: Operator, target: Target) -> Rank:
    """The rank of a family that serves the operator there."""
    return family.rank(operator, target) if isinstance(family, HasRank) else Rank.SPECIALISED


_OF_EXPRESSIONS = "rules"  # the family that serves any of them
_LARGEST = 2**63 - 1  # bytes: what addresses and 64-bit indices can tell apart


def served_instead(operator: Operator, target: Target, families: Sequence[Generator]) -> str:
    """In words: other values of single words of the operator with which the target serves it."""
    if isinstance(operator, ExpressionOperator):  # it has no words
        return "; ".join(f"{f.name}: {f.refuses(operator, target)}" for f in families if f.name == _OF_EXPRESSIONS)
    offers = []
    for word in words_of(type(operator)).values():
        choices = [one for one in word.choices if _serves(operator, word.name, one, target, families)]
        if choices:
            offers.append(f"{word.name} {', '.join(choices)}")
    if not offers:
        return f"{target.name} serves no {operator.name} like this; see why: {_ask(operator, target)}"
    return f"served there: {'; or '.join(offers)}; see why: {_ask(operator, target)}"


def check_addressable(operator: Operator) -> None:
    """Refuse tensors that no memory can hold, before anyone computes with their sizes."""
    for tensor, size in _sizes(operator):
        if size > _LARGEST:
            what = f"{operator.describe()}: {tensor} takes {size:.3g} bytes"
            raise BadInput(what, allowed=f"at most {_LARGEST:.3g} bytes a tensor: no index reaches further")


def least_bytes(operator: Operator) -> int:
    """The memory that its tensors take, each once."""
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
