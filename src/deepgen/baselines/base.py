"""What every baseline does: the same operator, by someone else's implementation, on the same buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from deepgen.operators import Operator
from deepgen.targets import Target

Timer: TypeAlias = "Callable[[Callable[[], None]], float]"  # the seconds of one run of a call


class Baseline(Protocol):
    """A vendor's or peer's implementation. It is verified and timed like any kernel.

    One with an attribute `on_request` that is true takes part only where it is asked for by name. An attribute
    `imports` names the modules that take long to import, or is a function of the operator that does: they are imported
    while the search goes on and has the device. One whose weights are packed ahead of its calls has a static method
    `ahead`, which says beside which operators it is shown unasked; libraries never choose it.
    """

    @property
    def name(self) -> str: ...

    def missing(self, operator: Operator, target: Target) -> str | None:
        """Why it cannot run here, as a sentence; None if it can. Imports nothing heavy."""
        ...

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        """A call that computes the outputs in place, or a NewResult. Called in the worker only.

        The tensors are numpy arrays; on a GPU they have the CUDA array interface, and the call enqueues its work on the
        default stream. A call with an attribute `form` is shown under a name that ends with it: OnCopies has one.
        """
        ...


@dataclass(frozen=True)
class NewResult:
    """For a library that has no form of a call with a given output. `call` alone is timed; `keep` then copies the
    result to the output.
    """

    call: Callable[[], Any]
    keep: Callable[[Any], object]

    def __call__(self) -> None:
        self.keep(self.call())

    def apart(self) -> tuple[Callable[[], None], Callable[[], object]]:
        """The call, and what copies its latest result, if there is one."""
        latest: list[Any] = []

        def call() -> None:
            latest[:] = [self.call()]

        return call, lambda: [self.keep(result) for result in latest]


@dataclass(frozen=True)
class PackedAhead:
    """A call whose weights a library has put into an order of its own, as it does once for a model that is run often.

    `pack` does so again when they have changed. `places`: the addresses and bytes of what it made, which a cold run
    must not find in caches. `keep` is that of NewResult.
    """

    call: Callable[[], Any]
    pack: Callable[[], None]
    places: Callable[[], Sequence[tuple[int, int]]] = tuple
    keep: Callable[[Any], object] | None = None
    form: str = "weights packed ahead"
    constant: frozenset[str] = frozenset({"weight"})

    def __call__(self) -> None:
        result = self.call()
        if self.keep is not None:
            self.keep(result)


@dataclass(frozen=True)
class OnCopies:
    """A call of a library that has no kernel for tensors like these: it copies them, and that is part of the call."""

    call: Callable[..., None]
    form: str = "padded copies"

    def __call__(self, stream: int = 0) -> None:
        self.call(stream)


@runtime_checkable
class Choosing(Protocol):
    """A baseline with several implementations, of which it chooses the fastest as the worker times contenders."""

    def choose(
        self, operator: Operator, tensors: Mapping[str, Any], threads: int, seconds: Timer
    ) -> Callable[[], None]:
        """In place of `prepare`."""
        ...
