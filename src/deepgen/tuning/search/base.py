"""The interface of strategies, which choose the next configs and learn from their trials. Also shared parts: a random
order of a space without repeats, and options such as `library=lightgbm`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from deepgen.vocabulary import BadInput, JsonObject, Trial

if TYPE_CHECKING:
    from deepgen.space import Space


@dataclass(frozen=True)
class Past:
    """An earlier study that a new one may learn from."""

    name: str
    space: Space
    trials: Sequence[Trial]
    family: str | None = None  # the configs' family; None: a knob of each trial names it, or it is unknown
    right: int | None = None  # correct trials, if counting them would have to read all

    def succeeded(self) -> int:
        return sum(trial.ok for trial in self.trials) if self.right is None else self.right


@dataclass(frozen=True)
class Setting:
    """The input of a strategy. A strategy's state depends only on this and on the asks and tells."""

    space: Space
    seed: int = 0
    starts: Sequence[Mapping[str, Any]] = ()  # valid configs to try first
    options: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Past] = ()
    members: Mapping[str, Space] = field(default_factory=dict)  # if families compete: the space of each


class Strategy(Protocol):
    """Proposes valid configs, each at most once."""

    def ask(self, n: int) -> list[dict[str, Any]]:
        """Up to n new configs; none if the space is exhausted."""
        ...

    def tell(self, trial: Trial) -> None:
        """Report the trial of a proposed config; trials come in the order of the proposals."""
        ...


@runtime_checkable
class Restorable(Strategy, Protocol):
    """A strategy that saves its state, so that a resumed study need not replay all asks."""

    def state(self) -> JsonObject | None:
        """The state after an ask, kept small. None if a replay is as cheap."""
        ...

    def restore(self, state: Mapping[str, Any], ranks: Sequence[int], trials: Sequence[Trial]) -> None:
        """Set a new strategy to `state`, as after proposing `ranks` and being told `trials`, in these orders.

        An invalid state raises ValueError, after which the strategy is not used.
        """
        ...


_BLOCK = 32  # positions checked together: in a space that is not counted exactly, not every number is a rank


class Fresh:
    """The ranks that were not proposed yet. A rank taken from here is never returned again."""

    def __init__(self, setting: Setting) -> None:
        self.space = setting.space
        self.count = setting.space.ranks
        self.taken: set[int] = set()
        self._starts = list(dict.fromkeys(setting.space.rank(dict(c)) for c in setting.starts))
        self._order = Shuffle(self.count, setting.seed)
        self._position = 0

    def take(self, ranks: Iterable[int]) -> list[int]:
        """The ranks that are new, each once; they now count as taken."""
        new = [rank for rank in dict.fromkeys(ranks) if rank not in self.taken]
        self.taken.update(new)
        return new

    def starts(self, n: int) -> list[int]:
        """Up to n of the configs to try first."""
        first, self._starts = self._starts[:n], self._starts[n:]
        return self.take(first)

    def random(self, n: int) -> list[int]:
        """Up to n new ranks, uniform over the rest of the space."""
        drawn: list[int] = []
        while len(drawn) < n and self._position < self.count:
            block = range(self._position, min(self._position + max(n, _BLOCK), self.count))
            ranks = [self._order[position] for position in block]
            for rank, valid in zip(ranks, self.space.are_ranks(ranks), strict=True):
                self._position += 1
                drawn += self.take([rank]) if valid else []
                if len(drawn) == n:
                    break
        return drawn

    def state(self) -> tuple[int, int]:
        """The number of starts left, and the position in the random order."""
        return len(self._starts), self._position

    def restore(self, starts: int, position: int, taken: Iterable[int]) -> None:
        self._starts = self._starts[len(self._starts) - starts :]
        self._position = position
        self.taken = set(taken)

    def configs(self, ranks: Iterable[int]) -> list[dict[str, Any]]:
        return [self.space.at(rank) for rank in ranks]


class StrategyKind(Protocol):
    """A kind of strategy: its constructor, and its options with their defaults."""

    @property
    def OPTIONS(self) -> Mapping[str, Any]: ...

    def __call__(self, setting: Setting) -> Strategy: ...


def check_options(strategy: str, requested: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The options with defaults filled in; raises for an unknown name or a wrong type."""
    for name, value in requested.items():
        if name not in defaults:
            raise BadInput(f"strategy {strategy} has no option {name!r}", allowed=", ".join(defaults) or "it has none")
        wanted = type(defaults[name])
        fits = isinstance(value, (int, float)) if wanted is float else type(value) is wanted
        if not fits:
            raise BadInput(f"option {name} of strategy {strategy} is {value!r}", allowed=f"{wanted.__name__}")
    return {**defaults, **requested}


_ROUNDS = 4


class Shuffle:
    """A seeded permutation: a Feistel network over the next power of four, iterated until the result is in range."""

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self._half = max(1, ((max(count, 2) - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half) - 1
        self._keys = [f"{seed}:{r}:".encode() for r in range(_ROUNDS)]

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < self.count:
            raise IndexError(position)
        value = self._scramble(position)
        # The network permutes a domain at most four times as large, so this takes few steps.
        while value >= self.count:
            value = self._scramble(value)
        return value

    def _scramble(self, value: int) -> int:
        left, right = value >> self._half, value & self._mask
        for key in self._keys:
            hashed = int.from_bytes(hashlib.blake2b(key + str(right).encode(), digest_size=16).digest(), "little")
            left, right = right, left ^ (hashed & self._mask)
        return (left << self._half) | right


def parse_options(words: Sequence[str]) -> dict[str, Any]:
    """Parse words of the form name=value: true and false, integers, floats, else text."""
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise BadInput(f"{word!r} is not an option of a strategy", allowed="name=value")
        options[name] = _value(value)
    return options


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
