"""Functions of NVIDIA's library of device functions, which Triton's `libdevice` calls by name, in C.

Those of single precision end in f. exp, log and the like are our own; the C library has most others. What rounds in
another direction than to the nearest number is not served, nor what only approximates by a table.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    found = {f"{n}f": f"{n}_f32({{args}})" for n in _OWN} | {n: f"{n}_f64({{args}})" for n in _OWN}
    found |= {f"{n}f": f"{n}f({{args}})" for n in _LIBRARY} | {n: f"{n}({{args}})" for n in _LIBRARY}
    found |= {f"{n}f": text.replace("F", "f") for n, text in _EITHER.items()}
    found |= {n: text.replace("F", "") for n, text in _EITHER.items()}
    found |= {f"{kind}{n}_rn": text for n, text in _ARITHMETIC.items() for kind in "fd"}
    for word, of in _WHOLE.items():
        for way, function in _DIRECTIONS.items():
            found[f"float2{word}_{way}"] = f"({of}){function}f({{0}})"
            found[f"double2{word}_{way}"] = f"({of}){function}({{0}})"
        found[f"{word}2float_rn"] = f"(float)({of}){{0}}"
        found[f"{word}2double_rn"] = f"(double)({of}){{0}}"
    return found | dict(_OTHERS)


FUNCTIONS: Mapping[str, str] = _functions()
