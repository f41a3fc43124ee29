"""Attention in f32 on the plain arithmetic units of GPUs: two products by `simt_gemm` around a softmax of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import ceil, inf
from typing import Any

from deepgen.kernels import FirstRanked
from deepgen.kernels.attention import option_arguments, strides_of
from deepgen.kernels.gemm import simt_gemm
from deepgen.kernels.gemm.simt_gemm import KINDS, ranked
from deepgen.kernels.gemm.simt_gemm.lower import LoweredSimt, lower
from deepgen.kernels.gemm.simt_gemm.model import seconds
from deepgen.kernels.gemm.simt_gemm.space import BandedGemm, simt_space
from deepgen.kernels.shared import gpu_kernel, language_of, of_several_kinds, part_of, served, sources
from deepgen.kernels.softmax import simt_softmax
from deepgen.operators import Attention, Gemm, Operator, Softmax, softmax
from deepgen.space import Space
from deepgen.targets import Gpu, Target
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, WorkspaceArg

_SIZE = 4  # bytes of a number
_PRODUCTS, _SOFTMAXES = 12, 6  # configs of each that a space has
# Bytes of scores in memory at once, if no more than so many rounds are needed. More rounds would keep scores in L2, but
# each of their launches leaves multiprocessors idle at its end, which costs more than the softmax gains.
_ROOM, _MOST_ROUNDS = 1 << 30, 64
_MOST = 2**31 - 1  # scores of a head that 32 bits count
_BETWEEN, _READ = 3e-6, 0.85  # seconds of a launch; share of the memory's rate that the softmax has
_TELLING = ("BM", "BN", "BK", "TM", "TN", "STAGES", "MIN_BLOCKS")  # knobs that name a product's config


class SimtAttention(FirstRanked):
    """Scores of as many heads as there is room for are in memory at a time: any widths, lengths and strides."""

    name = "simt_attention"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Gpu):
            return "it supports GPUs only"
        if not isinstance(operator, Attention):
            return "it supports attention only"
        if operator.dtype != "f32":
            return "it multiplies f32"
        if unknown := [word for word in ("sinks", "lse", "lengths") if getattr(operator, word)]:
            return f"it does not support {' and '.join(unknown)}"
        if operator.queries * operator.keys > _MOST:
            return f"it has 32-bit indices: SQ * SK is at most {_MOST}"
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        attention, gpu = served(operator, target, Attention, Gpu)
        s = Space(self.name)
        s.knob("SCORES", [*_configs(_scores(attention), gpu)])
        s.knob("VALUES", [*_configs(_values(attention), gpu)])
        s.knob("SOFTMAX", [*_softmaxes(attention, gpu)])
        s.knob("ROUNDS", _rounds(attention))
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        attention, gpu = served(operator, target, Attention, Gpu)
        scores = _product(_scores(attention), gpu, config["SCORES"])
        values = _product(_values(attention), gpu, config["VALUES"])
        own, rows = _softmaxes(attention, gpu)[config["SOFTMAX"]], _rows(attention)
        parts = [
            '#include "dialect.h"',
            _text(attention, scores, "scores", {"SCORES": 1, "BAND": 1}),
            part_of("weights", "softmax_simt.cu", simt_softmax.files(totals=True), simt_softmax.macros(rows, gpu, own)),
            _text(attention, values, "values", {"SCORES": 0, "BAND": 2}),
            "using scores::attention_scores;\nusing weights::softmax;\nusing values::attention_values;\n",
        ]
        rounds, heads = config["ROUNDS"], f"ceil_div(B * H, {config['ROUNDS']})"
        room = WorkspaceArg("scores", f"{heads} * {attention.queries * attention.keys * _SIZE}")
        totals = WorkspaceArg("totals", f"{heads} * {attention.queries * _SIZE}")
        steps: list[Step] = []
        for number in range(rounds):
            first = f"{number} * {heads}"
            count = heads if number < rounds - 1 else f"B * H - {first}"
            steps += [
                _step(attention, scores, "scores", (room, totals), first, count),
                simt_softmax.step_inside(rows, own, room, totals, f"({count}) * {attention.queries}"),
                _step(attention, values, "values", (room, totals), first, count),
            ]
        plan = LaunchPlan(tuple(steps), requires=(*_requires(attention, scores, values, rounds),))
        return gpu_kernel(self.name, language_of(gpu), (Source("attention_simt.cu", "\n".join(parts)),), {}, plan)

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        """The fastest products by their model, then the next ones of both."""
        attention, gpu = served(operator, target, Attention, Gpu)
        rest = {"SOFTMAX": next(iter(_softmaxes(attention, gpu))), "ROUNDS": _rounds(attention)[0]}
        both = zip(_configs(_scores(attention), gpu), _configs(_values(attention), gpu), strict=False)
        return iter([{"SCORES": scores, "VALUES": values, **rest} for scores, values in both])

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        if self.refuses(operator, target):
            return None
        attention, gpu = served(operator, target, Attention, Gpu)
        heads = ceil(attention.batch * attention.heads / config["ROUNDS"])
        scores, values = _scores(attention, heads), _values(attention, heads)
        of_scores = _configs(_scores(attention), gpu).get(config["SCORES"])
        of_values = _configs(_values(attention), gpu).get(config["VALUES"])
        if of_scores is None or of_values is None:
            return None
        cells = scores.m * scores.n * heads
        # Of the second product's sums as many terms are left out as of the scores.
        share = scores.computed(1, 1) / cells if isinstance(scores, BandedGemm) else 1.0
        times = seconds(scores, gpu, of_scores), seconds(values, gpu, of_values) * share
        weights = 2 * cells * _SIZE / (_READ * gpu.bandwidth_gbs * 1e9) + _BETWEEN
        return float((sum(times) + weights) * config["ROUNDS"])


@dataclass(frozen=True)
class _AttentionProduct:
    gemm: Gemm
    config: Mapping[str, Any]
    lowered: LoweredSimt


def _product(gemm: Gemm, gpu: Gpu, name: str) -> _AttentionProduct:
    config = _configs(gemm, gpu)[name]
    return _AttentionProduct(gemm, config, lower(gemm, config, gpu.warp, {}))


def _scores(attention: Attention, heads: int | None = None) -> Gemm:
    """Q K^T of so many heads; if queries do not see all keys, a band of it."""
    batch = heads or attention.batch * attention.heads
    sizes = attention.queries, attention.keys, attention.width, batch
    if not attention.causal and not attention.window:
        return Gemm(*sizes, layout="nt")
    shift, window = attention.queries - attention.keys, attention.window
    least = shift if attention.causal else shift + 1 - window
    most = shift + window - 1 if window else attention.queries
    return BandedGemm(*sizes, layout="nt", least=least, most=most)


def _values(attention: Attention, heads: int | None = None) -> Gemm:
    return Gemm(attention.queries, attention.v_width, attention.keys, heads or attention.batch * attention.heads)


def _rows(attention: Attention) -> Softmax:
    return softmax(attention.batch * attention.heads * attention.queries, attention.keys, dtype="f32")


@lru_cache(16)
def _configs(gemm: Gemm, gpu: Gpu) -> dict[str, dict[str, Any]]:
    """Configs of a product whose blocks store their own results, the fastest by the model first."""
    alone = [row for row in ranked(gemm, gpu) if row[1]["FIXUP"] == "none" and row[0] < inf]
    first = islice(of_several_kinds(alone, simt_space("products", gemm, gpu), KINDS), _PRODUCTS)
    return {"x".join(str(c[knob]) for knob in _TELLING) + f" {c['COPY']}": c for c in first}


@lru_cache(16)
def _softmaxes(attention: Attention, gpu: Gpu) -> dict[str, dict[str, Any]]:
    first = islice(simt_softmax.ranked(_rows(attention), gpu), _SOFTMAXES)
    return {f"{c['TEAM']}x{c['ROWS']}x{c['WIDTH']} {c['KEEP']}": c for c in first}


def _rounds(attention: Attention) -> list[int]:
    """In how many parts heads may come, the least of them for which there is room first."""
    heads = attention.batch * attention.heads
    able = [n for n in range(1, min(heads, _MOST_ROUNDS) + 1) if (n - 1) * ceil(heads / n) < heads]
    one = attention.queries * attention.keys * _SIZE
    return [n for n in able if ceil(heads / n) * one <= _ROOM][:3] or able[-1:]


def _text(attention: Attention, product: _AttentionProduct, name: str, own: Mapping[str, int]) -> str:
    banded = attention.causal or attention.window > 0
    files = simt_gemm.source_files(__name__, ("operands.h", "entry.h"), banded=banded)
    files += sources(simt_softmax.__name__, ("exponential.h",))
    options = {word.upper(): int(bool(getattr(attention, word))) for word in ("bias", "alibi", "softcap")}
    return part_of(name, "gemm_simt.cu", files, {**product.lowered.macros, **options, **own})


def _step(
    attention: Attention, product: _AttentionProduct, name: str, rooms: tuple[Arg, Arg], first: str, count: str
) -> Step:
    own, shared = ("q", "k") if name == "scores" else ("o", "v")
    m, n, k = ("SQ", "SK", "D") if name == "scores" else ("SQ", "DV", "SK")
    least = "SQ - SK" if attention.causal else "SQ - SK + 1 - window" if attention.window else "0 - SK"
    most = "SQ - SK + window - 1" if attention.window else "SQ"
    bias, *of_bias, slopes, _, _ = option_arguments(attention)
    args: tuple[Arg, ...] = (
        TensorArg(own), TensorArg(shared), rooms[0],
        *(ScalarArg("i32", size) for size in (m, n, k, count, first, "H", "H // HK")),
        *(ScalarArg("i64", stride) for side in (own, shared) for stride in strides_of(attention, side)),
        ScalarArg("i32", least), ScalarArg("i32", most),
        *(ScalarArg("f32", number) for number in ("scale", "softcap")),
        bias, *of_bias, slopes, rooms[1], ScalarArg("i32", "SK - SQ"),
    )  # fmt: skip
    c, gemm = product.config, product.gemm
    tiles = ceil(gemm.m / c["BM"]) * ceil(gemm.n / c["BN"])
    lowered = product.lowered
    grid = (f"{tiles} * ({count})", 1, 1)
    return Step(f"attention_{name}", args, grid, (lowered.threads, 1, 1), shared_bytes=lowered.shared_bytes)


def _requires(
    attention: Attention, scores: _AttentionProduct, values: _AttentionProduct, rounds: int
) -> Iterator[tuple[str, str]]:
    sizes = attention.sizes()
    for name in ("SQ", "SK", "D", "DV"):
        yield f"{name} == {sizes[name]}", f"{name} = {sizes[name]}, for which it was made"
    if rounds > 1:
        yield f"{rounds - 1} * ceil_div(B * H, {rounds}) < B * H", f"heads for each of {rounds} rounds"
    first, last = scores.lowered.macros, values.lowered.macros
    for name, width in zip("qkvo", (first["LOAD_A"], first["LOAD_B"], last["LOAD_B"], last["STORE"]), strict=True):
        apart = f"rows, heads and batches of {name} that lie multiples of {width} numbers apart"
        yield from ((f"{stride} % {width} == 0", apart) for stride in strides_of(attention, name) if width != 1)
