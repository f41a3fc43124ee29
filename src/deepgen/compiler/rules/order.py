"""Which rules apply on a target, and in which order; users add their own in front of them."""

from __future__ import annotations

from collections.abc import Sequence

from deepgen.compiler.intrinsics.dots import DOTS
from deepgen.compiler.intrinsics.tiles import TILES, Instruction
from deepgen.compiler.rules.joining import with_joined
from deepgen.compiler.rules.padding import with_padding
from deepgen.compiler.rules.registry import RULES
from deepgen.compiler.rules.residues import with_residues
from deepgen.compiler.rules.rule import Rule, drafts
from deepgen.compiler.rules.sharing import with_kept
from deepgen.compiler.rules.sketch import Sketch, sketch_of
from deepgen.compiler.rules.tensorize import prepared
from deepgen.compiler.rules.widening import with_steps
from deepgen.operators.expr.nodes import Expression
from deepgen.targets import Cpu
from deepgen.vocabulary import dtype


def rules_for(own: Sequence[Rule] = ()) -> list[Rule]:
    """The rules for processors: those that are passed, those of plug-ins, then deepgen's own."""
    working = [make() for make in RULES.working()]
    plugged = working[len(RULES.own) :]
    return [*own, *plugged, *working[: len(RULES.own)]]


def sketches(expression: Expression, target: Cpu, own: Sequence[Rule] = ()) -> list[Sketch]:
    """The sketches of an expression on a target, the better ones first.

    Vectors multiply whole numbers so much slower than instructions for small ones that they are not tried beside them.
    """
    rules, found, whole = rules_for(own), [], False
    expression = with_kept(with_residues(with_joined(expression)))
    for dot in instructions_of(target):
        ready = prepared(expression, dot)
        made = drafts(ready, target, rules, dot) if ready is not None else []
        used = [draft for draft in made if dot.name in draft.names]
        found += used
        whole |= bool(used) and dtype(dot.result).integer
    if not whole:
        found += drafts(with_padding(with_steps(expression)), target, rules)
    return [sketch_of(draft) for draft in found]


def instructions_of(target: Cpu) -> list[Instruction]:
    """The instructions of a target for small numbers, the faster ones first; dot products that fill its vectors."""
    known: list[Instruction] = [*TILES.values(), *DOTS.values()]
    return [one for one in known if target.has(*one.features) and one.lanes * 4 == target.vector_bytes]
