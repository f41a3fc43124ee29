"""Names of loops and buffers as identifiers of C, each its own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# Words of the language, and what the headers define.
_TAKEN = frozenset(
    """
    auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
    f16 bf16 f32 f64 u8 i8 u16 i16 u32 i32 u64 i64 least quotient job pool workspace own threads thread given slot lanes
    parts part turns together nth loop_part to y0 y1 yn j0 j1 jn j from gamma signgam main exp log sin cos tanh erf pow
    floor sqrt div abs
    """.split()  # noqa: SIM905
)


@dataclass
class Names:
    """One identifier for each name, the same whenever it is asked for."""

    known: dict[str, str] = field(default_factory=dict)

    def of(self, name: str) -> str:
        if name not in self.known:
            plain = re.sub(r"\W", "_", name)
            plain = plain if plain[:1].isalpha() and plain not in _TAKEN else f"v_{plain}"
            used = set(self.known.values())
            tries = (plain if n == 0 else f"{plain}_{n}" for n in range(len(used) + 1))
            self.known[name] = next(t for t in tries if t not in used)
        return self.known[name]
