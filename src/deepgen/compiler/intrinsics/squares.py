"""Squares of units that a function of C copies as columns: their names, and their text with shuffles of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_NAME = "transpose"
_UNITS = {4: "u32", 8: "u64"}
_LANE = 16  # bytes: processors shuffle within so many, and move pieces of as many
_MOST = 64  # bytes of a row


@dataclass(frozen=True)
class Square:
    """So many rows of as many units, which have so many bytes."""

    side: int
    unit: int

    @property
    def name(self) -> str:
        return f"{_NAME}{self.side}_{_UNITS[self.unit]}"

    @property
    def there(self) -> bool:
        """Whether there is a function for it: rows are whole vectors."""
        return self.unit in _UNITS and self.side * self.unit in (_LANE, 2 * _LANE, _MOST)

    def function(self) -> str:
        """It takes two places, and how many bytes rows of each lie apart."""
        kind, side = _UNITS[self.unit], self.side
        parameters = "void *restrict to, const void *restrict from, i64 to_step, i64 from_step"
        row = f"{kind} row __attribute__((vector_size({side * self.unit}), aligned(1), may_alias))"
        rows = [f"x{n}" for n in range(side)]
        shuffles = _Shuffles(side, _LANE // self.unit, [])
        columns = shuffles.transposed(rows)
        return "\n".join(
            [
                f"static inline void {self.name}({parameters}) {{",
                # On RISC-V every such shuffle is a gather with indices from memory.
                "#if (defined(__clang__) || __GNUC__ >= 12) && !defined(__riscv)",
                f"    typedef {row};",
                *(
                    f"    const row {x} = *(const row *)((const char *)from + {n} * from_step);"
                    for n, x in enumerate(rows)
                ),
                *shuffles.lines,
                *(f"    *(row *)((char *)to + {n} * to_step) = {y};" for n, y in enumerate(columns)),
                "#else",
                f"    for (int i = 0; i < {side}; i++)",
                f"        for (int j = 0; j < {side}; j++)",
                f"            memcpy((char *)to + i * to_step + j * {self.unit},",
                f"                   (const char *)from + j * from_step + i * {self.unit}, {self.unit});",
                "#endif",
                "}",
                "",
            ]
        )


def square_of(name: str) -> Square | None:
    """The square that a function of this name copies."""
    side, _, kind = name.removeprefix(_NAME).partition("_")
    unit = next((size for size, of in _UNITS.items() if of == kind), None)
    return Square(int(side), unit) if name.startswith(_NAME) and unit is not None else None


@dataclass(frozen=True)
class _Shuffles:
    """Lines of C that shuffle vectors of `side` units, `within` of which lie in each 16 bytes."""

    side: int
    within: int
    lines: list[str]

    def transposed(self, rows: Sequence[str]) -> list[str]:
        """First within 16 bytes, by interleaving pairs; then these change places between vectors."""
        blocks = [self.within_lanes(rows[start : start + self.within]) for start in range(0, self.side, self.within)]
        pieces = [self.between_lanes(vectors) for vectors in zip(*blocks, strict=True)]
        return [name for names in zip(*pieces, strict=True) for name in names]

    def within_lanes(self, rows: Sequence[str]) -> list[str]:
        """Vectors that have, in each 16 bytes, a column of what the rows have there."""
        if len(rows) == 1:
            return list(rows)
        run, half = self.within // len(rows), self.within // 2
        out = []
        for first in (0, half):
            starts = [lane + n for lane in range(0, self.side, self.within) for n in range(first, first + half, run)]
            places = [n + i + of for n in starts for of in (0, self.side) for i in range(run)]
            pairs = zip(rows[::2], rows[1::2], strict=True)
            out += self.within_lanes([self.shuffled(one, other, places) for one, other in pairs])
        return out

    def between_lanes(self, vectors: Sequence[str]) -> list[str]:
        """Vectors that have the first 16 bytes of all of them, the second ones, and so on."""
        if len(vectors) == 1:
            return list(vectors)
        out = []
        for first in (0, self.within):
            starts = range(first, 2 * self.side, 2 * self.within)
            places = [start + n for start in starts for n in range(self.within)]
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            out.append(self.between_lanes([self.shuffled(one, other, places) for one, other in pairs]))
        return [name for names in zip(*out, strict=True) for name in names]

    def shuffled(self, one: str, other: str, places: Sequence[int]) -> str:
        name = f"y{len(self.lines)}"
        chosen = ", ".join(map(str, places))
        self.lines.append(f"    const row {name} = __builtin_shufflevector({one}, {other}, {chosen});")
        return name
