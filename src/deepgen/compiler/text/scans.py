"""Scans of a vector in C: each lane with all lanes before it, in as many steps as its number of lanes has bits."""

from __future__ import annotations

from deepgen.compiler.schedule.stages import identity
from deepgen.compiler.text.c_values import Text, constant
from deepgen.operators.expr.nodes import Const
from deepgen.vocabulary.dtypes import dtype

_REDUCES = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
_INFIX = {"add": "+", "mul": "*"}


def nothing(op: str, kind: str) -> Const:
    """What an operation leaves any number as it is with."""
    return identity(_REDUCES[op], kind)


def joined(op: str, left: Text, right: Text) -> str:
    """Two numbers or vectors as one."""
    if op in _INFIX and not dtype(left.type).integer:
        return f"({left.text} {_INFIX[op]} {right.text})"
    return f"{op}_{left.name}({left.text}, {right.text})"


def function(op: str, kind: str, lanes: int) -> str:
    """The C function for vectors of so many numbers; gcc has shuffles of this form from 12 on."""
    name = f"{kind}x{lanes}"
    steps = []
    for bit in range(lanes.bit_length() - 1):
        moved = ", ".join(str(lanes - (1 << bit) + n) for n in range(lanes))
        before = Text(f"__builtin_shufflevector(none, x, {moved})", kind, lanes)
        steps.append(f"    x = {joined(op, before, Text('x', kind, lanes))};")
    one = joined(op, Text("x[n - 1]", kind), Text("x[n]", kind))
    return "\n".join(
        [
            f"static inline {name} scan_{op}_{name}({name} x) {{",
            "#if defined(__clang__) || __GNUC__ >= 12",
            f"    const {name} none = all_{name}({constant(nothing(op, kind))});",
            *steps,
            "#else",
            f"    for (int n = 1; n < {lanes}; n++) x[n] = {one};",
            "#endif",
            "    return x;",
            "}",
            "",
        ]
    )
