"""Are our convolutions ahead on untuned layers? Networks' layers, and drawn ones, as in any_shape.

    python benchmarks/any_conv.py --target cuda:native --seed 2 [--half 1 | --drawn] [--seconds 12:64] [--json FILE]

Every distinct layer of ResNet-50, Inception v3 and VGG-16 in f16 nhwc at batch 16; `--half 0`, for development, runs
every other one, `--half 1` the rest, and `--drawn` none. `--cases` (64) are drawn: half of them such layers, the others
with free sizes, batch 1 to 64, both layouts, f16 and bf16, including depthwise ones. The times of networks are added
up. On CPUs only the drawn ones run, of `--dtype` (f32, bf16, i8) and with less work.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from any_shape import Drawn, Result, measured, words_of_all
from deepgen.operators import OPERATORS, Conv2d, Operator
from deepgen.operators.words import shown
from harness import Options, run_main, table
from harness.cases import draw, networks, size

FORMATS, LAYOUTS, DEPTHWISE, FREE = ("f16", "bf16"), ("nhwc", "nchw"), 1 / 6, 1 / 2
FILTERS = (1, 1, 3, 3, 5, 7, (1, 7), (7, 1), (1, 3))
FEW = 4  # channels of a network's first layer
MOST_FLOPS, MOST_FLOPS_ON_CPU = 4e11, 1e10


def case(operator: Operator, *tags: str) -> Drawn:
    words = operator.parameters()
    first = ("first layer",) if words.get("CI", words.get("C")) <= FEW else ()
    return Drawn(
        operator, (words["layout"], *first, *tags), (operator.name, *(f"{n}={shown(v)}" for n, v in words.items()))
    )


def drawn(options: Options) -> list[Drawn]:
    layers = [layer for each in networks().values() for layer in each]
    formats, most = options.dtype or FORMATS, MOST_FLOPS_ON_CPU if options.target == "cpu" else MOST_FLOPS

    def make(chance: random.Random) -> Drawn:
        while True:
            batch, layout, kind = size(chance, 1, 64), chance.choice(LAYOUTS), chance.choice(formats)
            if chance.random() >= FREE:
                layer = replace(chance.choice(layers), n=batch, layout=layout, dtype=kind)
                if layer.flops() <= most:
                    return case(layer)
                continue
            side, k, depthwise = size(chance, 4, 112), chance.choice(FILTERS), chance.random() < DEPTHWISE
            pad = tuple(one // 2 for one in (k if isinstance(k, tuple) else (k, k)))
            words: dict[str, Any] = {"N": batch, "H": side, "W": side, "k": k, "stride": chance.choice((1, 1, 2)),
                                     "pad": pad, "layout": layout, "dtype": kind}  # fmt: skip
            channels = (
                {"C": size(chance, 8, 1024)} if depthwise else {one: size(chance, 3, 1024) for one in ("CI", "CO")}
            )
            operator = OPERATORS.get("depthwise_conv2d" if depthwise else "conv2d").make({**words, **channels})
            if operator.flops() <= most:
                return case(operator, *(("depthwise",) if depthwise else ()))

    return draw(options.seed, options.cases, make)


def sums(results: Sequence[Result]) -> list[tuple[object, ...]]:
    """For networks all of whose layers have a ratio: our milliseconds, and the speedup."""
    rows: list[tuple[object, ...]] = []
    for name, layers in networks().items():
        for seconds in sorted({one.seconds for one in results}):
            by_shape = {one.shape: one for one in results if one.seconds == seconds and one.ratio and one.time}
            own = [
                (count, by_shape[layer.describe()]) for layer, count in layers.items() if layer.describe() in by_shape
            ]
            ours = sum(count * (one.time or 0.0) for count, one in own)
            theirs = sum(count * (one.time or 0.0) * (one.ratio or 0.0) for count, one in own)
            rows.append((name, f"{seconds:g}", len(layers), len(own), ours * 1e3, theirs / ours if ours else None))
    return rows


def main() -> int:
    words = words_of_all(__doc__)
    words.add_argument("--half", type=int, choices=(0, 1), help="of the networks' layers [all]")
    words.add_argument("--drawn", action="store_true", help="no networks' layers")
    words.set_defaults(cases=64)
    options = words.options()
    layers: list[Conv2d] = list(dict.fromkeys(layer for each in networks().values() for layer in each))
    chosen = layers if options.half is None else layers[options.half :: 2]
    groups = {"layers": [case(layer, "layers") for layer in chosen], "drawn": drawn(options)}
    if options.target == "cpu" or options.drawn:
        del groups["layers"]
    results = measured(groups, options)
    print(table(("network", "seconds", "layers", "timed", "ms", "times as fast"), sums(results)))
    return 0


if __name__ == "__main__":
    run_main(main)
