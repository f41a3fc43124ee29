"""One call of a bound kernel: sets the addresses and runs all steps.

An output that overlaps another array is refused, because kernels read and write in an unspecified order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from deepgen.operators import Signature
from deepgen.run.call import compiled
from deepgen.run.call.arrays import View, as_bytes
from deepgen.run.call.plans import RawStep
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import DTYPES

# Sets the tensors' addresses and runs on a stream.
Fire: TypeAlias = "Callable[[Sequence[int], int], None]"
_MOST = 16  # tensors in a call from C (c/bound.h)


@dataclass(frozen=True)
class BoundCall:
    """A kernel bound to sizes, strides and a thread, so that threads can set addresses independently."""

    slots: Mapping[str, Sequence[Any]]  # the slots of each tensor's address: objects whose `value` it is
    on: Callable[[int], None]  # switches to another stream
    run: Callable[[], None]
    workspaces: object = None  # memory that arguments point to, which must live as long as the call
    raw: Sequence[RawStep] = ()  # what `run` does, for C; empty if it needs Python
    check: Callable[[str, int], None] = lambda name, code: None  # raises for an error code of a driver


def firing(call: BoundCall, names: Sequence[str], apart: Apart) -> Fire:
    """A function that makes the call, with addresses in the order of these names."""
    core = compiled.core()
    if core is not None and len(names) <= _MOST:
        return _in_c(core, call, names, apart)
    slots = [list(call.slots.get(name, ())) for name in names]
    *read, written = names
    short = _SHORT.get(len(read))
    if short and all(len(some) == 1 for some in slots) and [*apart.within] == [(written, name) for name in read]:
        return short(call, apart, *(some[0] for some in slots))
    on = 0

    def fire(addresses: Sequence[int], stream: int) -> None:
        nonlocal on
        apart.check(addresses)
        for some, address in zip(slots, addresses, strict=True):
            for slot in some:
                slot.value = address
        if stream != on:
            call.on(stream)
            on = stream
        call.run()

    return fire


def _in_c(core: Any, call: BoundCall, names: Sequence[str], apart: Apart) -> Fire:
    """The same, executed by the compiled core."""
    places = {name: place for place, name in enumerate(names)}
    slots = [(places[name], *_where(slot)) for name in names for slot in call.slots.get(name, ())]
    near = [(places[name], places[other], *within) for (name, other), within in apart.within.items()]
    steps = [(step.function, step.whole, step.real, bool(step.fails)) for step in call.raw]
    streams = [step.stream for step in call.raw if step.stream is not None]
    bound: Fire = core.Bound(
        len(names),  # number of addresses, in the order of the names
        tuple(slots),  # for each slot: the address's place, and a cell, or a descriptor's bytes and their encoder
        tuple(near),  # the pairs that may overlap, and at which distances
        apart.look,  # checks addresses within that distance
        tuple(steps),
        tuple(streams),  # cells for the stream's handle
        lambda place, code: call.check(call.raw[place].fails, code),  # raises
        None if steps else call.run,
        None if steps else call.on,
        call,  # keeps alive all memory that is used here
    )
    return bound


def _where(slot: Any) -> tuple[int, Any]:
    """The cell of a plain address, or a descriptor's bytes with the function that encodes them."""
    plain = isinstance(slot, (ctypes.c_void_p, ctypes.c_uint64))
    return (ctypes.addressof(slot), None) if plain else (ctypes.addressof(slot.storage), slot.encoded)


def _two_to_one(call: BoundCall, apart: Apart, a: Any, b: Any, c: Any) -> Fire:
    """Two tensors and the one that is written. Written without loops, as it is called most: a loop would take longer
    than everything else before a launch.
    """
    on, run = 0, call.run
    (before_a, after_a), (before_b, after_b) = apart.within.values()

    def fire(addresses: Sequence[int], stream: int) -> None:
        nonlocal on
        at_a, at_b, at_c = addresses
        if before_a < at_c - at_a < after_a or before_b < at_c - at_b < after_b:
            apart.look(addresses)
        a.value, b.value, c.value = addresses
        if stream != on:
            call.on(stream)
            on = stream
        run()

    return fire


def _three_to_one(call: BoundCall, apart: Apart, a: Any, b: Any, c: Any, d: Any) -> Fire:
    """Three tensors, one of them a bias or a scale, and the written one."""
    on, run = 0, call.run
    (before_a, after_a), (before_b, after_b), (before_c, after_c) = apart.within.values()

    def fire(addresses: Sequence[int], stream: int) -> None:
        nonlocal on
        at_a, at_b, at_c, at_d = addresses
        near = before_a < at_d - at_a < after_a or before_b < at_d - at_b < after_b
        if near or before_c < at_d - at_c < after_c:
            apart.look(addresses)
        a.value, b.value, c.value, d.value = addresses
        if stream != on:
            call.on(stream)
            on = stream
        run()

    return fire


_SHORT: Mapping[int, Callable[..., Fire]] = {2: _two_to_one, 3: _three_to_one}  # by the number of tensors that are read


# Steps in which numpy may search for a common byte of arrays with interleaved rows; after these it assumes that there
# may be one. Real arrays need only a few. (Untyped, as numpy's annotations know only its two named values.)
_STEPS: Any = 10_000


class Apart:
    """Decides, for arrays of these shapes at any addresses, whether a written one overlaps another.

    It is used in every call, so everything that depends only on shapes is precomputed: how far one may begin before and
    after the other (`within`). Only arrays within that distance, such as slices of one buffer, are checked further.
    """

    def __init__(self, views: Mapping[str, View], signature: Signature) -> None:
        self._views, self._signature = dict(views), signature
        self._places = {name: place for place, name in enumerate(views)}
        written = [p.name for p in signature.outputs if p.name in views]
        self._only = len(written) == 1
        extents = {name: _extent(seen) for name, seen in views.items()}
        # (written, other) -> the least and the greatest difference of their addresses at which they may overlap
        self.within: dict[tuple[str, str], tuple[int, int]] = {}
        for name in written:
            low, high = extents[name]
            for other, (first, last) in extents.items():
                if other != name and (other, name) not in self.within:
                    self.within[name, other] = first - high, last - low
        self._last_apart: Sequence[int] = ()

    def check(self, addresses: Sequence[int]) -> None:
        """Raises if a written array overlaps another. `addresses` are in the order of the views."""
        places = self._places
        for (name, other), (before, after) in self.within.items():
            if before < addresses[places[name]] - addresses[places[other]] < after:
                self.look(addresses)
                return

    def look(self, addresses: Sequence[int]) -> None:
        """The same check byte by byte; the last addresses without overlap are cached."""
        if addresses == self._last_apart:
            return
        at = {
            name: replace(seen, address=address)
            for (name, seen), address in zip(self._views.items(), addresses, strict=True)
        }
        for name, other in self.within:
            if self._in_place(at[name], name, at[other], other):
                continue
            if np.may_share_memory(as_bytes(at[name]), as_bytes(at[other]), max_work=_STEPS):
                raise self._refusal(name, other)
        self._last_apart = addresses

    def _in_place(self, seen: View, name: str, other: View, of: str) -> bool:
        """Whether each element is written exactly where the element with the same index is read, if declared."""
        declared = of in self._signature[name].aliases or name in self._signature[of].aliases
        return declared and replace(seen, writeable=True) == replace(other, writeable=True)

    def _refusal(self, name: str, other: str) -> BadInput:
        does = "written too" if self._signature[other].written else "read while being written"
        return BadInput(
            f"{'out' if self._only else name} overlaps {other}, which is {does}", allowed="pass a separate array"
        )


def _extent(seen: View) -> tuple[int, int]:
    """The offsets of the first byte and past the last one from the array's address: strides may be negative."""
    if 0 in seen.shape:
        return 0, 0
    spans = [(size - 1) * stride for size, stride in zip(seen.shape, seen.strides, strict=True)]
    width = DTYPES[seen.dtype].bytes
    return sum(s for s in spans if s < 0) * width, (sum(s for s in spans if s > 0) + 1) * width
