"""One call of a bound kernel: addresses are set where they stand, and all its steps are carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from deepgen.run.call.overlap import Apart

# Sets the tensors' addresses and runs on a stream.
Fire: TypeAlias = "Callable[[Sequence[int], int], None]"


@dataclass(frozen=True)
class Call:
    """A kernel bound to sizes, strides and a thread: one may set addresses while another runs."""

    slots: Mapping[str, Sequence[Any]]  # where each tensor's addresses stand: objects whose `value` they are
    on: Callable[[int], None]  # another stream from here on
    run: Callable[[], None]
    workspaces: object = None  # memory that the arguments point to: it must live as long as the call


def firing(call: Call, names: Sequence[str], apart: Apart) -> Fire:
    """The call for addresses in the order of these names."""
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


def _two_to_one(call: Call, apart: Apart, a: Any, b: Any, c: Any) -> Fire:
    """Two tensors and the one that is written. Without loops, as these are called most: a loop takes longer than all
    the rest that is done before a launch.
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


def _three_to_one(call: Call, apart: Apart, a: Any, b: Any, c: Any, d: Any) -> Fire:
    """Three tensors, one of them a bias or a scale, and the one that is written."""
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


_SHORT: Mapping[int, Callable[..., Fire]] = {2: _two_to_one, 3: _three_to_one}  # by how many tensors are read
