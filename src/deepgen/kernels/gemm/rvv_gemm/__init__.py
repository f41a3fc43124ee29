"""GEMM with the vector instructions of RISC-V, for registers of any length.

Tile functions are generated: one variable for each register group, with all loops over them unrolled. The loop over K
is in assembly. Compilers cannot keep 28 of 32 vector registers in place over an unrolled loop: they hoist loads and
spill accumulators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deepgen.kernels.shared import covering, defines, epilogue, nearest, served, sources
from deepgen.operators import Gemm, Operator
from deepgen.space import Space
from deepgen.targets import Riscv, Target
from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, WorkspaceArg, dtype

_FORMATS = {("f32", "f32", "f32"): 32, ("f16", "f16", "f32"): 16, ("i8", "i32", "i32"): 8}  # of A and B, C, sums
_ACTIVATION = ("none", "relu", "gelu", "silu")
_GROUPS = {1: ("m1", "mf2", "mf4"), 2: ("m2", "m1", "mf2"), 4: ("m4", "m2", "m1"), 8: ("m8", "m4", "m2")}
_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15)
_WIDE = (1, 2, 3, 4, 5, 6)
_DEPTHS = (64, 128, 256, 512, 1024, 2048)
_WIDTHS = (64, 128, 256, 512, 1024, 2048)
_LEAST_L2 = 256 << 10  # if a board's facts do not include it
_SIZES = ("M", "N", "K", "batch", "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c")


class RvvGemm:
    """Register tiles of whole vector register groups, for vectors of any length; packing, unrolling, prefetching."""

    name = "rvv_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Riscv):
            return "it supports riscv targets only"
        if not isinstance(operator, Gemm):
            return "it supports gemm only"
        if operator.a != operator.b or (operator.a, operator.c, operator.acc) not in _FORMATS:
            return "it computes in f32, in f16 with sums in f32, or in i8 with sums in i32"
        if operator.a == "f16" and not target.has("zvfh"):
            return "f16 needs a target with zvfh"
        plain = (operator.alpha, operator.beta) == (1.0, 0.0) and operator.activation in _ACTIVATION[:2]
        if operator.a == "i8" and not plain:
            return "in i8 it has no alpha or beta, and relu is the only activation"
        if operator.epilogue:
            return epilogue.REFUSED
        return None if operator.scales == "none" else "it has no scales"

    def space(self, operator: Operator, target: Target) -> Space:
        gemm, chip = served(operator, target, Gemm, Riscv)
        size = dtype(gemm.a).bytes
        s = Space(self.name)
        group = s.knob("LMUL", [g for g in _GROUPS if g == 1 or g * _lanes(chip) // 2 < gemm.n])
        rows = s.knob("MR", [r for r in _ROWS if r <= gemm.m])
        wide = s.knob("NR", list(_WIDE))
        s.knob("UNROLL", [1, 2, 4, 8])
        depth = s.knob("KC", _depths(gemm))
        width = s.knob("NC", covering(_WIDTHS, gemm.n))
        s.knob("PACK_A", ["none", "strip"])
        s.knob("PACK_B", _packings(gemm))
        s.knob("PREFETCH", [0, 4])
        s.require(rows * wide * group + group <= chip.vector_registers, "a tile and a group of B fit in registers")
        s.require((wide == 1) | ((wide - 1) * group * _lanes(chip) < gemm.n), "a tile is no wider than C")
        s.require(width >= wide * group * _lanes(chip), "a block has at least one tile of columns")
        room = max(chip.l2_bytes, _LEAST_L2)
        s.require((width <= _WIDTHS[0]) | (width * depth * size <= room), "a block of B fits in L2")
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, _ = served(operator, target, Gemm, Riscv)
        sums, second, fourth = _GROUPS[config["LMUL"]]
        pack_a, pack_b = config["PACK_A"] == "strip", config["PACK_B"] == "block"
        a_t = gemm.layout[0] == "t"
        macros = {
            "FORMAT": _FORMATS[gemm.a, gemm.c, gemm.acc],
            "LMUL": sums,
            "SECOND": second,
            "FOURTH": fourth,
            **{name: config[name] for name in ("MR", "NR", "KC", "NC")},
            "A_T": int(a_t),
            "B_T": int(gemm.layout[1] == "t"),
            "PACK_A": int(pack_a),
            "PACK_B": int(pack_b),
            "BIAS": int(gemm.bias),
            "ACTIVATION": _ACTIVATION.index(gemm.activation),
        }
        by_rows = not a_t and not pack_a
        tiles = Tiles(
            TILE_FORMATS[gemm.a],
            sums,
            second,
            config["MR"],
            config["NR"],
            config["UNROLL"],
            by_rows,
            config["PREFETCH"],
        )
        numbers = (config["MR"] if pack_a else 0) + (config["NC"] if pack_b else 0)
        factor = "i32" if gemm.a == "i8" else "f32"
        arguments = (
            TensorArg("A"),
            TensorArg("B"),
            TensorArg("bias") if gemm.bias else ScalarArg("i64", 0),
            TensorArg("C"),
            WorkspaceArg("packed", max(64, numbers * config["KC"] * dtype(gemm.a).bytes)),
            *(ScalarArg("i64", name) for name in _SIZES),
            *(ScalarArg(factor, name) for name in ("alpha", "beta")),
        )
        files = sources(__name__, ("gemm_rvv.c", "rvv_numbers.h"))
        return Kernel(
            name=self.name,
            language="c",
            sources=(*files, Source("tile.h", tile_text(tiles))),
            flags=("-std=gnu11", *defines(macros)),
            plan=LaunchPlan((Step("deepgen_gemm", arguments),)),
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        gemm, chip = served(operator, target, Gemm, Riscv)
        group = max(g for g in _GROUPS if g <= 4 and (g == 1 or g * _lanes(chip) <= gemm.n))
        wide = max(w for w in _WIDE if w * group <= 4 and (w == 1 or w * group * _lanes(chip) <= gemm.n))
        rows = max(r for r in _ROWS if r <= gemm.m and r * wide * group + group <= chip.vector_registers)
        widths = [w for w in covering(_WIDTHS, gemm.n) if w >= wide * group * _lanes(chip)]
        return {
            "LMUL": group,
            "MR": rows,
            "NR": wide,
            "UNROLL": 4,
            "KC": nearest(_depths(gemm), 256),
            "NC": nearest(widths, 256),
            "PACK_A": "none",
            "PACK_B": _packings(gemm)[0],
            "PREFETCH": 0,
        }


def _lanes(chip: Riscv) -> int:
    """Sums per register."""
    return chip.vlen // 32


def _packings(gemm: Gemm) -> list[str]:
    return ["none", "block"] if gemm.layout[1] == "n" else ["block"]


def _depths(gemm: Gemm) -> list[int]:
    """Blocks of K. Results in f16 cannot hold the sums of a block, so all of K is one block there."""
    return covering(_DEPTHS, gemm.k) if gemm.a != "f16" else [-(-gemm.k // 64) * 64]


_SMALLER = (8, 4, 2, 1)  # rows of the tiles for the remainder


@dataclass(frozen=True)
class Format:
    """The instructions of a dtype. Sums have 32 bits."""

    bytes: int  # of an element of A or B
    load: tuple[str, ...]  # loads a group of B, {y}, from address {b}; {z} is a group of half the size
    number: str  # loads an element of A, {x}
    add: str  # adds the product to the sums {s}
    float: bool
    width: int  # of the elements while products are added


TILE_FORMATS = {
    "f32": Format(4, ("vle32.v {y}, ({b})",), "flw", "vfmacc.vf", True, 32),
    "f16": Format(2, ("vle16.v {y}, ({b})",), "flh", "vfwmacc.vf", True, 16),
    "i8": Format(1, ("vle8.v {z}, ({b})", "vsext.vf2 {y}, {z}"), "lb", "vwmacc.vx", False, 16),
}


@dataclass(frozen=True)
class Tiles:
    """The parameters of the functions."""

    format: Format
    sums: str  # the register group for sums, such as m4
    operands: str  # the register group for elements of B
    rows: int
    groups: int  # of vector registers per row
    unroll: int  # steps of K in one iteration of the loop
    by_rows: bool  # whether the elements of A for a step are in different rows, rather than contiguous
    prefetch: int  # steps ahead; 0: none

    def heights(self) -> tuple[int, ...]:
        return (self.rows, *(rows for rows in _SMALLER if rows < self.rows))

    def widths(self) -> tuple[int, ...]:
        return (self.groups, 1) if self.groups > 1 else (1,)


_PARAMETERS = "const IN *a, long lda, const IN *b, long ldb, OUT *c, long ldc, long kc, size_t vl, const finish *f"
_PASSED = "a, lda, b, ldb, c, ldc, kc, vl, f"


def tile_text(tiles: Tiles) -> str:
    """The file tile.h."""
    functions = [_function(tiles, rows, groups) for rows in tiles.heights() for groups in tiles.widths()]
    head = "// Generated. A tile of ROWS rows and GROUPS groups is tile_ROWS_GROUPS."
    return "\n".join((head, *functions, _choice(tiles)))


def _function(tiles: Tiles, rows: int, groups: int) -> str:
    sums = [f"s{i}_{j}" for i in range(rows) for j in range(groups)]
    numbers = [f"x{i}" for i in range(rows)]
    pointers = [f"a{i}" for i in range(rows)] if tiles.by_rows else ["a"]
    kind, constraint = ("float", "f") if tiles.format.float else ("long", "r")
    extra = ["STORED_LINE z;"] if len(tiles.format.load) > 1 else []
    outputs = [f'[{s}] "=&vr"({s})' for s in sums]
    outputs += [
        '[y] "=&vr"(y)',
        *(['[z] "=&vr"(z)'] if extra else []),
        *(f'[{x}] "=&{constraint}"({x})' for x in numbers),
    ]
    outputs += [f'[{name}] "+&r"({name})' for name in ("b", *pointers, "turns", "rest")]
    inputs = ['[vl] "r"(vl)', '[step] "r"(step)', '[stride] "r"(stride)']
    inputs += ['[group] "r"(group)'] if groups > 1 else []
    outputs += ['[ahead] "=&r"(ahead)'] if tiles.prefetch else []
    inputs += ['[distance] "r"(distance)'] if tiles.prefetch else []
    lines = [
        f"static __attribute__((noinline)) void tile_{rows}_{groups}({_PARAMETERS}) {{",
        f"    SUMS {', '.join(sums)};",
        "    LINE y;",
        *(f"    {line}" for line in extra),
        f"    {kind} {', '.join(numbers)};",
        *(f"    const IN *a{i} = a + {i} * lda;" for i in range(rows) if tiles.by_rows),
        f"    long turns = kc / {tiles.unroll}, rest = kc % {tiles.unroll};",
        f"    long stride = lda * (long)sizeof(IN), group = (long)(vl * sizeof(IN)), step = ldb * (long)sizeof(IN) "
        f"- {groups - 1} * group;",
        *([f"    long ahead, distance = {tiles.prefetch} * ldb * (long)sizeof(IN);"] if tiles.prefetch else []),
        "    __asm__ volatile(",
        *(f'        "{line}\\n"' for line in _loops(tiles, rows, groups, sums, pointers)),
        f"        : {', '.join(outputs)}",
        f"        : {', '.join(inputs)}",
        '        : "memory", "vl", "vtype");',
        *(f"    put(c + {i} * ldc + {j} * (long)vl, s{i}_{j}, f, {j} * (long)vl, vl);"
          for i in range(rows) for j in range(groups)),
        "}",
    ]  # fmt: skip
    return "\n".join(lines)


def _loops(tiles: Tiles, rows: int, groups: int, sums: list[str], pointers: list[str]) -> Iterator[str]:
    yield f"vsetvli zero, %[vl], e32, {tiles.sums}, ta, ma"
    yield from (f"vmv.v.i %[{s}], 0" for s in sums)
    if tiles.format.width != 32:
        yield f"vsetvli zero, %[vl], e{tiles.format.width}, {tiles.operands}, ta, ma"
    for counter, steps, labels in (("turns", tiles.unroll, ("1", "2")), ("rest", 1, ("3", "4"))):
        yield f"beqz %[{counter}], {labels[1]}f"
        yield f"{labels[0]}:"
        for step in range(steps):
            yield from _step(tiles, rows, groups, step)
        yield from (f"addi %[{p}], %[{p}], {steps * tiles.format.bytes}" for p in pointers if tiles.by_rows)
        yield f"addi %[{counter}], %[{counter}], -1"
        yield f"bnez %[{counter}], {labels[0]}b"
        yield f"{labels[1]}:"


def _step(tiles: Tiles, rows: int, groups: int, step: int) -> Iterator[str]:
    """One step of K."""
    form = tiles.format
    if tiles.prefetch:  # the prefetch.r hint of Zicbop, which does nothing on CPUs without it
        yield "add %[ahead], %[b], %[distance]"
        yield ".insn s 0x13, 6, x1, 0(%[ahead])"
    for j in range(groups):
        yield from (load.format(y="%[y]", z="%[z]", b="%[b]") for load in form.load)
        yield f"add %[b], %[b], %[{'step' if j == groups - 1 else 'group'}]"
        for i in range(rows if j == 0 else 0):
            place = f"{step * form.bytes}(%[a{i}])" if tiles.by_rows else f"{i * form.bytes}(%[a])"
            yield f"{form.number} %[x{i}], {place}"
        if j == 0 and not tiles.by_rows:
            yield "add %[a], %[a], %[stride]"
        yield from (f"{form.add} %[s{i}_{j}], %[x{i}], %[y]" for i in range(rows))


def _choice(tiles: Tiles) -> str:
    """Selects the function for a tile."""
    cases = [
        f"    if (rows == {rows} && groups == {groups}) {{ tile_{rows}_{groups}({_PASSED}); return; }}"
        for rows in tiles.heights()
        for groups in tiles.widths()
    ]
    taken = " : ".join(f"left >= {rows} ? {rows}" for rows in tiles.heights())
    return "\n".join(
        (
            f"static inline long rows_of_tile(long left) {{ return {taken} : 1; }}",
            f"static inline void tile(long rows, long groups, {_PARAMETERS}) {{",
            *cases,
            "}",
            "",
        )
    )
