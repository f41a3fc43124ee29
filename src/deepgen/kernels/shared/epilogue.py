"""An epilogue's text in kernels: one header a kernel, with its operands and the text as C.

Sources have `#if EPILOGUE` where a kernel with a text differs. `sources` leaves these parts out of all other kernels,
which are what they were before there were texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from deepgen.kernels.shared import sources
from deepgen.operators import Gemm
from deepgen.operators.epilogue import (
    FORMATS,
    Apply,
    EpilogueOperand,
    Number,
    SecondSum,
    Sum,
    Tree,
    parse,
    text_of_words,
    walk,
)
from deepgen.vocabulary import Arg, ScalarArg, Source, TensorArg

HEADER, FUNCTIONS = "epilogue_text.h", "epilogue_functions.h"
REFUSED = "it has no epilogues as formulas"
# Issue slots of a warp, for one element; an exponential and a quotient occupy their unit for eight each.
_SLOTS = {"gelu": 22.0, "gelu_tanh": 16.0, "silu": 16.0, "sigmoid": 16.0, "tanh": 16.0, "exp": 8.0, "/": 8.0}
_SHORTER = {("gelu", "bf16"): "gelu_bf16", ("gelu", "f16"): "gelu_f16"}  # where results are rounded to so few bits
_SLOTS |= {"gelu_bf16": 11.0, "gelu_f16": 13.0}
_KEEP_SHARES = ("*", "/", "neg", "relu", "abs")  # a relative error of an operand is one of the result
_SLOTS_OF_OPERANDS = {"n": 1.0, "mn": 3.0, "m": 0.2, "0": 0.0}
_C_TYPES = {"f32": "float", "bf16": "uint16_t", "f16": "uint16_t"}


def refused(gemm: Gemm, results: tuple[str, ...] = ("f32", "bf16", "f16"), *, pairs: bool = False) -> str | None:
    """The reason why a family with texts cannot compute this one."""
    if gemm.pair != "none" and not pairs:
        return "it has no pairs of products"
    if gemm.epilogue and gemm.c not in results:
        return f"its epilogues as formulas produce {', '.join(results)}"
    return None


def c_text(tree: Tree, leaf: Callable[[EpilogueOperand], str], rounded: str = "") -> str:
    """The text as an expression in C, of x. Where a value's relative error is that of a result that is `rounded` to so
    few bits, shorter functions suffice."""
    if isinstance(tree, Number):
        text = repr(float(np.float32(tree.value)))
        return f"{text}f" if tree.value >= 0.0 else f"({text}f)"
    if isinstance(tree, (Sum, SecondSum)):
        return "x" if isinstance(tree, Sum) else "y"
    if isinstance(tree, EpilogueOperand):
        return leaf(tree)
    assert isinstance(tree, Apply)
    parts = [c_text(part, leaf, rounded if tree.name in _KEEP_SHARES else "") for part in tree.parts]
    if tree.name == "neg":
        return f"(-{parts[0]})"
    if tree.name in ("+", "-", "*", "/"):
        return f"({parts[0]} {tree.name} {parts[1]})"
    return f"epi_{_SHORTER.get((tree.name, rounded), tree.name)}({', '.join(parts)})"


def arguments(gemm: Gemm, size: str) -> tuple[Arg, ...]:
    """Those of the operands, in the order in which headers declare them; `size`: the type of a row's length."""
    out: list[Arg] = []
    for one in gemm.operands:
        out.append(TensorArg(one.name))
        if one.kind == "mn":
            out += [ScalarArg(size, f"ld_{one.name}"), ScalarArg("i64", f"stride_{one.name}")]
    return tuple(out)


def as_text(gemm: Gemm) -> Gemm:
    """The same product with bias, activation and scales as a text; unchanged if C is read or holds integers."""
    if gemm.beta != 0.0 or gemm.c not in FORMATS or gemm.blocks:
        return gemm
    text = text_of_words(gemm.bias, gemm.activation, gemm.scales)
    if text == "x":
        return gemm
    return replace(gemm, bias=False, activation="none", scales="none", epilogue=text)


def aligned_rows(gemm: Gemm, store: int) -> list[tuple[str, str]]:
    """Conditions on operands with a number for each element, of which `store` neighbours are read at once."""
    out = []
    for one in gemm.operands if store > 1 else ():
        if one.kind == "mn":
            words = f"rows of {one.name} that are multiples of {store} elements"
            out.append((f"ld_{one.name} % {store} == 0", words))
            if gemm.batch > 1:
                out.append((f"stride_{one.name} % {store} == 0", f"matrices of {one.name} that are such multiples"))
    return out


def macros(gemm: Gemm, early: int = 0) -> dict[str, int]:
    """`early`: pieces of a tile whose operands are loaded while the tile's products run."""
    return {"EPILOGUE": 1, **({"EARLY_PIECES": early} if early else {})} if gemm.epilogue else {}


def registers(gemm: Gemm) -> int:
    """What a thread holds beside its sums for some eight chunks of them: the operands, and values on the way."""
    return operand_registers(gemm, 8) + 8 if gemm.epilogue else 0


def operand_registers(gemm: Gemm, chunks: int) -> int:
    """What a thread has of the operands, for so many chunks of its sums."""
    each = {"n": chunks, "mn": 2 * chunks, "m": 2, "0": 1}
    wide = {one: 2 if gemm.format_of(one) == "f32" and "n" in one.kind else 1 for one in gemm.operands}
    return sum(each[one.kind] * wide[one] for one in gemm.operands)


def issue_slots(gemm: Gemm) -> float:
    """Of an element, on GPUs."""
    if not gemm.epilogue:
        return 0.0
    names = [node.name for node in walk(parse(gemm.epilogue)) if isinstance(node, Apply)]
    return sum(_SLOTS.get(_SHORTER.get((name, gemm.c), name), 1.0) for name in names) + sum(
        _SLOTS_OF_OPERANDS[one.kind] for one in gemm.operands
    )


def _declared(gemm: Gemm, types: Callable[[str], str], size: str, wide: str) -> tuple[str, str, str]:
    """Parameters, their names, and the members of a struct with them."""
    parameters, names, members = [], [], []
    for one in gemm.operands:
        of = types(gemm.format_of(one))
        parameters.append(f"const {of}* e_{one.name}")
        names.append(f"e_{one.name}")
        members.append(f"    const {of}* e_{one.name};")
        if one.kind == "mn":
            parameters += [f"{size} e_ld_{one.name}", f"{wide} e_stride_{one.name}"]
            names += [f"e_ld_{one.name}", f"e_stride_{one.name}"]
            members += [f"    {size} e_ld_{one.name};", f"    {wide} e_stride_{one.name};"]
    return "".join(f", {p}" for p in parameters), ", ".join(names), "\n".join(members)


def run_sources(gemm: Gemm, package: str) -> tuple[Source, ...]:
    """For kernels in the dialect of GPUs: `apply_epilogue` for some neighbours of a row."""
    return (*sources(package, (FUNCTIONS,)), Source(HEADER, _run_header(gemm))) if gemm.epilogue else ()


def _run_header(gemm: Gemm) -> str:
    parameters, names, members = _declared(gemm, str, "int", "i64")
    lines = []
    for one in gemm.operands:
        of = gemm.format_of(one)
        if one.kind in ("n", "mn"):
            row = f" + batch * o.e_stride_{one.name} + row * (i64)o.e_ld_{one.name}" if one.kind == "mn" else ""
            lines += [
                f"    f32 e_{one.name}[COUNT];",
                f"    load_operand<COUNT>(o.e_{one.name}{row} + column, e_{one.name});",
            ]
        else:
            place = "row" if one.kind == "m" else "0"
            lines += [
                f"    f32 e_{one.name};",
                f"    widen(load_global<{of}>(o.e_{one.name} + {place}), e_{one.name});",
            ]
    text = text_of(gemm, lambda one: f"e_{one.name}" + ("[e]" if "n" in one.kind else ""), gemm.c)
    body = "\n".join([*lines, "    DG_UNROLL for (int e = 0; e < COUNT; ++e) {", "        f32 x = sums[e];"])
    return f"""// The epilogue {gemm.epilogue}
#pragma once
#include "{FUNCTIONS}"

#define EPILOGUE_PARAMETERS {parameters}
#define EPILOGUE_GIVEN {{{names}}}

struct Operands {{
{members}
}};

// COUNT neighbours, at most 16 bytes at once.
template <int COUNT, typename T>
DG_DEVICE void load_operand(const T* from, f32 (&to)[COUNT]) {{
    constexpr int MOST = 16 / sizeof(T), EACH = COUNT < MOST ? COUNT : MOST;
    DG_UNROLL for (int i = 0; i < COUNT; i += EACH) {{
        Vec<T, EACH> some = load_global<Vec<T, EACH>>(from + i);
        DG_UNROLL for (int e = 0; e < EACH; ++e) widen(some.v[e], to[i + e]);
    }}
}}

// Of COUNT neighbours of a row of C, all of which exist.
template <int COUNT>
DG_DEVICE void apply_epilogue(const Operands& o, int batch, int row, int column, f32 (&sums)[COUNT]) {{
{body}
        sums[e] = {text};
    }}
}}
"""


def row_sources(gemm: Gemm, package: str) -> tuple[Source, ...]:
    """For kernels in C: `apply_epilogue` for a part of a row, in place."""
    return (*sources(package, (FUNCTIONS,)), Source(HEADER, _row_header(gemm))) if gemm.epilogue else ()


def _row_header(gemm: Gemm) -> str:
    parameters, names, members = _declared(gemm, _C_TYPES.__getitem__, "long", "long")
    lines = []
    for one in gemm.operands:
        of = gemm.format_of(one)
        row = {"mn": f" + matrix * o->e_stride_{one.name} + row * o->e_ld_{one.name} + column", "n": " + column"}
        if one.kind in row:
            lines.append(f"    const {_C_TYPES[of]} *restrict e_{one.name} = o->e_{one.name}{row[one.kind]};")
        else:
            lines.append(
                f"    const float e_{one.name} = epi_{of}(o->e_{one.name}[{'row' if one.kind == 'm' else '0'}]);"
            )

    def leaf(one: EpilogueOperand) -> str:
        return f"epi_{gemm.format_of(one)}(e_{one.name}[j])" if "n" in one.kind else f"e_{one.name}"

    body = "\n".join([*lines, "    for (long j = 0; j < count; j++) {", "        const float x = sums[j];"])
    return f"""// The epilogue {gemm.epilogue}
#pragma once
#include "{FUNCTIONS}"

#define EPILOGUE_PARAMETERS {parameters.replace("long ", "int64_t ")}
#define EPILOGUE_GIVEN {{{names}}}

typedef struct {{
{members or "    char none;"}
}} operands;

EPI float epi_f32(float x) {{ return x; }}
EPI float epi_bf16(uint16_t x) {{
    union {{ uint32_t bits; float value; }} to = {{(uint32_t)x << 16}};
    return to.value;
}}
EPI float epi_f16(uint16_t x) {{
    const uint32_t size = x & 0x7fff;
    union {{ uint32_t bits; float value; }} to = {{size << 13}}, odd = {{0x7f800000 | (size & 0x3ff) << 13}};
    const float wide = size < 0x7c00 ? to.value * 0x1p112f : odd.value;
    return x & 0x8000 ? -wide : wide;
}}

// Of `count` neighbours of a row of C, whose sums become results.
static inline void apply_epilogue(const operands *o, long matrix, long row, long column, long count,
                                  float *restrict sums) {{
{body}
        sums[j] = {text_of(gemm, leaf)};
    }}
}}
"""


def text_of(gemm: Gemm, leaf: Callable[[EpilogueOperand], str], rounded: str = "") -> str:
    return c_text(parse(gemm.epilogue), leaf, rounded)


def chunk_sources(gemm: Gemm, package: str) -> tuple[Source, ...]:
    """For warpgroup products, whose threads have two neighbours in each of two rows of every chunk."""
    if not gemm.epilogue:
        return ()
    return (*sources(package, (FUNCTIONS, "epilogue_chunks.h")), Source(HEADER, _chunk_header(gemm)))


_CHUNKS = {"n": "ByColumn", "m": "ByRow", "mn": "ByElement", "0": "One"}


def _chunk_header(gemm: Gemm) -> str:
    parameters, names, members = _declared(gemm, str, "int", "i64")
    held, asked = [], []
    for one in gemm.operands:
        of = gemm.format_of(one)
        held.append(f"    {_CHUNKS[one.kind]}<{of}, COUNT> e_{one.name};")
        row = f", o.e_ld_{one.name}, batch * o.e_stride_{one.name}" if one.kind == "mn" else ""
        asked.append(f"        e_{one.name}.ask(o.e_{one.name}{row}, m, n, row, column);")
    text = text_of(gemm, lambda one: f"e_{one.name}.at(i)", gemm.c)
    second = ", float y" if gemm.pair != "none" else ""
    return f"""// The epilogue {gemm.epilogue}
#pragma once
#include "{FUNCTIONS}"

#define EPILOGUE_PARAMETERS {parameters}
#define EPILOGUE_GIVEN {{{names}}}

struct Operands {{
{members}
}};

#include "epilogue_chunks.h"

// What the operands have for COUNT chunks of sums. All of it is asked for first, so that one wait serves it.
template <int COUNT>
struct Operated {{
{chr(10).join(held)}

    // `row` and `column`: of the first sum.
    DG_DEVICE void ask(const Operands& o, int batch, int m, int n, int row, int column) {{
{chr(10).join(asked)}
    }}
    DG_DEVICE float operator()(int i, float x{second}) const {{ return {text}; }}
}};
"""
