"""Whether it pays to look at the calls of a function: a look takes the processor's time, and kernels must earn it."""

from __future__ import annotations

from collections.abc import Callable

SECONDS = 1e-6  # of a look at a call that stays torch's: half of it in a loop, up to three times in a model
LOOKS = 256  # until it is seen what they earned
_MOST_SAVED = 4  # times as much may be left over from better times


class Looks:
    """Counts looks at calls that stay torch's. `take` counts one; it raises IndexError where `settle` is due.

    An item is taken from a list: nothing that Python has counts more quickly.
    """

    def __init__(self, earned: Callable[[], float], give_up: Callable[[], None]) -> None:
        """`earned`: the seconds that kernels saved so far. `give_up`: stop looking, as torch's calls cost more."""
        self._earned, self._give_up = earned, give_up
        self._settled = self._saved = 0.0
        self._left: list[None] = [None] * LOOKS
        self.take = self._left.pop

    def settle(self) -> None:
        """Go on if kernels earned what the looks took, and otherwise give up."""
        earned = self._earned()
        self._saved += earned - self._settled if earned > self._settled else 0.0
        self._settled = earned
        price = SECONDS * LOOKS
        if self._saved < price:
            self._give_up()
        self._saved = min(max(self._saved - price, 0.0), _MOST_SAVED * price)
        self._left[:] = [None] * LOOKS
