"""What every generator does: for an operator and a target it gives a space, and for each config a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from deepgen.operators import Operator
from deepgen.targets import Target
from deepgen.vocabulary import Kernel

if TYPE_CHECKING:
    from deepgen.space import Space  # which takes numpy: to know the families by name does not


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


@runtime_checkable
class Yielding(Protocol):
    """What a family has beside, if some of what it serves is served faster by one after it in `families()`."""

    def yields(self, operator: Operator, target: Target) -> bool:
        """Whether it comes after those that do not yield. Asked only of what it serves; always the same answer."""
        ...


@runtime_checkable
class Modelled(Protocol):
    """What a family has beside, if it knows how the time of a kernel changes with the shape."""

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        """Roughly what a run takes; only its ratios between shapes and configs count. None: there is no telling."""
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
class General(Protocol):
    """What a family has beside, if it serves every kind of operator: those made for one kind come before it."""

    @property
    def general(self) -> bool: ...


@runtime_checkable
class Surpassed(Protocol):
    """What a family has beside, if some of what it serves is served faster by one for every kind of operator."""

    def surpassed(self, operator: Operator, target: Target) -> bool:
        """Whether it comes after all others. Asked only of what it serves; always the same answer."""
        ...


@runtime_checkable
class BringsFamily(Protocol):
    """What an operator has beside, if it comes with its only family, as a kernel of the user's own does."""

    @property
    def family(self) -> Generator: ...
