"""Attention on Hopper's tensor cores: the copy engine feeds warpgroups that alternate between products and softmax."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deepgen.kernels.attention import option_arguments, option_macros, strided, strides_of, widths_required
from deepgen.kernels.shared import defines, served, sources
from deepgen.operators import Attention, Operator
from deepgen.space import Space, implies, maximum, minimum, where
from deepgen.space.expr import points
from deepgen.targets import Cuda, Target
from deepgen.vocabulary import (
    Arg,
    DescriptorArg,
    Kernel,
    LaunchPlan,
    ScalarArg,
    Source,
    Step,
    TensorArg,
    TensorMapSpec,
    WorkspaceArg,
)

_OWN, _SHARED = ("attention_sm90.cu", "values.h", "rows.h", "instructions.h"), ("numbers.h", "hopper.h")
_GEMM = "deepgen.kernels.gemm.sm90_gemm"
_WIDEST = 256  # columns of an instruction, and rows of a box that the copy engine takes
_RESERVED = 32  # registers for addresses, counters, maxima and sums
_ODD = 16  # and for windows, caps and what is added to scores
_OPERANDS = 26  # registers beside the sums of an instruction
_TILES = tuple(range(32, _WIDEST + 1, 16))  # of keys
_USUAL = 128  # keys of a tile, where they fit
_WIDE, _NARROWER, _MANY = 192, 96, 2048  # keys of a tile of 8-bit numbers, from so many keys on
_TIMED = 128  # columns of heads up to which maxima that are seldom looked for have been timed
_FEW = 512  # queries, for which high tiles are mostly empty
_LONG = 1 << 30  # places are counted in 32 bits


class Sm90Attention:
    """Copy engine, barriers, products of warpgroups with weights in registers: f16, bf16 and f8e4m3 on sm_90a."""

    name = "sm90_attention"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cuda) or not target.has("wgmma", "tma", "setmaxnreg"):
            return "it supports cuda:sm_90a only"
        if not isinstance(operator, Attention):
            return "it supports attention only"
        if operator.dtype not in ("bf16", "f16", "f8e4m3"):
            return "it multiplies f16, bf16 and f8e4m3"
        widths, least = (operator.width, operator.v_width), 16 // operator.format.bytes
        if any(width % least for width in widths) or max(widths) > _WIDEST:
            return f"it supports heads whose width is a multiple of {least}, up to {_WIDEST}"
        if operator.page:
            return "it supports keys that follow each other, not pages"
        if max(operator.queries, operator.keys) > _LONG:
            return "it has 32-bit indices of queries and keys"
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        attention, gpu = served(operator, target, Attention, Cuda)
        s = Space(self.name)
        consumers, blocks = s.knob("CONSUMERS", [1, 2, 3]), s.knob("BLOCKS", [1, 2])
        s.require(points(["CONSUMERS", "BLOCKS"], [*REGISTERS]), "registers are shared out among so many warpgroups")
        bn = s.knob("BN", [n for n in _TILES if n % (32 // attention.format.bytes) == 0])
        stages = s.knob("STAGES", [2, 3, 4])
        single = s.knob("SINGLE", [False, True], when=bn >= attention.keys)
        overlap = s.knob("OVERLAP", [False, True])
        ping_pong = s.knob("PING_PONG", [False, True], when=consumers > 1)
        s.knob("EARLY", [0, 1, 2, 4], when=(consumers > 1) & ping_pong & overlap)
        queries = s.knob("QUERIES", ["shared", "registers"])
        looped = overlap & (bn < attention.keys)
        seldom = s.knob("SELDOM", [False, True], when=looped)
        s.knob("LAZY", [False, True], when=~looped | ~seldom)
        s.knob("POLYNOMIALS", [0] if attention.lse else [0, 2, 4, 6])  # their errors show in logarithms of sums
        s.knob("DYNAMIC", [False, True])
        s.knob("TOGETHER", ["one", "fit"])
        s.require(implies(bn >= attention.keys, single), "a single tile needs no loop")
        own, begins = (
            where(consumers == 2, of[2, 1], where(consumers == 3, of[3, 1], of[1, 2]))
            for of in ({key: each[place] for key, each in REGISTERS.items()} for place in (0, 2))
        )
        size = attention.format.bytes
        steps = -(-attention.width * size // 32)
        held = bn // 2 + bn * size // 8 + attention.v_width // 2 + where(queries == "registers", 4 * steps, 0)
        reserved = _RESERVED + _ODD * _odd(attention)
        s.require(held + reserved <= own, "scores, weights and results fit in registers")
        # Compilers want what one instruction adds to within the registers that a thread begins with.
        s.require(maximum(bn, attention.v_width) // 2 + _OPERANDS <= begins, "an instruction's sums fit at the start")
        shared = shared_bytes(attention, consumers, bn, stages)
        room = minimum(gpu.shared_per_block, gpu.shared_per_sm // blocks - gpu.shared_reserved)
        s.require(shared <= room, "tiles of so many blocks fit in shared memory")
        least = 1 if attention.v_width // 2 + _OPERANDS <= REGISTERS[1, 2][2] else 2
        s.require(implies(consumers > least, (consumers - 1) * ROWS < attention.queries), "every warpgroup has rows")
        s.require(implies(bn > _TILES[0], bn - 16 < attention.keys), "a tile has no more keys than there are")
        s.require(implies(stages > 2, stages * bn < 2 * attention.keys + bn), "stages are filled")
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        attention, gpu = served(operator, target, Attention, Cuda)
        products = Source(
            "products.h", products_header(attention, config["BN"], queries=config["QUERIES"] == "registers")
        )
        return Kernel(
            name=self.name,
            language="cuda",
            sources=(*sources(__name__, _OWN), *sources(_GEMM, _SHARED), products),
            flags=("-std=c++17", *defines(macros(attention, config))),
            plan=plan(attention, config, gpu.multiprocessors),
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        attention, gpu = served(operator, target, Attention, Cuda)
        space = self.space(attention, gpu)
        return next(config for config in _choices(attention) if not space.explain(config))


def _odd(attention: Attention) -> bool:
    """Whether scores take registers of their own between products and exponentials."""
    return attention.window > 0 or attention.softcap > 0 or attention.bias or attention.alibi


def _choices(attention: Attention) -> Iterator[dict[str, Any]]:
    """Wide tiles of keys first, with queries in registers and three stages where they fit; few rows have fewer
    warpgroups. Many keys of 8 bits have three warpgroups with narrower tiles where all queries see them, and tiles that
    are wider still where not."""
    uneven = attention.causal or attention.window > 0 or attention.lengths
    small, narrow, short = eight(attention), attention.v_width <= 64, attention.queries <= _FEW
    many = small and not narrow and attention.keys >= _MANY
    # Of 8 bits sums soon exceed what weights may be where the first tile has few keys that a query sees.
    seldom = max(attention.width, attention.v_width) <= _TIMED and not (small and uneven) and not _odd(attention)
    if many and seldom and not short:
        yield _choice(attention, 3, _NARROWER, "shared", 3, seldom=True, alternate=False)
    for consumers in (3, 2) if narrow and not short else (2, 1):
        for bn in reversed([n for n in _TILES if n <= (_WIDE if many else _USUAL)]):
            for queries, stages in (("registers", 3), ("registers", 2), ("shared", 2)):
                alternate = consumers > 1 and (narrow or (seldom and not small and bn < attention.keys))
                yield _choice(attention, consumers, bn, queries, stages, seldom=seldom, alternate=alternate)


def _choice(
    attention: Attention, consumers: int, bn: int, queries: str, stages: int, *, seldom: bool, alternate: bool
) -> dict[str, Any]:
    uneven = attention.causal or attention.window > 0 or attention.lengths
    several, single = consumers > 1, bn >= attention.keys
    maxima: dict[str, Any] = {"LAZY": True} if single else {"SELDOM": seldom, **({} if seldom else {"LAZY": True})}
    return {
        "CONSUMERS": consumers, "BLOCKS": 1 if several else 2, "BN": bn, "STAGES": stages,
        **({"SINGLE": True} if single else {}), "OVERLAP": True, **({"PING_PONG": alternate} if several else {}),
        **({"EARLY": 0} if alternate else {}), "QUERIES": queries, **maxima, "POLYNOMIALS": 0, "DYNAMIC": uneven,
        "TOGETHER": "fit" if uneven else "one",
    }  # fmt: skip


ATOM = 64  # columns of a line in shared memory: 128 bytes, as wide as the swizzle
ROWS = 64  # of a warpgroup
# By how many warpgroups consume, and blocks on a multiprocessor: registers of theirs, of the one that fetches, and of
# all when a block begins, which must be as many in all: a block that asks for more waits for them forever.
REGISTERS = {(1, 2): (216, 40, 128), (2, 1): (240, 24, 168), (3, 1): (160, 32, 128)}
_SLACK = 8  # binary exponents
_SLACK_8, _MOST_8 = 4, 8  # of weights of 8 bits, and what the largest of these may be: formats end at 448
_SELDOM_8 = 3  # of the largest where maxima are seldom known: 32 weights are at most 256 then
_LARGEST = {8: 448, 16: 4096}  # weights by their bits, where maxima are seldom known
_THREADS = 256  # threads that transpose a tile of V
_ALIGN, _BARRIER, _PIECE = 1024, 8, 24
_CACHED = 24 << 20  # bytes of K and V that the L2 cache holds beside all else


def atoms(width: int, size: int = 2) -> int:
    """Lines of 128 bytes of numbers of so many bytes."""
    return -(-width * size // (2 * ATOM))


def eight(attention: Attention) -> bool:
    return attention.format.bits == 8


def macros(attention: Attention, c: Mapping[str, Any]) -> dict[str, int | str]:
    own, fetching, _ = REGISTERS[c["CONSUMERS"], c["BLOCKS"]]
    small = eight(attention)
    slack = (_SLACK_8 if small else _SLACK) if c.get("LAZY") else 0
    return {
        "TYPE": attention.dtype,
        "RESULT": attention.result,
        "EIGHT": int(small),
        "OFFSET": 0 if not small else _SELDOM_8 if c.get("SELDOM") else _MOST_8 - slack,
        "SELDOM": int(c.get("SELDOM", False)),
        "LARGEST": _LARGEST[attention.format.bits],
        "D": attention.width,
        "DV": attention.v_width,
        "BN": c["BN"],
        "STAGES": c["STAGES"],
        "CONSUMERS": c["CONSUMERS"],
        **option_macros(attention),
        "LENGTHS": int(attention.lengths),
        "PING_PONG": int(c.get("PING_PONG", False)),
        "EARLY": c.get("EARLY", 0),
        "OVERLAP": int(c["OVERLAP"]),
        "SINGLE": int(c.get("SINGLE", False)),
        "DYNAMIC": int(c["DYNAMIC"]),
        "Q_REGISTERS": int(c["QUERIES"] == "registers"),
        "POLYNOMIALS": c["POLYNOMIALS"],
        "SLACK": slack,
        "REGISTERS": own,
        "REGISTERS_DOWN": fetching,
        "MIN_BLOCKS": c["BLOCKS"],
    }


def shared_bytes(attention: Attention, consumers: Any, bn: Any, stages: Any) -> Any:
    """Of a block, for numbers or knobs."""
    q, line = atoms(attention.width, attention.format.bytes), 2 * ATOM
    of_v = attention.v_width if eight(attention) else atoms(attention.v_width) * line
    tiles = consumers * (q * ROWS * line) + stages * bn * (q * line + of_v)
    return _ALIGN + tiles + (2 * consumers + 4 * stages) * _BARRIER + consumers * _PIECE


def plan(attention: Attention, c: Mapping[str, Any], multiprocessors: int) -> LaunchPlan:
    consumers, bn = c["CONSUMERS"], c["BN"]
    tiles = f"ceil_div(SQ, {consumers * ROWS}) * B * H"
    # Heads that go through their rows together: those whose keys and values the L2 cache holds, or each by itself.
    line = attention.format.bytes * (attention.width + attention.v_width)
    together = {"one": "1", "fit": f"max({_CACHED} // (SK * {line}), 1) * (H // HK)"}[c["TOGETHER"]]
    drawn: Arg = WorkspaceArg("drawn", 64, zeroed=True, lasting=True) if c["DYNAMIC"] else ScalarArg("i64", 0)
    transposed = WorkspaceArg("transposed", f"B * HK * ceil_div(SK, {bn}) * {bn * attention.v_width}")
    args: tuple[Arg, ...] = (
        _map(attention, "q", ("D", "SQ", "H", "B"), ROWS),
        _map(attention, "k", ("D", "SK", "HK", "B"), bn),
        transposed if eight(attention) else _map(attention, "v", ("DV", "SK", "HK", "B"), bn),
        TensorArg("o"),
        drawn,
        *(ScalarArg("i64", stride) for stride in strides_of(attention, "o")),
        *(ScalarArg("i32", size) for size in ("B", "H", "H // HK", "SQ", "SK", together, "window")),
        *(ScalarArg("f32", number) for number in ("scale", "softcap")),
        *option_arguments(attention),
        TensorArg("lengths") if attention.lengths else ScalarArg("i64", 0),
        *(_scales(attention) if eight(attention) else ()),
    )
    step = Step(
        "attention",
        args,
        grid=(f"min({tiles}, {multiprocessors * c['BLOCKS']})", 1, 1),
        block=((consumers + 1) * 128, 1, 1),
        shared_bytes=shared_bytes(attention, consumers, bn, c["STAGES"]),
        overlaps=eight(attention),
    )
    steps = (_transpose(attention, bn, transposed), step) if eight(attention) else (step,)
    return LaunchPlan(steps, requires=tuple(_requires(attention, c)))


def _transpose(attention: Attention, bn: int, transposed: WorkspaceArg) -> Step:
    """The launch that transposes V of 8 bits."""
    lengths = TensorArg("lengths") if attention.lengths else ScalarArg("i64", 0)
    sizes = (ScalarArg("i32", size) for size in ("HK", "SK"))
    return Step(
        "values",
        (*strided(attention, "v"), transposed, *sizes, lengths),
        grid=(f"ceil_div(SK, {bn}) * B * HK", 1, 1),
        block=(_THREADS, 1, 1),
        shared_bytes=_ALIGN + bn * attention.v_width,
    )


def _scales(attention: Attention) -> Iterator[Arg]:
    for name in ("q_scales", "k_scales", "v_scales"):
        yield TensorArg(name) if attention.scales else ScalarArg("i64", 0)
        for place in range(2):
            yield ScalarArg("i64", f"stride_{name}_{place}" if attention.scales else 0)


def _map(attention: Attention, name: str, sizes: tuple[str, ...], rows: int) -> DescriptorArg:
    size = attention.format.bytes
    apart = tuple(f"{stride} * {size}" if size > 1 else stride for stride in strides_of(attention, name))
    return DescriptorArg(name, TensorMapSpec((2 * ATOM // size, rows, 1, 1), "128", "256", sizes, apart))


def _requires(attention: Attention, c: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if c.get("SINGLE"):
        yield f"SK <= {c['BN']}", f"at most {c['BN']} keys: they are one tile"
    yield from widths_required(attention)
    for name in "qkvo":
        size = 2 if name == "o" else attention.format.bytes
        for stride in strides_of(attention, name):
            yield (
                f"{stride} % {16 // size} == 0",
                f"rows, heads and batches of {name} that lie multiples of 16 bytes apart",
            )


def products_header(attention: Attention, bn: int, *, queries: bool) -> str:
    """`product_keys(sums, q, k, add)`: without `add` sums are begun again; `product_values(sums, weights, v)`.

    `queries`: whether q is in registers, as weights are.
    """
    of, wide = attention.dtype.removeprefix("f8"), attention.v_width
    return f"""// The products of a warpgroup: 64 rows of Q by {bn} of K; weights in registers by {wide} columns of V.
#pragma once
#include "numbers.h"

{product_of_rows("product_keys", bn, of, registers=queries)}
{product_of_columns(wide, of)}
{_product_again(of)}"""


def _product_again(of: str) -> str:
    """A function: 16 rows by 8 rows of a warp."""
    depth = 32 if of == "e4m3" else 16
    return f"""DG_DEVICE void product_again(float* d, const u32* a, u32 b, u32 c) {{
    asm volatile(
        "mma.sync.aligned.m16n8k{depth}.row.col.f32.{of}.{of}.f32 {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, "
        "{{%0, %1, %2, %3}};"
        : {_sums(8)}
        : {_FOUR}, "r"(b), "r"(c));
}}
"""


def product_of_rows(name: str, bn: int, of: str, *, registers: bool = False) -> str:
    """A function: 64 rows by `bn` rows, sums over 16 of their columns. `registers`: where the first operand is."""
    first, names = ("const u32* a", _FOUR) if registers else ("u64 a", '"l"(a)')
    count = 4 if registers else 1
    return f"""DG_DEVICE void {name}(float* d, {first}, u64 b, int add) {{
    asm volatile(
        "{{\\n.reg .pred add;\\nsetp.ne.b32 add, %{bn // 2 + count + 1}, 0;\\n"
        "{_instruction(bn, of)}"
        "{_operand(bn // 2, count)}, %{bn // 2 + count}, add, 1, 1{_along(of, 1 if registers else 2)};\\n}}"
        : {_sums(bn)}
        : {names}, "l"(b), "r"(add));
}}
"""


def product_of_columns(wide: int, of: str) -> str:
    """A function: 64 rows in registers by `wide` columns, added to sums over 16 rows of the latter. Numbers of 8 bits
    have no such products: for them, what is summed over lies along lines."""
    transposed = "" if of == "e4m3" else ", 1"
    return f"""DG_DEVICE void product_values(float* d, const u32* a, u64 b) {{
    asm volatile(
        "{_instruction(wide, of)}"
        "{_operand(wide // 2, 4)}, %{wide // 2 + 4}, 1, 1, 1{transposed};"
        : {_sums(wide)}
        : {_FOUR}, "l"(b));
}}
"""


def _along(of: str, operands: int) -> str:
    """That these operands' lines are along what is summed over, where there is a choice."""
    return "" if of == "e4m3" else ", 0" * operands


_FOUR = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])'


def _operand(first: int, count: int) -> str:
    """The first one: four registers, or where it lies."""
    return f"%{first}" if count == 1 else f"{{{', '.join(f'%{first + i}' for i in range(count))}}}"


def _instruction(columns: int, of: str) -> str:
    numbers = _lines([f"%{i}" for i in range(columns // 2)], 16, ' "\n        "')
    depth = 32 if of == "e4m3" else 16
    return f"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.f32.{of}.{of} {{{numbers}}}, "


def _sums(columns: int) -> str:
    return _lines([f'"+f"(d[{i}])' for i in range(columns // 2)], 6, "\n          ")


def _lines(words: list[str], most: int, between: str) -> str:
    rows = [", ".join(words[i : i + most]) for i in range(0, len(words), most)]
    return f",{between}".join(rows)
