"""Processor time of making kernels by rules: a space (with its first sample), its default, an emission.

python benchmarks/compile_speed.py [--only resnet50] [--json benchmarks/results/compile_speed.json]

Every convolution of ResNet-50, Inception v3 and VGG-16, and every operator on rows. Filters of 1 x k and k x 1 are
lines of images. Nothing is built or run, so any target will do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from deepgen import targets
from deepgen.compiler.family import Rules
from deepgen.operators import OPERATORS, Operator
from harness import parser, run_main, save, table

TARGETS, LIMITS = ("cuda:sm_90", "x86:avx512", "x86:avx2"), {"space": 1.0, "default": 0.05, "emission": 0.1}
# H, CI, CO, k, stride, pad
RESNET = [(224, 3, 64, 7, 2, 3), (56, 64, 64, 1, 1, 0), (56, 64, 64, 3, 1, 1), (56, 64, 256, 1, 1, 0),
          (56, 256, 64, 1, 1, 0)] + [
    one for h, c in ((56, 128), (28, 256), (14, 512)) for one in (
        (h, 2 * c, c, 1, 1, 0), (h, c, c, 3, 2, 1), (h, 2 * c, 4 * c, 1, 2, 0), (h // 2, c, 4 * c, 1, 1, 0),
        (h // 2, 4 * c, c, 1, 1, 0), (h // 2, c, c, 3, 1, 1))]  # fmt: skip
VGG = [(224, 3, 64), (224, 64, 64), (112, 64, 128), (112, 128, 128), (56, 128, 256), (56, 256, 256), (28, 256, 512),
       (28, 512, 512), (14, 512, 512)]  # fmt: skip
INCEPTION = [(299, 3, 32, 3, 2, 0), (149, 32, 32, 3, 1, 0), (147, 32, 64, 3, 1, 1), (73, 64, 80, 1, 1, 0),
             (73, 80, 192, 3, 1, 0), (35, 48, 64, 5, 1, 2), (35, 64, 96, 3, 1, 1), (35, 96, 96, 3, 1, 1),
             (35, 288, 384, 3, 2, 0), (35, 96, 96, 3, 2, 0), (17, 192, 320, 3, 2, 0), (17, 192, 192, 3, 2, 0),
             (8, 448, 384, 3, 1, 1)] + [
    (h, ci, co, 1, 1, 0) for h, ci, co in (
        (35, 192, 64), (35, 192, 48), (35, 192, 32), (35, 256, 64), (35, 256, 48), (35, 288, 64), (35, 288, 48),
        (17, 768, 192), (17, 768, 128), (17, 768, 160), (8, 1280, 320), (8, 1280, 384), (8, 1280, 448), (8, 1280, 192),
        (8, 2048, 320), (8, 2048, 384), (8, 2048, 448), (8, 2048, 192))]  # fmt: skip
LINES = [
    (17, 128, 128, 7),
    (17, 128, 192, 7),
    (17, 160, 160, 7),
    (17, 160, 192, 7),
    (17, 192, 192, 7),
    (8, 384, 384, 3),
]
IMAGES = {"resnet50": RESNET, "inception_v3": INCEPTION, "vgg16": [(*one, 3, 1, 1) for one in VGG]}
ROWS = ("softmax", "layer_norm", "rms_norm", "mean", "var", "elementwise")


def cases() -> Iterator[tuple[str, Operator, str]]:
    for target in TARGETS:
        for dtype in ("f16", "f32"):
            for layout, line in (("nchw", "ncl"), ("nhwc", "nlc")):
                for network, images in IMAGES.items():
                    for sizes in images:
                        words = dict(zip(("H", "CI", "CO", "k", "stride", "pad"), sizes, strict=True), W=sizes[0], N=1)
                        yield _case(f"{network} {sizes}", "dilated_conv2d", target, dtype, layout, dilation=1, **words)
                for length, ci, co, k in LINES:
                    words = {"N": length, "L": length, "CI": ci, "CO": co, "k": k, "pad": k // 2}
                    yield _case(f"inception_v3 {(length, ci, co, k)}", "conv1d", target, dtype, line, **words)
            for name in ROWS:
                yield _case("rows", name, target, dtype, "", rows=4096, cols=1000)
            yield _case("rows", "scan", target, dtype, "", M=64, N=64, K=1000)


def _case(kind: str, name: str, target: str, dtype: str, layout: str, **words: Any) -> tuple[str, Operator, str]:
    named = {**words, "dtype": dtype, **({"layout": layout} if layout else {})}
    shown = f"{kind} {name} {dtype} {layout} on {target}"
    return " ".join(shown.split()), OPERATORS.get(name).make(named), target


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
