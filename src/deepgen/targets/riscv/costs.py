"""What instructions cost on a core, by class: cycles in which no other instruction of the class can start.

Counts weighted by such a table are no time: caches, dependences and what runs side by side are left out.
Facts marked as assumed have no source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SCALAR = ("scalar", "scalar_float", "scalar_divide", "load", "store", "branch", "other", "vset")
_MEMORY = ("unit", "strided", "indexed", "segment")
VECTOR = (
    *(f"vector_{kind}" for kind in ("arithmetic", "widening", "divide", "reduction", "permutation", "move")),
    *(f"vector_{way}_{kind}" for way in ("load", "store") for kind in _MEMORY),
)
CLASSES = (*SCALAR, *VECTOR)


@dataclass(frozen=True)
class Costs:
    """`each`: cycles of one instruction without vectors. `register`: cycles for each vector register that one works on,
    where a part of a register costs as much as a whole one. Classes that are not named cost 1."""

    name: str
    source: str
    each: Mapping[str, float] = field(default_factory=dict)
    register: Mapping[str, float] = field(default_factory=dict)

    def cycles(self, kind: str, registers: float) -> float:
        """Of one instruction that works on that many registers; 0 where it has no vectors."""
        if kind in SCALAR:
            return self.each.get(kind, 1.0)
        return self.register.get(kind, 1.0) * max(registers, 1.0)


_LOADS = tuple(f"vector_load_{kind}" for kind in _MEMORY)
_STORES = tuple(f"vector_store_{kind}" for kind in _MEMORY)
TABLES: Mapping[str, Costs] = {
    table.name: table
    for table in (
        Costs(
            "lmul",
            "no core: an instruction costs 1, one with vectors 1 for each register that it works on",
        ),
        Costs(
            "p600",
            "LLVM 19, RISCVSchedSiFiveP600.td: four integer pipes, two for branches, two for floats and for vectors, "
            "two ports for scalar memory, one for vector loads and one for stores; divisions of 32 bits; segments 12 "
            "cycles and one for each element, here of 32 bits; reductions assumed as permutations, on one pipe",
            {
                "scalar": 0.25,
                "scalar_float": 0.5,
                "scalar_divide": 19.0,
                "load": 0.5,
                "store": 0.5,
                "branch": 0.5,
            },
            {
                "vector_arithmetic": 0.5,
                "vector_widening": 0.5,
                "vector_divide": 12.0,
                "vector_load_segment": 16.0,
                "vector_store_segment": 16.0,
            },
        ),
        Costs(
            "x60",
            "LLVM 21, RISCVSchedSpacemitX60.td: two instructions a cycle, in order; one vector unit for floats and one "
            "for integers; data paths of half a register, so that memory takes two cycles for each. That arithmetic "
            "takes one is measured: 32 GFLOP/s of vfmacc.vv in f32 (book.j4orz.ai/assets/rooflinejupiter.html). "
            "Divisions of 32 bits",
            {"scalar": 0.5, "load": 0.5, "store": 0.5, "scalar_divide": 12.0},
            {
                **dict.fromkeys((*_LOADS, *_STORES), 2.0),
                "vector_divide": 12.0,
            },
        ),
    )
}
