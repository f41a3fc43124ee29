"""Numbers in C: how the elements of Triton's types are stored and computed with, and constants."""

from __future__ import annotations

import math
import re
import struct

from deepgen.extend import BadInput
from deepgen_triton_cpu.lowering.ir import Op, Type

# Computed with as, stored as. Narrow floats are computed with in f32 and rounded after each operation.
_COMPUTED = {
    "f64": "double", "f32": "float", "f16": "float", "bf16": "float", "f8E4M3FN": "float", "f8E5M2": "float",
    "i1": "_Bool", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t", "index": "int64_t",
}  # fmt: skip
_STORED = {"f16": "f16_t", "bf16": "bf16_t", "f8E4M3FN": "e4m3_t", "f8E5M2": "e5m2_t", "i1": "uint8_t"}
NARROW = {"f16": "f16", "bf16": "bf16", "f8E4M3FN": "e4m3", "f8E5M2": "e5m2"}
_BYTES = {"f16": 2, "bf16": 2, "f8E4M3FN": 1, "f8E5M2": 1, "i1": 1, "index": 8}
_PACKED = {"f64": ("<Q", "<d"), "f32": ("<I", "<f"), "f16": ("<H", "<e")}
_VALUE = re.compile(r"dense<(.*)> : tensor<.*>|(.*?)(?: : .*)?", re.S)


def computed(element: str) -> str:
    """The C type that a value has in an expression."""
    return f"{stored(element[1:])} *" if element.startswith("*") else _in_table(element, _COMPUTED)


def stored(element: str) -> str:
    """The C type of an element in memory."""
    return _STORED.get(element) or computed(element)


def stored_bytes(element: str) -> int:
    return 8 if element.startswith("*") else _BYTES.get(element) or Type(element).bits // 8


def constant_of(of: str) -> str:
    """A C type whose values are not assigned to."""
    return f"{of}const" if of.endswith("*") else f"const {of}"


def unsigned(element: str) -> str:
    return "_Bool" if element == "i1" else f"u{computed(element)}"


def widened(element: str, text: str) -> str:
    """An element that was read, as a value."""
    if element in NARROW:
        return f"widen_{NARROW[element]}({text})"
    return f"({text} != 0)" if element == "i1" else text


def narrowed(element: str, text: str) -> str:
    """A value as it is stored."""
    return f"narrow_{NARROW[element]}({text})" if element in NARROW else text


def rounded(element: str, text: str) -> str:
    """The result of an operation on narrow floats, which C computed in f32."""
    return f"round_{NARROW[element]}({text})" if element in NARROW else text


def literal(op: Op) -> str:
    """The value of an arith.constant, the same for all elements."""
    match = _VALUE.fullmatch(op.attributes["value"])
    assert match is not None
    text = (match[1] if match[1] is not None else match[2]).strip()
    element = op.result.type.element
    if "[" in text or '"' in text:
        raise BadInput("arith.constant with several values", where=op.location, allowed="tensors of one constant")
    return number(element, text)


def number(element: str, text: str) -> str:
    return _floating(element, text) if Type(element).floating else _whole(element, text)


def _whole(element: str, text: str) -> str:
    if text in ("true", "false"):
        return str(int(text == "true"))
    value = int(text)
    if value == -(1 << 63):
        return "INT64_MIN"
    if element == "i64":
        return f"INT64_C({value})"
    return f"({value})" if value < 0 else str(value)


def _floating(element: str, text: str) -> str:
    value = _decoded(element, int(text, 16)) if text.startswith("0x") else float(text)
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    suffix = "" if element == "f64" else "f"
    return f"({value.hex()}{suffix})" if value < 0 else f"{value.hex()}{suffix}"


def _decoded(element: str, bits: int) -> float:
    if element == "bf16":
        return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    if element not in _PACKED:
        raise BadInput(f"a constant of type {element} is {bits:#x}", allowed="finite constants of that type")
    of_bits, of_value = _PACKED[element]
    return float(struct.unpack(of_value, struct.pack(of_bits, bits))[0])


def _in_table(element: str, table: dict[str, str]) -> str:
    if element not in table:
        raise BadInput(f"a value of type {element}", allowed=", ".join(sorted(table)))
    return table[element]
