"""Whether a program fits a target: no instruction leaves its buffer or its image."""

from __future__ import annotations

from deepgen.vocabulary import BadInput
from deepgen_vta.target.chip import ACCUMULATOR, BUFFERS, MICRO_OP, Vta
from deepgen_vta.target.program import MICRO_OPS, Gemm, Program, accesses, memory_places

# What the simulator may be asked for: turns of all loops of a program, and of those of one instruction.
_MOST_TURNS, _MOST_AT_ONCE = 1 << 24, 1 << 17
_MOST_ELEMENTS = 1 << 24  # of an image


def check(program: Program, target: Vta) -> None:
    """Raises BadInput with the number of the first instruction that is wrong."""
    sizes = {MICRO_OPS: len(program.micro_ops)}
    for image in program.images:
        if not 0 < image.size <= _MOST_ELEMENTS or sorted(image.axes) != [0, 1]:
            raise BadInput(f"image {image.tensor!r} has {image.rows} x {image.columns} elements")
        sizes[image.tensor] = image.size
    turns = 0
    for number, one in enumerate(program.instructions):
        where = f"instruction {number}"
        if isinstance(one, Gemm):
            turns += one.turns
            inside = one.first < one.last <= len(program.micro_ops)
            if not (inside and 0 < one.turns <= _MOST_AT_ONCE and turns <= _MOST_TURNS):
                raise BadInput("its loops or micro-ops are out of range", where=where)
        else:
            known = one.image in sizes and getattr(one, "buffer", ACCUMULATOR) in BUFFERS
            if not known or not 0 < one.rows * one.columns <= sizes[one.image]:
                raise BadInput(f"moves {one.rows} x {one.columns} elements of image {one.image!r}", where=where)
            if (getattr(one, "buffer", "") == MICRO_OP) != (one.image == MICRO_OPS):
                raise BadInput(f"image {one.image!r} does not go to that buffer", where=where)
            if memory_places(one).max() >= sizes[one.image]:
                raise BadInput(f"leaves image {one.image!r}", where=where, allowed=f"{sizes[one.image]} elements")
        for access in accesses(program, one):
            if access.places.max() >= (depth := target.depth(access.buffer)):
                raise BadInput(f"leaves the {access.buffer} buffer", where=where, allowed=f"{depth} elements")
