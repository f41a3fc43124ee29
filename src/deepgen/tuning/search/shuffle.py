"""A random order of 0..count-1 for any count, without a list: position i is computed when it is asked for."""

from __future__ import annotations

import hashlib

_ROUNDS = 4


class Shuffle:
    """A seeded permutation: a Feistel network over the next power of four, walked until it lands inside."""

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self._half = max(1, ((max(count, 2) - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half) - 1
        self._keys = [f"{seed}:{r}:".encode() for r in range(_ROUNDS)]

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < self.count:
            raise IndexError(position)
        value = self._scramble(position)
        # The network permutes a domain at most four times too large, so this takes few steps.
        while value >= self.count:
            value = self._scramble(value)
        return value

    def _scramble(self, value: int) -> int:
        left, right = value >> self._half, value & self._mask
        for key in self._keys:
            hashed = int.from_bytes(hashlib.blake2b(key + str(right).encode(), digest_size=16).digest(), "little")
            left, right = right, left ^ (hashed & self._mask)
        return (left << self._half) | right
