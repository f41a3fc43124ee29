"""What a fault of the pool is: a kernel, what it gets wrong, and what must become of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from deepgen.kernels.own.arguments import Argument


class Due(Enum):
    """What must become of a kernel. Where a fault has several, one of them."""

    RIGHT = "right"  # it has no fault: whoever calls it wrong gives a false alarm
    WRONG = "wrong"  # it gets a verdict, in its trial or in the finals
    LOSES = "loses"  # the right kernel wins, although it looks slower at first
    CONFINED = "confined"  # it may win; what it would get wrong is refused, or done right around it
    MARKED = "marked"  # it may win, and its properties say what it does
    REFUSED = "refused"  # in words, before anything runs
    UNPROMISED = "unpromised"  # nobody can find it out for sure, and docs/verification.md says so


class Call(Protocol):
    """A loaded kernel that takes numpy arrays and gives a numpy array, on whatever device it runs."""

    def __call__(self, *arrays: Any, **scalars: Any) -> Any: ...


@dataclass(frozen=True)
class Subject:
    """What some kernels of the pool compute: parameters, a reference, and statements that are right.

    `parameters` and `right` are C, and CUDA where they use nothing but `EACH(i, n)`, which runs over all elements.
    """

    name: str
    arguments: tuple[Argument, ...]
    sizes: Mapping[str, int]
    reference: Callable[..., Any]
    parameters: str
    right: str
    passes: int = 200  # of the right kernel over its elements: the faulty one is to be faster
    cells: str = "n"  # how many elements there are, by which GPUs divide the work


@dataclass(frozen=True)
class Fault:
    """One kernel of the pool."""

    name: str
    point: str  # the heading of docs/how-verified.md under which it falls
    subject: Subject
    due: tuple[Due, ...]
    faulty: str = ""  # statements in place of the subject's `right`; none: those themselves
    before: str = ""  # declarations
    language: str = "c"  # c, cuda, triton, expression
    makes: Callable[[], Any] | None = None  # what `dg.tune` takes where that is no such text; perhaps with its family
    says: str = ""  # words of the verdict, or of the refusal
    marked_as: str = ""  # the name of the property that says it
    uses: Callable[[Call], None] | None = None  # calls by which a user would notice; raises AssertionError where wrong
    alone: bool = False  # without the right kernel beside it
    flags: tuple[str, ...] = field(default=())
    requires: tuple[str, ...] = field(default=())  # of sizes, in words of `dg.kernel`

    @property
    def has_rival(self) -> bool:
        """Whether the right kernel is tuned beside it: where one of them is to win, or may suffer from the other."""
        return not self.alone and (Due.LOSES in self.due or self.point == "Contenders")

    @property
    def full_name(self) -> str:
        return f"{self.name} ({self.language})"
