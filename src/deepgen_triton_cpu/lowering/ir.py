"""A kernel in Triton's IR as data: operations, values, blocks and regions, as the generic form of MLIR prints them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from deepgen.extend import BadInput

_NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Type:
    """A scalar (no shape) or a tensor of `element`: f32, i1, ...; a pointer to one of them is *f32."""

    element: str
    shape: tuple[int, ...] = ()
    tensor: bool = False

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def pointer(self) -> bool:
        return self.element.startswith("*")

    @property
    def pointee(self) -> str:
        return self.element[1:]

    @property
    def floating(self) -> bool:
        return self.element[0] in "fb"

    @property
    def bits(self) -> int:
        return 64 if self.pointer or self.element == "index" else int(re.findall(r"\d+", self.element)[0])

    def of(self, element: str) -> Type:
        return Type(element, self.shape, self.tensor)


@dataclass(eq=False)
class Value:
    """What an operation gives or a block takes. Two values are the same only if they are one object."""

    type: Type
    op: Op | None = None  # None: an argument of a block
    block: Block | None = None
    place: int = 0  # among the results, or the block's arguments


@dataclass(eq=False)
class Op:
    name: str
    operands: list[Value]
    results: list[Value] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)  # as they are printed
    regions: list[Region] = field(default_factory=list)
    successors: list[str] = field(default_factory=list)  # labels of blocks
    location: str = ""
    block: Block | None = None

    @property
    def result(self) -> Value:
        return self.results[0]

    def integer(self, name: str, default: int | None = None) -> int:
        match = _NUMBER.match(self.attributes.get(name, ""))
        if match is None:
            if default is None:
                raise BadInput(f"{self.name} has no attribute {name}", where=self.location, allowed="Triton 3.9's IR")
            return default
        return int(match[0])

    def integers(self, name: str) -> list[int]:
        """The numbers of `array<i32: 1, 0>`."""
        return [int(n) for n in _NUMBER.findall(self.attributes.get(name, "").partition(":")[2])]

    def flag(self, name: str) -> bool:
        return self.attributes.get(name, "false") != "false"


@dataclass(eq=False)
class Block:
    label: str
    args: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    region: Region | None = None


@dataclass(eq=False)
class Region:
    blocks: list[Block] = field(default_factory=list)
    op: Op | None = None

    @property
    def block(self) -> Block:
        return self.blocks[0]


@dataclass(eq=False)
class Function:
    name: str
    body: Region

    @property
    def args(self) -> list[Value]:
        return self.body.block.args


def walk(region: Region) -> Iterator[Op]:
    """All operations, each before those in its own regions."""
    for block in region.blocks:
        for op in block.ops:
            yield op
            for inner in op.regions:
                yield from walk(inner)


def make(name: str, operands: list[Value], of: Type, like: Op, **attributes: str) -> Op:
    """An operation with one result, at the place in the source of another."""
    op = Op(name, operands, attributes=attributes, location=like.location)
    op.results.append(Value(of, op))
    return op


def insert(block: Block, at: int, op: Op) -> None:
    op.block = block
    for result in op.results:
        result.block = block
    block.ops.insert(at, op)
