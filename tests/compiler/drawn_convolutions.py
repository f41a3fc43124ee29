"""Random convolutions: every operator, with options for each dimension, groups, epilogues and packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import deepgen as dg
from deepgen.operators import OPERATORS, Operator
from deepgen.vocabulary.errors import BadInput

NAMES = ("conv1d", "conv2d", "conv2d", "conv3d", "dilated_conv2d", "depthwise_conv2d", "conv_transpose1d",
         "conv_transpose2d", "conv_transpose3d")  # fmt: skip
CHANNELS = (1, 2, 3, 4, 5, 7, 8, 8, 16, 16, 17, 20, 32, 33)
LENGTHS = {1: (1, 4, 9, 13, 21, 33), 2: (1, 3, 5, 7, 8, 9, 12), 3: (1, 2, 3, 4, 6)}
PACKED = ("OIhw4i16o4i", "OhwI64o4i", "OhwI4o4i", "hwOI2i8o", "OIhw8o4i", "ohwi", "oIhw2i", "Ohwi16o")


def random_convolution(random: Random, dtypes: Sequence[str] = ("f32", "f32", "f16", "bf16", "i8", "f64")) -> Operator:
    while True:
        name = random.choice(NAMES)
        try:
            return dg.operator(name, dtype=random.choice(dtypes), **_options(name, random))
        except BadInput:  # such as a filter that is larger than its input
            continue


def _options(name: str, random: Random) -> dict[str, Any]:
    words = {word.name: word for word in OPERATORS.get(name).words}
    dimensions = len(words["k"].sides)
    lengths, out = LENGTHS[dimensions], {"N": random.choice((1, 1, 2, 3))}
    out |= {letter: random.choice(lengths) for letter in "LDHW" if letter in words}
    out |= {channels: random.choice(CHANNELS) for channels in ("CI", "CO", "C") if channels in words}

    def each(*values: int) -> Any:
        """One value for all dimensions, or one for each."""
        if random.random() < 0.4:
            return random.choice(values)
        return tuple(random.choice(values) for _ in range(dimensions))

    out |= {"k": each(1, 1, 2, 3, 3, 5, 7), "stride": each(1, 1, 1, 2, 3), "pad": each(0, 0, 1, 2, 3)}
    if "dilation" in words:
        out["dilation"] = each(1, 1, 2, 3)
    if "out_pad" in words:
        out["out_pad"] = each(0, 0, 1)
    if "groups" in words:
        out["groups"] = random.choice((1, 2, 4) if name == "dilated_conv2d" else (1, 1, 1, 2))
    if "epilogue" in words:
        out["epilogue"] = random.choice(("none", "none", "bias", "relu", "bias,residual,relu"))
    if "weight_layout" in words and random.random() < 0.4:
        space = {1: "w", 2: "hw", 3: "dhw"}[dimensions]
        out["weight_layout"] = random.choice(PACKED).replace("hw", space)
    out["layout"] = random.choice(words["layout"].choices)
    return out
