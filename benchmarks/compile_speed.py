"""CPU time of generating kernels by rules: a space (with its first sample), its default, an emission.

python benchmarks/compile_speed.py [--only resnet50] [--json benchmarks/results/compile_speed.json]

Every convolution of ResNet-50, Inception v3 and VGG-16, and every operator on rows. Nothing is built or run, so any
target will do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from deepgen import targets
from deepgen.compiler.family import Rules
from deepgen.operators import OPERATORS, Operator
from harness import parser, run_main, save, table
from harness.cases import networks

TARGETS, LIMITS = ("cuda:sm_90", "x86:avx512", "x86:avx2"), {"space": 1.0, "default": 0.05, "emission": 0.1}
ROWS = ("softmax", "layer_norm", "rms_norm", "mean", "var", "elementwise")


def cases() -> Iterator[tuple[str, Operator, str]]:
    for target in TARGETS:
        for dtype in ("f16", "f32"):
            for layout in ("nchw", "nhwc"):
                for network, layers in networks().items():
                    for layer in layers:
                        words = {**layer.parameters(), "N": 1}
                        kind = f"{network} {layer.describe().partition(layer.layout)[2]}"
                        yield _case(kind, layer.name, target, words, dtype=dtype, layout=layout)
            for name in ROWS:
                yield _case("rows", name, target, {"rows": 4096, "cols": 1000}, dtype=dtype)
            yield _case("rows", "scan", target, {"M": 64, "N": 64, "K": 1000}, dtype=dtype)


def _case(kind: str, name: str, target: str, words: Mapping[str, Any], **more: str) -> tuple[str, Operator, str]:
    shown = f"{kind} {name} {' '.join(more.values())} on {target}"
    return " ".join(shown.split()), OPERATORS.get(name).make({**words, **more}), target


def measured(operator: Operator, target: str) -> dict[str, float]:
    rules, place, seconds = Rules(), targets.resolve(target), dict.fromkeys(LIMITS, 0.0)

    def timed(what: str, call: Callable[[], Any]) -> Any:
        begun = time.process_time()
        result = call()
        seconds[what] = max(seconds[what], time.process_time() - begun)
        return result

    _, drawn = timed("space", lambda: (space := rules.space(operator, place), space.sample(2, seed=0)))
    default = timed("default", lambda: rules.default(operator, place))
    for config in (default, *drawn):
        timed("emission", partial(rules.emit, operator, place, config))
    return seconds


def main() -> None:
    options = parser(__doc__).options()
    results = {one[0]: measured(*one[1:]) for one in options.chosen(cases(), lambda one: one[0])}
    for what, limit in LIMITS.items():
        over = sum(seconds[what] > limit for seconds in results.values())
        print(f"\n{what}: {over} of {len(results)} take more than {limit} s of processor time")
        worst = sorted(results, key=lambda case: -results[case][what])[:5]
        print(table(["worst", "s"], [(case, f"{results[case][what]:.3f}") for case in worst]))
    save(options.json, {case: [round(s, 4) for s in seconds.values()] for case, seconds in results.items()})


if __name__ == "__main__":
    run_main(main)
