"""Attention in portable C, for any CPU: lanes of vectors are queries, or columns if queries are few or it runs
backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import ceil
from typing import Any

from deepgen.kernels import FirstRanked, Rank
from deepgen.kernels.attention import (
    backward_macros,
    backward_requires,
    length_arguments,
    option_arguments,
    option_macros,
    resolved_for,
    rows_of,
    strided,
    strides_of,
    widths_required,
)
from deepgen.kernels.shared import Macros, covering, defines, served, sources, thread_counts
from deepgen.operators import Attention, AttentionBackward, Operator
from deepgen.space import Space, implies
from deepgen.targets import Cpu, Target
from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Step, TensorArg, WorkspaceArg

_FORMATS = {"f32": 32, "bf16": 17}
_SHARED = ("cpu_pool.h", "x86_pool.h", "x86_call.h")
_WIDEST = 512
MOST_ROWS = 256  # queries times heads that share a head of K: that `c_decode` serves
_FEW = 3 / 4  # of lanes
_LONG = 1 << 24  # keys, which are counted in f32
_BESIDE = 2  # registers beside sums and queries
_LOAD, _SUMS = 0.35, 10  # what loads beside a product add to it; sums that hide how long it takes
# Of a key and a vector of queries: its exponential; where it is the first of those at a time; where it is first read.
_SOFTMAX, _SWITCH, _READ = 26, 300, 6
_ROWS, _SPLITS = (1, 2, 4, 8, 16, 32), [1, 2, 4, 8, 16, 32, 64]
_UNEVEN = 1.2  # times their share, that the busiest threads may have


class CAttention(FirstRanked):
    """Tiles of queries, keys as they lie, maxima and sums that run along: f32 and bf16, all options."""

    name = "c_attention"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if (reason := refused(operator, target)) is not None:
            return reason
        attention, _ = served(operator, target, Attention, Cpu)
        return "it reads keys that lie in rows, not in pages" if attention.page else None

    def rank(self, operator: Operator, target: Target) -> Rank:
        return Rank.YIELDS if few(*served(operator, target, Attention, Cpu)) else Rank.SPECIALISED

    def space(self, operator: Operator, target: Target) -> Space:
        attention, cpu = served(operator, target, Attention, Cpu)
        s = Space(self.name)
        filled = cpu.loads_fill_vectors
        vectors, tall = s.knob("QUERIES", [1, 2, 3, 4]), s.knob("TALL", [4, 6, 8] if filled else [4, 8])
        parts, keys = s.knob("PARTS", [1, 2, 4, 8]), s.knob("KEYS", [32, 64, 128, 256])
        s.knob("THREADS", thread_counts(cpu.cores))
        beside = _BESIDE if filled else tall
        s.require(vectors * (tall + 1) + beside <= cpu.vector_registers, "sums and queries fit in registers")
        s.require(tall * vectors >= cpu.vector_registers // 4, "enough sums hide how long a product takes")
        part = vectors * lanes(cpu)
        s.require(
            implies(parts > 1, part * parts < 2 * attention.queries), "a tile has not many more queries than there are"
        )
        s.require(implies(keys > 32, keys < 2 * attention.keys), "nor keys")
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        attention, cpu = served(operator, target, Attention, Cpu)
        part, keys = config["QUERIES"] * lanes(cpu), config["KEYS"]
        d, dv = attention.width, attention.v_width
        widened = 0 if attention.dtype == "f32" else keys * (d + dv)
        room = widened + (keys + config["TALL"]) * part + config["PARTS"] * part * (d + dv + 2)
        macros = {"BY_LANES": int(not cpu.loads_fill_vectors), **config}
        memory = f"{config['THREADS']} * {4 * room}"
        return kernel(self.name, (__name__, "attention.c"), attention, cpu, macros, memory)

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        """The best by a count of instructions first."""
        attention, cpu = served(operator, target, Attention, Cpu)
        space = self.space(attention, cpu)
        shapes = ((4, 6), (3, 8), (4, 4), (2, 8), (2, 6), (3, 4), (2, 4), (1, 8), (1, 4))
        every = (
            {"QUERIES": queries, "TALL": tall, "PARTS": parts, "KEYS": keys, "THREADS": cpu.cores}
            for (queries, tall), parts, keys in product(shapes, (4, 2, 1), (64, 32))
        )
        costs = sorted(every, key=lambda config: _cost(attention, cpu, config))
        return (config for config in costs if not space.explain(config))


class CDecode:
    """All rows of a head of K in a tile, its keys in parts for several threads: f32 and bf16, all options."""

    name = "c_decode"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if (reason := refused(operator, target)) is not None:
            return reason
        attention, _ = served(operator, target, Attention, Cpu)
        most = MOST_ROWS
        fits = rows_of(attention) <= most
        return None if fits else f"it supports few queries: SQ times the heads that share one of K is at most {most}"

    def rank(self, operator: Operator, target: Target) -> Rank:
        attention, cpu = served(operator, target, Attention, Cpu)
        return Rank.SPECIALISED if few(attention, cpu) else Rank.YIELDS

    def space(self, operator: Operator, target: Target) -> Space:
        attention, cpu = served(operator, target, Attention, Cpu)
        s = Space(self.name)
        s.knob("ROWS", covering(_ROWS, rows_of(attention)))
        keys, splits = s.knob("KEYS", [32, 64, 128, 256, 512]), s.knob("SPLITS", _SPLITS)
        s.knob("THREADS", thread_counts(cpu.cores))
        s.require(implies(keys > 32, keys < 2 * attention.keys), "a tile has not many more keys than there are")
        s.require(implies(splits > 1, splits * 16 <= attention.keys), "every part has some keys")
        s.require(splits <= 4 * cpu.cores, "there are threads for parts")
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        attention, cpu = served(operator, target, Attention, Cpu)
        rows, keys, splits = (config[knob] for knob in ("ROWS", "KEYS", "SPLITS"))
        wide = lanes(cpu)
        d, dv = (ceil(width / wide) * wide for width in (attention.width, attention.v_width))
        part = _lines(rows * (dv + 2))
        runs = 6 * (keys // min(keys, attention.page)) + 4 if attention.page else 0  # in four bytes each
        room = part + _lines(runs + rows * (d + keys + 1))
        parts = f" + B * HK * ceil_div(SQ * (H // HK), {rows}) * {splits * 4 * part}" if splits > 1 else ""
        memory = f"{config['THREADS']} * {4 * room}{parts}"
        return kernel(self.name, (__name__, "decode.c"), attention, cpu, config, memory)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        """One tile for as many rows as there are; parts where threads have few tiles."""
        attention, cpu = served(operator, target, Attention, Cpu)
        space, threads = self.space(attention, cpu), cpu.cores
        rows = covering(_ROWS, rows_of(attention))[-1]
        tiles = attention.batch * attention.kv_heads * ceil(rows_of(attention) / rows)
        even = next((n for n in _SPLITS if ceil(tiles * n / threads) * threads < _UNEVEN * tiles * n), 1)
        choices = (
            {"ROWS": rows, "KEYS": keys, "SPLITS": splits, "THREADS": threads}
            for splits in (even, 1)
            for keys in (128, 64, 32)
        )
        return next(config for config in choices if not space.explain(config))


def _lines(numbers: int) -> int:
    """Rounded up to whole cache lines."""
    return ceil(numbers / 16) * 16


def _cost(attention: Attention, cpu: Cpu, c: Mapping[str, Any]) -> float:
    """Of the busiest thread, in products of a vector by a number; constants are measured with vectors of 512 bits."""
    vectors, tall, keys, parts = (int(c[knob]) for knob in ("QUERIES", "TALL", "KEYS", "PARTS"))
    part = vectors * lanes(cpu)
    tiles = attention.batch * attention.heads * ceil(attention.queries / (part * parts))
    seen = attention.keys
    if attention.causal:  # half of them, and what parts and keys that lie side by side compute beyond
        seen = min(seen, (seen + part + keys) // 2)
    fed = vectors * (1 if cpu.loads_fill_vectors else lanes(cpu))  # products by a load of K or V
    each = (1 + _LOAD * (1 / fed + 1 / tall)) * max(1, _SUMS / (vectors * tall))
    score = attention.width * ceil(keys / tall) * tall / keys
    rest = attention.v_width % tall
    value = attention.v_width + rest * (max(1, _SUMS / (vectors * rest)) - 1 if rest else 0)
    of_key = each * (score + value) + _SOFTMAX + _SWITCH / keys + _READ / parts
    work = ceil(attention.queries / part) * vectors * attention.batch * attention.heads * seen * of_key
    return work * ceil(tiles / cpu.cores) * cpu.cores / tiles


def refused(operator: Operator, target: Target) -> str | None:
    if not isinstance(target, Cpu):
        return "it supports CPUs only"
    if not isinstance(operator, Attention):
        return "it supports attention only"
    if operator.dtype not in _FORMATS:
        return "it computes f32 and bf16"
    if max(operator.width, operator.v_width) > _WIDEST:
        return f"it supports heads up to {_WIDEST} wide"
    return None if operator.keys < _LONG else f"it supports fewer than {_LONG} keys"


def lanes(cpu: Cpu) -> int:
    return cpu.vector_bytes // 4


def few(attention: Attention, cpu: Cpu) -> bool:
    """Whether queries leave so many lanes empty that adding lanes up takes less."""
    return attention.queries <= _FEW * lanes(cpu) and rows_of(attention) <= MOST_ROWS


def kernel(family: str, file: tuple[str, str], attention: Attention, cpu: Cpu, own: Macros, memory: str) -> Kernel:
    """`file` is a package and the name in it, `memory` the bytes of the workspace."""
    package, name = file
    macros: Macros = {
        "FORMAT": _FORMATS[attention.dtype],
        "VECTOR_BYTES": cpu.vector_bytes,
        "D": attention.width,
        "DV": attention.v_width,
        **{knob: value for knob, value in own.items() if knob != "THREADS"},
        **option_macros(attention),
        **({"PAGE": attention.page} if attention.page else {}),
    }
    files = (
        *sources(package, (name, *_SHARED)),
        *sources("deepgen.kernels.attention", ("on_processors.h",)),
        *sources("deepgen.kernels.softmax.c_softmax", ("numbers.h",)),
    )
    files = resolved_for(attention, files)
    return Kernel(family, "c", files, ("-std=gnu11", "-pthread", *defines(macros)), _plan(attention, own, memory))


def _plan(attention: Attention, own: Mapping[str, Any], memory: str) -> LaunchPlan:
    strides = [stride for name in "qkvo" for stride in strides_of(attention, name)]
    args = (
        *(TensorArg(name) for name in "qkvo"),
        WorkspaceArg("room", memory),
        *(ScalarArg("i64", stride) for stride in strides),
        *(ScalarArg("i64", size) for size in ("B", "H", "H // HK", "SQ", "SK", "window")),
        *(ScalarArg("f32", number) for number in ("scale", "softcap")),
        *option_arguments(attention),
        ScalarArg("i32", own["THREADS"]),
        *length_arguments(attention),
    )
    requires = (
        *widths_required(attention),
        (f"SK < {_LONG}", f"fewer than {_LONG} keys"),
    )
    return LaunchPlan((Step("deepgen_attention", args),), requires=requires)


class CBackward:
    """A thread for all heads that share one of K; lanes are columns: f32 and bf16, all options."""

    name = "c_backward"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cpu):
            return "it supports CPUs only"
        if not isinstance(operator, AttentionBackward):
            return "it supports attention's backward pass only"
        if operator.dtype not in _FORMATS:
            return "it computes f32 and bf16"
        if operator.width != operator.v_width or operator.width > _WIDEST:
            return f"it supports heads of q and v that are equally wide, up to {_WIDEST}"
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        _, cpu = served(operator, target, AttentionBackward, Cpu)
        s = Space(self.name)
        s.knob("QUERIES", [1, 2, 4])
        s.knob("THREADS", thread_counts(cpu.cores))
        return s

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        _, cpu = served(operator, target, AttentionBackward, Cpu)
        return {"QUERIES": 2, "THREADS": cpu.cores}

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        backward, cpu = served(operator, target, AttentionBackward, Cpu)
        side = lanes(cpu)
        wide = ceil(backward.width / side) * side
        macros = {
            "FORMAT": _FORMATS[backward.dtype],
            "VECTOR_BYTES": cpu.vector_bytes,
            "QUERIES": config["QUERIES"],
            **backward_macros(backward),
        }
        files = (
            *sources(__name__, ("backward.c", *_SHARED)),
            *sources("deepgen.kernels.softmax.c_softmax", ("numbers.h",)),
        )
        at_once = 2 * config["QUERIES"]
        memory = f"{4 * config['THREADS']} * (SK * {4 * wide + at_once} + {at_once * side})"
        args = (
            *(arg for name in ("q", "k", "v", "o", "dout") for arg in strided(backward, name)),
            TensorArg("lse"),
            *(arg for name in ("dq", "dk", "dv") for arg in strided(backward, name)),
            WorkspaceArg("room", memory),
            *(ScalarArg("i64", size) for size in ("B", "H", "H // HK", "SQ", "SK", "window")),
            *(ScalarArg("f32", number) for number in ("scale", "softcap")),
            ScalarArg("i32", config["THREADS"]),
        )
        plan = LaunchPlan((Step("deepgen_attention_backward", args),), requires=backward_requires(backward))
        return Kernel(self.name, "c", files, ("-std=gnu11", "-pthread", *defines(macros)), plan)
