"""The definition of a fault in the pool: a kernel, what it gets wrong, and the expected outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from deepgen.kernels.own.arguments import Argument


class Due(Enum):
    """The expected outcome for a kernel. If a fault has several, any one of them."""

    RIGHT = "right"  # it has no fault: rejecting it is a false alarm
    WRONG = "wrong"  # it gets a bad verdict, in its trial or in the finals
    LOSES = "loses"  # the correct kernel wins, although it looks slower at first
    CONFINED = "confined"  # it may win; calls that it would get wrong are rejected, or handled around it
    MARKED = "marked"  # it may win, and its properties record the behaviour
    REFUSED = "refused"  # with a message, before anything runs
    UNPROMISED = "unpromised"  # it cannot be detected reliably, and docs/verification.md says so


class Call(Protocol):
    """A loaded kernel that takes numpy arrays and returns a numpy array, on whatever device it runs."""

    def __call__(self, *arrays: Any, **scalars: Any) -> Any: ...


@dataclass(frozen=True)
class Subject:
    """What some kernels of the pool compute: parameters, a reference, and correct statements.

    `parameters` and `right` are C, and also CUDA if they use only `EACH(i, n)`, which loops over all elements.
    """

    name: str
    arguments: tuple[Argument, ...]
    sizes: Mapping[str, int]
    reference: Callable[..., Any]
    parameters: str
    right: str
    passes: int = 200  # of the correct kernel over its elements, so that the faulty one is faster
    cells: str = "n"  # the number of elements, by which GPUs divide the work


@dataclass(frozen=True)
class Fault:
    """One kernel of the pool."""

    name: str
    point: str  # the heading in docs/how-verified.md that covers it
    subject: Subject
    due: tuple[Due, ...]
    faulty: str = ""  # statements in place of the subject's `right`; empty: those of the subject
    before: str = ""  # declarations
    language: str = "c"  # c, cuda, triton, expression
    makes: Callable[[], Any] | None = None  # creates the argument of `dg.tune` in other cases; perhaps with its family
    says: str = ""  # words of the verdict, or of the rejection
    marked_as: str = ""  # the name of the property that records it
    uses: Callable[[Call], None] | None = None  # calls in which a user would notice; raises AssertionError if wrong
    alone: bool = False  # without the correct kernel as a competitor
    flags: tuple[str, ...] = field(default=())
    requires: tuple[str, ...] = field(default=())  # on sizes, in the form of `dg.kernel`

    @property
    def has_rival(self) -> bool:
        """Whether the correct kernel is tuned with it: if one of them is to win, or may be affected by the other."""
        return not self.alone and (Due.LOSES in self.due or self.point == "Contenders")

    @property
    def full_name(self) -> str:
        return f"{self.name} ({self.language})"
