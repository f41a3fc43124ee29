"""VTA programs as data: images of tensors in memory, micro-ops, and instructions of three modules.

Addresses count elements of a buffer: a block of a row of inputs or results, a block x block tile of weights. The
modules run concurrently, each executing its own instructions in order. An instruction `waits` for a token from a
neighbouring module in each queue that it names, and when it is done it `signals` by adding a token to each of the named
queues.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from deepgen.extend import BadInput, foreign
from deepgen_vta.chip import ACCUMULATOR, BUFFERS, INPUT, MICRO_OP, WEIGHT, Vta

LOAD, COMPUTE, STORE = MODULES = ("load", "compute", "store")
# The queues of tokens, with the module that gives and the one that takes.
QUEUES = {f"{a}>{b}": (a, b) for a, b in ((LOAD, COMPUTE), (COMPUTE, LOAD), (COMPUTE, STORE), (STORE, COMPUTE))}
MICRO_OPS = "micro_ops"  # the name of their image
Places: TypeAlias = "NDArray[np.int64]"
MicroOp: TypeAlias = "tuple[int, int, int]"  # addresses of accumulator, input and weight


@dataclass(frozen=True)
class Image:
    """The layout of a matrix in memory: rows x columns of a buffer's elements, padded with zeros.

    `axes` are the tensor's dimensions along rows and columns.
    """

    tensor: str
    buffer: str
    axes: tuple[int, int]
    rows: int
    columns: int

    @property
    def size(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class Load:
    """Copy `rows` x `columns` elements, with row stride `stride` in memory, to consecutive places of a buffer."""

    image: str
    buffer: str
    to: int
    start: int
    rows: int
    columns: int
    stride: int
    waits: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()


@dataclass(frozen=True)
class Store:
    """Copy consecutive accumulators to `rows` x `columns` elements of an image."""

    image: str
    at: int
    start: int
    rows: int
    columns: int
    stride: int
    waits: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gemm:
    """The micro-ops from `first` up to `last`, in two loops that advance their addresses.

    `steps` are those of accumulator, input and weight in the outer loop, then in the inner one. Each micro-op adds the
    product of an input and a weight to an accumulator, or sets the accumulator to zero with `reset`.
    """

    reset: bool
    first: int
    last: int
    outer: int
    inner: int
    steps: tuple[int, int, int, int, int, int]
    waits: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()

    @property
    def iterations(self) -> int:
        return self.outer * self.inner * (self.last - self.first)


Instruction: TypeAlias = Load | Store | Gemm
T = TypeVar("T", bound=Image | Load | Store | Gemm)
_KINDS: Mapping[str, type[Instruction]] = {"load": Load, "gemm": Gemm, "store": Store}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True)
class Program:
    images: tuple[Image, ...]
    micro_ops: tuple[MicroOp, ...]
    instructions: tuple[Instruction, ...]

    def image(self, tensor: str) -> Image:
        match = next((image for image in self.images if image.tensor == tensor), None)
        if match is None:
            raise BadInput(f"image {tensor!r} is not declared", allowed=", ".join(i.tensor for i in self.images))
        return match

    def to_text(self) -> str:
        """JSON with one instruction per line."""
        rows = (json.dumps([_NAMES[type(one)], *asdict(one).values()]) for one in self.instructions)
        head = {"images": [asdict(image) for image in self.images], "micro_ops": self.micro_ops}
        return f'{json.dumps(head)[:-1]}, "instructions": [\n' + ",\n".join(rows) + "\n]}\n"

    @staticmethod
    def from_text(text: str, where: str) -> Program:
        """Raises BadInput for anything but a program. `check` tests whether it fits a target."""
        data = foreign.parse(text, where)
        with foreign.shaped(where, "is not a VTA program"):
            images = tuple(_checked(Image(**{**row, "axes": tuple(row["axes"])})) for row in data["images"])
            micro_ops = tuple((_address(a), _address(i), _address(w)) for a, i, w in data["micro_ops"])
            return Program(images, micro_ops, tuple(_instruction(row) for row in data["instructions"]))


def _instruction(row: list[Any]) -> Instruction:
    kind = _KINDS[row[0]]
    values: list[Any] = [tuple(value) if isinstance(value, list) else value for value in row[1:]]
    instruction = _checked(kind(*values))
    if not set(instruction.waits + instruction.signals) <= set(QUEUES):
        raise ValueError(f"{row!r:.80}")
    return instruction


def _checked(parsed: T) -> T:
    """The parsed object, if every field has its type and every number is a valid address or count."""
    for field in fields(parsed):
        value = getattr(parsed, field.name)
        if field.type in ("int", "str", "bool"):
            parts, kind = (value,), str(field.type)
        else:
            parts, kind = value, "int" if "int" in str(field.type) else "str"
        for part in parts:
            if type(part).__name__ != kind:
                raise ValueError(f"{field.name} is {value!r:.60}")
            if kind == "int":
                _address(part)
    if isinstance(parsed, Gemm) and len(parsed.steps) != 6:
        raise ValueError(f"steps are {parsed.steps!r:.60}")
    return parsed


def _address(number: Any) -> int:
    if type(number) is not int or not 0 <= number < 1 << 31:
        raise ValueError(f"{number!r:.60} is neither an address nor a count")
    return number


def module(instruction: Instruction) -> str:
    if isinstance(instruction, Load):
        return COMPUTE if instruction.buffer == MICRO_OP else LOAD
    return STORE if isinstance(instruction, Store) else COMPUTE


@dataclass(frozen=True)
class Access:
    """Places of a buffer that an instruction reads or writes."""

    buffer: str
    places: Places
    writes: bool


def accesses(program: Program, instruction: Instruction) -> Iterable[Access]:
    """An instruction's accesses to buffers. Memory is left out: programs read one part of it and write another."""
    if isinstance(instruction, Gemm):
        accumulators, inputs, weights = gemm_places(program.micro_ops, instruction)
        yield Access(MICRO_OP, np.arange(instruction.first, instruction.last), writes=False)
        yield Access(ACCUMULATOR, accumulators, writes=True)
        if not instruction.reset:
            yield Access(INPUT, inputs, writes=False)
            yield Access(WEIGHT, weights, writes=False)
    else:
        count = np.arange(instruction.rows * instruction.columns)
        if isinstance(instruction, Load):
            yield Access(instruction.buffer, instruction.to + count, writes=True)
        else:
            yield Access(ACCUMULATOR, instruction.at + count, writes=False)


def gemm_places(micro_ops: tuple[MicroOp, ...], gemm: Gemm) -> tuple[Places, Places, Places]:
    """The addresses of accumulators, inputs and weights, in the order of execution."""
    return _gemm_places(micro_ops[gemm.first : gemm.last], gemm.outer, gemm.inner, gemm.steps)


@lru_cache(maxsize=1024)
def _gemm_places(
    micro_ops: tuple[MicroOp, ...], outer: int, inner: int, steps: tuple[int, ...]
) -> tuple[Places, Places, Places]:
    moved = np.array(steps, np.int64).reshape(2, 3)
    offsets = np.arange(outer)[:, None, None, None] * moved[0] + np.arange(inner)[None, :, None, None] * moved[1]
    addresses = (np.array(micro_ops, np.int64) + offsets).reshape(-1, 3).T
    return addresses[0], addresses[1], addresses[2]


def memory_places(instruction: Load | Store) -> Places:
    """The elements of its image that a transfer moves."""
    rows, columns = np.arange(instruction.rows)[:, None], np.arange(instruction.columns)[None, :]
    places: Places = (instruction.start + rows * instruction.stride + columns).reshape(-1)
    return places


# Limits for the simulator: iterations of all loops of a program, and of those of one instruction.
_MOST_ITERATIONS, _MOST_AT_ONCE = 1 << 24, 1 << 17
_MOST_ELEMENTS = 1 << 24  # of an image


def check(program: Program, target: Vta) -> None:
    """Raises BadInput with the number of the first instruction that is wrong."""
    sizes = {MICRO_OPS: len(program.micro_ops)}
    for image in program.images:
        if not 0 < image.size <= _MOST_ELEMENTS or sorted(image.axes) != [0, 1]:
            raise BadInput(f"image {image.tensor!r} has {image.rows} x {image.columns} elements")
        sizes[image.tensor] = image.size
    iterations = 0
    for number, one in enumerate(program.instructions):
        where = f"instruction {number}"
        if isinstance(one, Gemm):
            iterations += one.iterations
            inside = one.first < one.last <= len(program.micro_ops)
            if not (inside and 0 < one.iterations <= _MOST_AT_ONCE and iterations <= _MOST_ITERATIONS):
                raise BadInput("its loops or micro-ops are out of range", where=where)
        else:
            declared = one.image in sizes and getattr(one, "buffer", ACCUMULATOR) in BUFFERS
            if not declared or not 0 < one.rows * one.columns <= sizes[one.image]:
                raise BadInput(f"moves {one.rows} x {one.columns} elements of image {one.image!r}", where=where)
            if (getattr(one, "buffer", "") == MICRO_OP) != (one.image == MICRO_OPS):
                raise BadInput(f"image {one.image!r} does not go to that buffer", where=where)
            if memory_places(one).max() >= sizes[one.image]:
                raise BadInput(f"leaves image {one.image!r}", where=where, allowed=f"{sizes[one.image]} elements")
        for access in accesses(program, one):
            if access.places.max() >= (depth := target.depth(access.buffer)):
                raise BadInput(f"leaves the {access.buffer} buffer", where=where, allowed=f"{depth} elements")


class Touched:
    """The instruction of each module that last read and last wrote each place."""

    def __init__(self, target: Vta) -> None:
        self._target = target
        self._last: dict[tuple[str, str, bool], Places] = {}  # a missing entry was never accessed

    def last(self, module: str, buffer: str, places: Places, writes: bool) -> int:
        """The last instruction that must precede one that reads or writes these places; -1: none."""
        kinds = (False, True) if writes else (True,)
        latest = (self._last.get((module, buffer, kind)) for kind in kinds)
        return max((int(one[places].max()) for one in latest if one is not None), default=-1)

    def note(self, module: str, buffer: str, places: Places, writes: bool, number: int) -> None:
        if (module, buffer, writes) not in self._last:
            self._last[module, buffer, writes] = np.full(self._target.depth(buffer), -1)
        self._last[module, buffer, writes][places] = number


def listing(program: Program) -> str:
    """A readable listing, one instruction per line."""
    return "\n".join(_line(number, one) for number, one in enumerate(program.instructions)) + "\n"


def _line(number: int, one: Instruction) -> str:
    if isinstance(one, Gemm):
        what = "reset" if one.reset else "gemm"
        text = f"{what} {one.outer} x {one.inner} x micro-ops {one.first}..{one.last - 1}"
    elif isinstance(one, Load):
        text = f"load {one.image}[{one.start}: {one.rows} x {one.columns}] to {one.buffer}[{one.to}]"
    else:
        text = f"store accumulator[{one.at}] to {one.image}[{one.start}: {one.rows} x {one.columns}]"
    return f"{number:5} {module(one):8}{text}{_queues(' waits ', one.waits)}{_queues(' signals ', one.signals)}"


def _queues(word: str, queues: Sequence[str]) -> str:
    return word + ", ".join(queues) if queues else ""
