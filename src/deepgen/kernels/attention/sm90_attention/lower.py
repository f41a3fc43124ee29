"""From a config to what `attention_sm90.cu` is compiled with and how it is launched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deepgen.kernels.attention import option_arguments, option_macros, strides_of
from deepgen.operators import Attention
from deepgen.vocabulary import Arg, DescriptorArg, LaunchPlan, ScalarArg, Step, TensorArg, TensorMapSpec, WorkspaceArg

ATOM = 64  # columns of a line in shared memory: 128 bytes, as wide as the swizzle
ROWS = 64  # of a warpgroup
# By how many warpgroups consume, and blocks on a multiprocessor: registers of theirs, of the one that fetches, and of
# all when a block begins, which must be as many in all: a block that asks for more waits for them forever.
REGISTERS = {(1, 2): (216, 40, 128), (2, 1): (240, 24, 168), (3, 1): (160, 32, 128)}
_SLACK = 8  # binary exponents
_ALIGN, _BARRIER, _PIECE = 1024, 8, 24
_CACHED = 24 << 20  # bytes of K and V that the L2 cache holds beside all else


def atoms(width: int) -> int:
    return -(-width // ATOM)


def macros(attention: Attention, c: Mapping[str, Any]) -> dict[str, int | str]:
    own, fetching, _ = REGISTERS[c["CONSUMERS"], c["BLOCKS"]]
    return {
        "TYPE": attention.dtype,
        "D": attention.width,
        "DV": attention.v_width,
        "BN": c["BN"],
        "STAGES": c["STAGES"],
        "CONSUMERS": c["CONSUMERS"],
        "CAUSAL": int(attention.causal),
        "WINDOW": int(attention.window > 0),
        "SOFTCAP": int(attention.softcap > 0),
        **option_macros(attention),
        "LENGTHS": int(attention.lengths),
        "PING_PONG": int(c.get("PING_PONG", False)),
        "EARLY": c.get("EARLY", 0),
        "OVERLAP": int(c["OVERLAP"]),
        "SINGLE": int(c.get("SINGLE", False)),
        "DYNAMIC": int(c["DYNAMIC"]),
        "Q_REGISTERS": int(c["QUERIES"] == "registers"),
        "POLYNOMIALS": c["POLYNOMIALS"],
        "SLACK": _SLACK if c["LAZY"] else 0,
        "REGISTERS": own,
        "REGISTERS_DOWN": fetching,
        "MIN_BLOCKS": c["BLOCKS"],
    }


def shared_bytes(attention: Attention, consumers: Any, bn: Any, stages: Any) -> Any:
    """Of a block, for numbers or knobs."""
    q, v = atoms(attention.width), atoms(attention.v_width)
    line = 2 * ATOM
    tiles = consumers * (q * ROWS * line) + stages * bn * ((q + v) * line)
    return _ALIGN + tiles + (2 * consumers + 4 * stages) * _BARRIER + consumers * _PIECE


def plan(attention: Attention, c: Mapping[str, Any], multiprocessors: int) -> LaunchPlan:
    consumers, bn = c["CONSUMERS"], c["BN"]
    tiles = f"ceil_div(SQ, {consumers * ROWS}) * B * H"
    # Heads that go through their rows together: those whose keys and values the L2 cache holds, or each by itself.
    line = 2 * (attention.width + attention.v_width)
    together = {"one": "1", "fit": f"max({_CACHED} // (SK * {line}), 1) * (H // HK)"}[c["TOGETHER"]]
    drawn: Arg = WorkspaceArg("drawn", 64, zeroed=True, lasting=True) if c["DYNAMIC"] else ScalarArg("i64", 0)
    args: tuple[Arg, ...] = (
        _map(attention, "q", ("D", "SQ", "H", "B"), ROWS),
        _map(attention, "k", ("D", "SK", "HK", "B"), bn),
        _map(attention, "v", ("DV", "SK", "HK", "B"), bn),
        TensorArg("o"),
        drawn,
        *(ScalarArg("i64", stride) for stride in strides_of(attention, "o")),
        *(ScalarArg("i32", size) for size in ("B", "H", "H // HK", "SQ", "SK", together, "window")),
        *(ScalarArg("f32", number) for number in ("scale", "softcap")),
        *option_arguments(attention),
        TensorArg("lengths") if attention.lengths else ScalarArg("i64", 0),
    )
    step = Step(
        "attention",
        args,
        grid=(f"min({tiles}, {multiprocessors * c['BLOCKS']})", 1, 1),
        block=((consumers + 1) * 128, 1, 1),
        shared_bytes=shared_bytes(attention, consumers, bn, c["STAGES"]),
    )
    return LaunchPlan((step,), requires=tuple(_requires(attention, c)))


def _map(attention: Attention, name: str, sizes: tuple[str, ...], rows: int) -> DescriptorArg:
    apart = tuple(f"{stride} * 2" for stride in strides_of(attention, name))
    return DescriptorArg(name, TensorMapSpec((ATOM, rows, 1, 1), "128", "256", sizes, apart))


def _requires(attention: Attention, c: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if c.get("SINGLE"):
        yield f"SK <= {c['BN']}", f"at most {c['BN']} keys: they are one tile"
    yield f"D == {attention.width}", f"a width of {attention.width}"
    yield f"DV == {attention.v_width}", f"values of width {attention.v_width}"
    for name in "qkvo":
        for stride in strides_of(attention, name):
            yield f"{stride} % 8 == 0", f"rows, heads and batches of {name} that lie multiples of 16 bytes apart"


def products_header(attention: Attention, bn: int, *, queries: bool) -> str:
    """`product_keys(sums, q, k, add)`: without `add` sums are begun again; `product_values(sums, weights, v)`.

    `queries`: whether q is in registers, as weights are.
    """
    of, wide = attention.dtype, attention.v_width
    return f"""// The products of a warpgroup: 64 rows of Q by {bn} of K; weights in registers by {wide} columns of V.
#pragma once
#include "numbers.h"

{product_of_rows("product_keys", bn, of, registers=queries)}
{product_of_columns("product_values", wide, of)}"""


def product_of_rows(name: str, bn: int, of: str, *, registers: bool = False) -> str:
    """A function: 64 rows by `bn` rows, sums over 16 of their columns. `registers`: where the first operand is."""
    first, names = ("const u32* a", _FOUR) if registers else ("u64 a", '"l"(a)')
    count = 4 if registers else 1
    return f"""DG_DEVICE void {name}(float* d, {first}, u64 b, int add) {{
    asm volatile(
        "{{\\n.reg .pred add;\\nsetp.ne.b32 add, %{bn // 2 + count + 1}, 0;\\n"
        "{_instruction(bn, of)}"
        "{_operand(bn // 2, count)}, %{bn // 2 + count}, add, 1, 1, {"0" if registers else "0, 0"};\\n}}"
        : {_sums(bn)}
        : {names}, "l"(b), "r"(add));
}}
"""


def product_of_columns(name: str, wide: int, of: str) -> str:
    """A function: 64 rows in registers by `wide` columns, added to sums over 16 rows of the latter."""
    return f"""DG_DEVICE void {name}(float* d, const u32* a, u64 b) {{
    asm volatile(
        "{_instruction(wide, of)}"
        "{_operand(wide // 2, 4)}, %{wide // 2 + 4}, 1, 1, 1, 1;"
        : {_sums(wide)}
        : {_FOUR}, "l"(b));
}}
"""


_FOUR = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])'


def _operand(first: int, count: int) -> str:
    """The first one: four registers, or where it lies."""
    return f"%{first}" if count == 1 else f"{{{', '.join(f'%{first + i}' for i in range(count))}}}"


def _instruction(columns: int, of: str) -> str:
    numbers = _lines([f"%{i}" for i in range(columns // 2)], 16, ' "\n        "')
    return f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{of}.{of} {{{numbers}}}, "


def _sums(columns: int) -> str:
    return _lines([f'"+f"(d[{i}])' for i in range(columns // 2)], 6, "\n          ")


def _lines(words: list[str], most: int, between: str) -> str:
    rows = [", ".join(words[i : i + most]) for i in range(0, len(words), most)]
    return f",{between}".join(rows)
