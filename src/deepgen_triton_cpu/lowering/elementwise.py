"""Operations on single elements as C expressions: arith, math, and those of Triton's dialect that are like them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from deepgen.extend import BadInput
from deepgen_triton_cpu.lowering.c_types import NARROW, computed, rounded, unsigned
from deepgen_triton_cpu.lowering.ir import Op, Type

# From an operation and its operands in C to the result in C.
WriteOp: TypeAlias = Callable[[Op, Sequence[str]], str]
_CMPI = ("==", "!=", "<", "<=", ">", ">=", "<", "<=", ">", ">=")
_SIGNED_BELOW = 6  # predicates from here on compare as unsigned
_CMPF = {
    0: "0", 1: "{0} == {1}", 2: "{0} > {1}", 3: "{0} >= {1}", 4: "{0} < {1}", 5: "{0} <= {1}",
    6: "({0} < {1}) | ({0} > {1})", 7: "({0} == {0}) & ({1} == {1})", 8: "!(({0} < {1}) | ({0} > {1}))",
    9: "!({0} <= {1})", 10: "!({0} < {1})", 11: "!({0} >= {1})", 12: "!({0} > {1})", 13: "{0} != {1}",
    14: "({0} != {0}) | ({1} != {1})", 15: "1",
}  # fmt: skip
_MATH = (
    "exp", "exp2", "log", "log2", "sin", "cos", "tan", "tanh", "erf", "sqrt", "rsqrt", "floor", "ceil", "trunc",
    "round", "roundeven", "log1p", "expm1", "log10", "atan", "asin", "acos", "sinh", "cosh", "asinh", "acosh", "atanh",
    "cbrt",
)  # fmt: skip
_NEAREST = 1  # rounding of tt.fp_to_fp


def _infix(sign: str) -> WriteOp:
    return lambda op, args: rounded(op.result.type.element, f"{args[0]} {sign} {args[1]}")


def _wrapping(sign: str) -> WriteOp:
    def write(op: Op, args: Sequence[str]) -> str:
        of = op.result.type.element
        if of == "i1":  # addition and subtraction of one bit are xor, multiplication is and
            return f"{args[0]} {'&' if sign == '*' else '^'} {args[1]}"
        wide = "uint64_t" if Type(of).bits == 64 else "uint32_t"
        return f"({computed(of)})(({wide}){args[0]} {sign} ({wide}){args[1]})"

    return write


def _call(name: str, *, as_unsigned: bool = False) -> WriteOp:
    def write(op: Op, args: Sequence[str]) -> str:
        of = op.result.type.element
        suffix = "f32" if of in NARROW else of if not as_unsigned else f"u{of[1:]}"
        if of == "index":
            suffix = "i64" if not as_unsigned else "u64"
        called = f"{name}_{suffix}({', '.join(args)})"
        return f"({computed(of)}){called}" if as_unsigned else rounded(of, called)

    return write


def _shift(sign: str, *, signed: bool = False) -> WriteOp:
    def write(op: Op, args: Sequence[str]) -> str:
        of = op.result.type.element
        if of == "i1":
            return f"{args[0]} & !{args[1]}"
        kind = computed(of) if signed else unsigned(of)
        return f"({computed(of)})(({kind}){args[0]} {sign} ({args[1]} & {Type(of).bits - 1}))"

    return write


def _compare_integers(op: Op, args: Sequence[str]) -> str:
    predicate, of = op.integer("predicate"), op.operands[0].type
    left, right = args
    if of.pointer:
        left, right = f"(intptr_t){left}", f"(intptr_t){right}"
    elif predicate >= _SIGNED_BELOW:
        kind = unsigned(of.element)
        left, right = f"({kind}){left}", f"({kind}){right}"
    elif of.element == "i1" and predicate > 1:  # one bit is 0 or -1
        left, right = right, left
    return f"{left} {_CMPI[predicate]} {right}"


def _compare_floats(op: Op, args: Sequence[str]) -> str:
    return _CMPF[op.integer("predicate")].format(*args)


def _extended(op: Op, args: Sequence[str]) -> str:
    of = computed(op.result.type.element)
    return f"-({of}){args[0]}" if op.operands[0].type.element == "i1" else f"({of}){args[0]}"


def _zero_extended(op: Op, args: Sequence[str]) -> str:
    return f"({computed(op.result.type.element)})({unsigned(op.operands[0].type.element)}){args[0]}"


def _truncated(op: Op, args: Sequence[str]) -> str:
    of = op.result.type.element
    return f"{args[0]} & 1" if of == "i1" else f"({computed(of)}){args[0]}"


def _float_of(op: Op, args: Sequence[str], kind: str) -> str:
    of = op.result.type.element
    return rounded(of, f"({computed(of)})({kind}){args[0]}")


def _converted(op: Op, args: Sequence[str]) -> str:
    of = op.result.type.element
    if op.name == "tt.fp_to_fp" and of in NARROW and op.integer("rounding", 1) != _NEAREST:
        return f"toward_zero_{NARROW[of]}({args[0]})"
    source = f"({computed(of)}){args[0]}"
    return rounded(of, f"saturated_e5m2({source})" if of == "f8E5M2" else source)


def _bits(op: Op, args: Sequence[str]) -> str:
    source, of = op.operands[0].type.element, op.result.type.element
    if source == of:
        return args[0]
    if of.startswith("*"):
        return f"({computed(of)}){args[0]}"
    return f"bits_{_name(source)}_{_name(of)}({args[0]})"


def _name(element: str) -> str:
    return NARROW.get(element, element)


def _moved(op: Op, args: Sequence[str]) -> str:
    return f"{args[0]} + {args[1]}"


def _fused(op: Op, args: Sequence[str]) -> str:
    of = op.result.type.element
    return rounded(of, f"{'fma' if of == 'f64' else 'fmaf'}({', '.join(args)})")


def _clamped(op: Op, args: Sequence[str]) -> str:
    of = "f64" if op.result.type.element == "f64" else "f32"
    wide = "maximum" if op.integer("propagateNan", 0) else "maxnum"
    small = "minimum" if op.integer("propagateNan", 0) else "minnum"
    return f"{small}_{of}({wide}_{of}({args[0]}, {args[1]}), {args[2]})"


def _external(op: Op, args: Sequence[str]) -> str:
    """A function of NVIDIA's library of device functions."""
    symbol = op.attributes.get("symbol", "").strip('"')
    text = FUNCTIONS.get(symbol.removeprefix("__nv_")) if symbol.startswith("__nv_") else None
    if text is None:
        allowed = "libdevice functions that the C library has and that round to nearest"
        raise BadInput(f"tt.extern_elementwise of {symbol or 'no symbol'}", where=op.location, allowed=allowed)
    return f"({computed(op.result.type.element)})({text.format(*args, args=', '.join(args))})"


TABLE: dict[str, WriteOp] = {
    **{f"arith.{name}": _infix(sign) for name, sign in (("addf", "+"), ("subf", "-"), ("mulf", "*"), ("divf", "/"))},
    "tt.precise_divf": _infix("/"),
    **{f"arith.{name}": _wrapping(sign) for name, sign in (("addi", "+"), ("subi", "-"), ("muli", "*"))},
    **{f"arith.{name}": _infix(sign) for name, sign in (("andi", "&"), ("ori", "|"), ("xori", "^"))},
    "arith.shli": _shift("<<"),
    "arith.shrui": _shift(">>"),
    "arith.shrsi": _shift(">>", signed=True),
    "arith.negf": lambda op, args: f"-{args[0]}",
    "arith.remf": lambda op, args: rounded(
        op.result.type.element, f"{'fmod' if op.result.type.element == 'f64' else 'fmodf'}({args[0]}, {args[1]})"
    ),
    **{f"arith.{name}f": _call(name) for name in ("maximum", "minimum", "maxnum", "minnum")},
    **{f"arith.{name}si": _call(name) for name in ("max", "min", "div", "rem", "ceildiv", "floordiv")},
    **{f"arith.{name}ui": _call(name, as_unsigned=True) for name in ("max", "min", "div", "rem", "ceildiv")},
    "arith.cmpi": _compare_integers,
    "arith.cmpf": _compare_floats,
    "arith.select": lambda op, args: f"{args[0]} ? {args[1]} : {args[2]}",
    "arith.extsi": _extended,
    "arith.extui": _zero_extended,
    "arith.index_cast": _extended,
    "arith.index_castui": _zero_extended,
    "arith.trunci": _truncated,
    "arith.extf": _converted,
    "arith.truncf": _converted,
    "tt.fp_to_fp": _converted,
    "arith.sitofp": lambda op, args: _float_of(op, args, computed(op.operands[0].type.element)),
    "arith.uitofp": lambda op, args: _float_of(op, args, unsigned(op.operands[0].type.element)),
    "arith.fptosi": lambda op, args: f"({computed(op.result.type.element)}){args[0]}",
    "arith.fptoui": lambda op, args: (
        f"({computed(op.result.type.element)})({unsigned(op.result.type.element)}){args[0]}"
    ),
    "arith.bitcast": _bits,
    "tt.bitcast": _bits,
    "tt.addptr": _moved,
    "tt.int_to_ptr": lambda op, args: f"({computed(op.result.type.element)})(intptr_t){args[0]}",
    "tt.ptr_to_int": lambda op, args: f"({computed(op.result.type.element)})(intptr_t){args[0]}",
    "tt.mulhiui": _call("mulhi", as_unsigned=True),
    "tt.precise_sqrt": _call("sqrt"),
    "tt.clampf": _clamped,
    "tt.extern_elementwise": _external,
    **{f"math.{name}": _call(name) for name in _MATH},
    "math.absf": _call("abs"),
    "math.absi": _call("abs"),
    "math.fma": _fused,
    "math.powf": _call("pow"),
    "math.atan2": _call("atan2"),
    "math.copysign": _call("copysign"),
    "math.ctpop": _call("ctpop"),
    "math.ctlz": _call("ctlz"),
}
# What an operation costs beside an addition, where it matters whether it is done twice.
_HEAVY = 20
COSTS = {
    name: _HEAVY
    for name in TABLE
    if name.startswith("math.") or "div" in name or "rem" in name or name in ("tt.extern_elementwise", "tt.mulhiui")
} | {"math.absf": 1, "math.absi": 1, "math.floor": 1, "math.ceil": 1, "math.fma": 1, "tt.mulhiui": 3}


def expression(op: Op, args: Sequence[str]) -> str:
    """The operation's result in C."""
    return TABLE[op.name](op, args)


_OWN = ("exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf", "rsqrt")
_LIBRARY = (  # how many numbers each takes does not matter: all are passed on
    "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "log10", "log1p", "expm1", "cbrt",
    "floor", "ceil", "trunc", "round", "rint", "nearbyint", "erfc", "tgamma", "lgamma", "atan2", "pow", "fmod", "hypot",
    "fmin", "fmax", "fma", "copysign", "fdim", "remainder", "exp10", "ldexp", "sqrt", "fabs", "nextafter", "logb",
    "ilogb", "scalbn", "llrint", "llround", "j0", "j1", "jn", "y0", "y1", "yn",
)  # fmt: skip
_EITHER: Mapping[str, str] = {  # F is f for single precision, and nothing for double; 0, 1, ... are what is passed
    "powi": "powF({0}, {1})",
    "rcbrt": "1 / cbrtF({0})",
    "rhypot": "1 / hypotF({0}, {1})",
    "norm3d": "hypotF(hypotF({0}, {1}), {2})",
    "norm4d": "hypotF(hypotF({0}, {1}), hypotF({2}, {3}))",
    "rnorm3d": "1 / hypotF(hypotF({0}, {1}), {2})",
    "rnorm4d": "1 / hypotF(hypotF({0}, {1}), hypotF({2}, {3}))",
    "normcdf": "erfcF({0} * -0x1.6a09e667f3bcdp-1F) / 2",
    "sinpi": "sinF(remainderF({0}, 2) * 0x1.921fb54442d18p1F)",
    "cospi": "cosF(remainderF({0}, 2) * 0x1.921fb54442d18p1F)",
}
_ARITHMETIC = {"add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "rcp": "1 / {0}"}
_DIRECTIONS = {"rn": "rint", "rz": "trunc", "rd": "floor", "ru": "ceil"}
_WHOLE = {"int": "int32_t", "uint": "uint32_t", "ll": "int64_t", "ull": "uint64_t"}
_OTHERS: Mapping[str, str] = {
    "abs": "abs_i32({0})",
    "llabs": "abs_i64({0})",
    "isnanf": "{0} != {0}",
    "isnand": "{0} != {0}",
    "isinff": "fabsf({0}) == INFINITY",
    "isinfd": "fabs({0}) == INFINITY",
    "finitef": "fabsf({0}) < INFINITY",
    "isfinited": "fabs({0}) < INFINITY",
    "signbitf": "signbit({0}) != 0",
    "signbitd": "signbit({0}) != 0",
    "saturatef": "minnum_f32(maxnum_f32({0}, 0), 1)",
    "fast_expf": "exp_f32({0})",
    "fast_exp10f": "exp10f({0})",
    "fast_logf": "log_f32({0})",
    "fast_log2f": "log2_f32({0})",
    "fast_log10f": "log10f({0})",
    "fast_sinf": "sin_f32({0})",
    "fast_cosf": "cos_f32({0})",
    "fast_tanf": "tanf({0})",
    "fast_tanhf": "tanh_f32({0})",
    "fast_powf": "powf({0}, {1})",
    "fast_fdividef": "{0} / {1}",
    "fsqrt_rn": "sqrtf({0})",
    "dsqrt_rn": "sqrt({0})",
    "frsqrt_rn": "1 / sqrtf({0})",
    "fmaf_rn": "fmaf({0}, {1}, {2})",
    "fma_rn": "fma({0}, {1}, {2})",
    "double2float_rn": "{0}",
    "float_as_int": "bits_f32_i32({0})",
    "float_as_uint": "bits_f32_i32({0})",
    "int_as_float": "bits_i32_f32({0})",
    "uint_as_float": "bits_i32_f32({0})",
    "double_as_longlong": "bits_f64_i64({0})",
    "longlong_as_double": "bits_i64_f64({0})",
    "double2hiint": "bits_f64_i64({0}) >> 32",
    "double2loint": "bits_f64_i64({0})",
    "hiloint2double": "bits_i64_f64((int64_t)((uint64_t){0} << 32 | (uint32_t){1}))",
    "popc": "ctpop_i32({0})",
    "popcll": "ctpop_i64({0})",
    "clz": "ctlz_i32({0})",
    "clzll": "ctlz_i64({0})",
    "ffs": "__builtin_ffs({0})",
    "ffsll": "__builtin_ffsll({0})",
    "mulhi": "(int64_t){0} * {1} >> 32",
    "umulhi": "mulhi_u32({0}, {1})",
    "mul64hi": "(__int128){0} * {1} >> 64",
    "umul64hi": "mulhi_u64({0}, {1})",
    "mul24": "(int32_t)((uint32_t){0} << 8) / 256 * ((int32_t)((uint32_t){1} << 8) / 256)",
    "umul24": "((uint32_t){0} & 0xffffff) * ((uint32_t){1} & 0xffffff)",
    "hadd": "((int64_t){0} + {1}) >> 1",
    "rhadd": "((int64_t){0} + {1} + 1) >> 1",
    "uhadd": "((uint64_t)(uint32_t){0} + (uint32_t){1}) >> 1",
    "urhadd": "((uint64_t)(uint32_t){0} + (uint32_t){1} + 1) >> 1",
}


def _functions() -> dict[str, str]:
    functions = {f"{n}f": f"{n}_f32({{args}})" for n in _OWN} | {n: f"{n}_f64({{args}})" for n in _OWN}
    functions |= {f"{n}f": f"{n}f({{args}})" for n in _LIBRARY} | {n: f"{n}({{args}})" for n in _LIBRARY}
    functions |= {f"{n}f": text.replace("F", "f") for n, text in _EITHER.items()}
    functions |= {n: text.replace("F", "") for n, text in _EITHER.items()}
    functions |= {f"{kind}{n}_rn": text for n, text in _ARITHMETIC.items() for kind in "fd"}
    for word, of in _WHOLE.items():
        for way, function in _DIRECTIONS.items():
            functions[f"float2{word}_{way}"] = f"({of}){function}f({{0}})"
            functions[f"double2{word}_{way}"] = f"({of}){function}({{0}})"
        functions[f"{word}2float_rn"] = f"(float)({of}){{0}}"
        functions[f"{word}2double_rn"] = f"(double)({of}){{0}}"
    return functions | dict(_OTHERS)


FUNCTIONS: Mapping[str, str] = _functions()
