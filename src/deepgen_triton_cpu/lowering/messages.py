"""What a kernel says: tt.print, and assertions that do not hold."""

from __future__ import annotations

import json
from collections.abc import Callable

from deepgen_triton_cpu.lowering.ir import Op, Value
from deepgen_triton_cpu.lowering.nest import Nest
from deepgen_triton_cpu.lowering.writer import Writer


def say(writer: Writer, op: Op) -> None:
    """One line for each element, as on a GPU: the program, the place in the tensor, the value."""
    prefix = json.loads(op.attributes.get("prefix", '""'))
    for value in op.operands:
        nest = Nest(writer, value.type.shape)
        places = ", ".join("%d" for _ in value.type.shape)
        text = json.dumps(f"pid (%d, %d, %d) idx ({places}){prefix}{_form(value)}\n")
        indices = "".join(f", (int){index.text}" for index in nest.indices)
        found = _printed(value, nest.at(value).text)
        nest.put(nest.inmost, f"printf({text}, program[0], program[1], program[2]{indices}, {found});")
        nest.emit(simd=False)


def insist(writer: Writer, op: Op) -> None:
    """Ends the process where a condition does not hold, as a GPU ends the kernel."""
    message = json.loads(op.attributes.get("message", '""'))
    text = json.dumps(f"{op.location}: assertion failed: {message}\n")
    value = op.operands[0]
    nest = Nest(writer, value.type.shape)
    nest.put(nest.inmost, f"if (!{nest.at(value).text}) {{ fputs({text}, stderr); abort(); }}")
    nest.emit(simd=False)


def _form(value: Value) -> str:
    return "%p" if value.type.pointer else "%f" if value.type.floating else "%lld"


def _printed(value: Value, text: str) -> str:
    return f"({'void *' if value.type.pointer else 'double' if value.type.floating else 'long long'}){text}"


HANDLERS: dict[str, Callable[[Writer, Op], None]] = {"tt.print": say, "tt.assert": insist}
