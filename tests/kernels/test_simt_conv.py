"""Convolutions by simt_gemm's source: correct on a CPU for every operator, stride, padding and epilogue."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from math import log
from pathlib import Path
from random import Random
from statistics import correlation, fmean
from typing import Any

import pytest
import simt_emulation as simt

import deepgen as dg
from deepgen import generators, targets
from deepgen.kernels.conv2d.simt_conv import SimtConv
from deepgen.operators import OPERATORS, Operator, conv2d
from deepgen.vocabulary import Source

FAMILY = SimtConv()
HOPPER, AMD, H200 = (targets.resolve(name) for name in ("cuda:sm_90a", "hip:gfx1100", "cuda:h200"))
assert isinstance(HOPPER, targets.Cuda)
CHIP = replace(HOPPER, multiprocessors=4)  # so that blocks share tiles
NAMES = ("conv1d", "conv2d", "dilated_conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
needs_compiler = pytest.mark.skipif(simt.COMPILER is None, reason=simt.NO_COMPILER)


def _drawn(random: Random) -> Operator:
    """Any filter, stride and padding; tiles that are never full; pixel classes without any tap."""
    name = random.choice(NAMES)
    words = {word.name: word for word in OPERATORS.get(name).words}
    dimensions, groups = len(words["k"].sides), random.choice([1, 1, 1, 2])

    def each(*values: int) -> Any:
        return (
            tuple(random.choice(values) for _ in range(dimensions)) if random.random() < 0.6 else random.choice(values)
        )

    numbers: dict[str, Any] = {"k": each(1, 2, 3, 4), "stride": each(1, 2, 3), "pad": each(0, 1, 2)}
    numbers |= {letter: random.randint(4, 9 if dimensions == 3 else 19) for letter in "LDHW" if letter in words}
    numbers |= {"N": random.randint(1, 3), "layout": words["layout"].choices[1]}
    if name != "conv2d":
        numbers |= {"dilation": each(1, 2), "groups": groups}
        numbers["epilogue"] = random.choice(["none", "none", "bias,relu", "bias", "residual,silu"])
    else:
        groups = 1
    channels = {"CI": groups * random.choice([1, 3, 5, 8, 16]), "CO": groups * random.choice([1, 3, 7, 8, 17, 32, 48])}
    try:
        return dg.operator(name, **numbers, **channels)
    except dg.BadInput:
        return _drawn(random)


@needs_compiler
@pytest.mark.parametrize("seed", range(10))
def test_drawn_convolutions_are_right(seed: int, tmp_path: Path) -> None:
    operator, chip = _drawn(Random(seed)), AMD if seed % 5 == 4 else CHIP
    config = FAMILY.space(operator, chip).sample(1, seed=seed)[0] if seed % 3 else FAMILY.default(operator, chip)
    kernel = FAMILY.emit(operator, chip, config)
    library = simt.build(kernel, tmp_path)
    probes = [probe for probe in ("normal", "special") if probe in operator.probes()]
    assert not any(simt.wrong(kernel, library, operator, probe) for probe in probes), config


@needs_compiler
def test_a_binary_serves_other_numbers_of_images(tmp_path: Path) -> None:
    first = conv2d(1, 9, 11, 3, 16, 3, stride=2, pad=1, layout="nchw")
    kernel = FAMILY.emit(first, CHIP, FAMILY.default(first, CHIP))
    assert simt.wrong(kernel, simt.build(kernel, tmp_path), replace(first, n=3)) == ""
    assert {"CI == 3", "H == 9"} <= {condition for condition, _ in kernel.plan.requires}


@needs_compiler
def test_classes_of_another_length_than_the_longest_end_where_they_should(tmp_path: Path) -> None:
    """The longest class fills whole steps, so guards could be wrongly omitted for all."""
    words = {"N": 1, "H": 8, "W": 8, "CI": 2, "CO": 7, "k": 4, "stride": (3, 1), "dilation": (2, 1), "layout": "nchw"}
    operator = dg.operator("conv_transpose2d", **words)
    (config,) = FAMILY.space(operator, CHIP).restrict({"BK": 16, "FIXUP": "none"}).sample(1, seed=1)
    kernel = FAMILY.emit(operator, CHIP, config)
    assert simt.wrong(kernel, simt.build(kernel, tmp_path), operator) == ""


@needs_compiler
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("conv_transpose1d", {"L": 37, "k": 3, "stride": 2, "pad": 1, "dilation": 2, "out_pad": 1}),
        ("conv_transpose2d", {"H": 5, "W": 9, "k": 3, "stride": 5, "pad": 1, "dilation": 2, "groups": 2}),
        ("conv_transpose2d", {"H": 6, "W": 21, "k": (3, 5), "stride": (2, 3), "pad": (1, 2), "dilation": (2, 1)}),
        (
            "conv_transpose3d",
            {"D": 2, "H": 3, "W": 4, "k": (1, 3, 2), "stride": (1, 2, 3), "epilogue": "residual,silu"},
        ),
        ("conv_transpose2d", {"H": 1, "W": 1, "k": 1, "stride": 7, "out_pad": 2, "epilogue": "bias,relu"}),
    ],
)
def test_whole_rows_of_all_classes_are_stored(name: str, words: dict[str, Any], tmp_path: Path) -> None:
    """Rows that end within a class, classes without taps, and a result smaller than the stride."""
    layout = {"1d": "ncl", "2d": "nchw", "3d": "ncdhw"}[name[-2:]]
    operator = dg.operator(name, **{"N": 2, "CI": 16, "CO": 26, "layout": layout, **words})
    space = FAMILY.space(operator, CHIP)
    for seed, more in enumerate(({"COPY": "async"}, {"COPY": "registers"}, {"BK": 8, "BN": 16})):
        (config,) = space.restrict({"ROWS_WHOLE": True, **more}).sample(1, seed=seed)
        kernel = FAMILY.emit(operator, CHIP, config)
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert simt.wrong(kernel, simt.build(kernel, folder), operator) == "", config


@needs_compiler
@pytest.mark.parametrize(
    ("words", "run"),
    [
        ({"H": 6, "W": 10, "k": 1}, 4),  # neighbours go on across rows
        ({"H": 9, "W": 10, "k": (3, 1), "pad": (1, 0), "stride": (2, 1)}, 2),
        ({"H": 9, "W": 12, "k": (3, 1), "dilation": (3, 1), "CI": 6}, 4),
        ({"H": 9, "W": 12, "k": 1, "pad": (0, 1)}, 1),
    ],
)
@pytest.mark.parametrize("copy", ["async", "registers"])
def test_pixels_that_stay_neighbours_are_loaded_together(
    words: dict[str, Any], run: int, copy: str, tmp_path: Path
) -> None:
    operator = dg.operator("dilated_conv2d", **{"N": 2, "CI": 16, "CO": 24, "layout": "nchw", **words})
    space = FAMILY.space(operator, CHIP)
    assert max(next(knob.values for knob in space.knobs if knob.name == "LOAD_B")) == run
    (config,) = space.restrict({"LOAD_B": run, "COPY": copy, "BM": 16}).sample(1, seed=run)
    kernel = FAMILY.emit(operator, CHIP, config)
    assert simt.wrong(kernel, simt.build(kernel, tmp_path), operator) == "", config


@needs_compiler
@pytest.mark.parametrize(
    ("wrong", "instead", "says"),
    [
        ("if (GUARD_H) all &=", "if (GUARD_H) all |=", "outside of every buffer"),
        ("(!GUARDED || line(i) < left) ? load_line", "true ? load_line", "outside"),
        ("TRANSPOSED ?", "!TRANSPOSED ?", "(normal)"),
        ("w >= OUT_W) continue", "w > OUT_W) continue", "twice"),
    ],
)
def test_a_mistake_in_a_kernel_is_caught(wrong: str, instead: str, says: str, tmp_path: Path) -> None:
    words = {"N": 1, "H": 6, "W": 7, "CI": 3, "CO": 8, "k": 3, "stride": 2, "pad": 1, "layout": "nchw"}
    operator = dg.operator("conv_transpose2d", **words)
    config = {**FAMILY.default(operator, CHIP), "BK": 8, "ROWS_WHOLE": False}
    kernel = FAMILY.emit(operator, CHIP, config)
    assert any(wrong in one.text for one in kernel.sources)
    sources = tuple(Source(one.name, one.text.replace(wrong, instead)) for one in kernel.sources)
    broken = replace(kernel, sources=sources)
    assert says in simt.wrong(broken, simt.build(broken, tmp_path), operator)


def test_it_comes_first_where_filters_are_many() -> None:
    assert generators.find(conv2d(1, 9, 9, 4, 16, 3, layout="nchw"), HOPPER).name == "simt_conv"
    assert generators.find(conv2d(1, 9, 9, 4, 4, 3, layout="nchw"), HOPPER).name != "simt_conv"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"dtype": "f16"}, "f32"),
        ({"layout": "nhwc"}, "channels first"),
        ({"k": 33}, "32 taps"),
        ({"N": 2**26}, "32-bit"),
        ({"epilogue": "scale"}, "no step scale"),
    ],
)
def test_what_it_cannot_do_it_refuses_in_words(words: dict[str, Any], says: str) -> None:
    usual: dict[str, Any] = {"N": 1, "H": 64, "W": 64, "CI": 4, "CO": 8, "k": 3, "layout": "nchw", "dilation": 1}
    assert says in (FAMILY.refuses(dg.operator("dilated_conv2d", **usual | words), HOPPER) or "")


def _places(times: list[float]) -> list[int]:
    return [sorted(times).index(time) for time in times]


def test_what_the_model_takes_for_the_fastest_is_nearly_the_fastest_of_those_that_were_timed() -> None:
    timings = json.loads((Path(__file__).parent / "simt_conv_timings.json").read_text())
    reached, predicted, ordered = [], [], []
    for row in timings["convolutions"]:
        words = {word: tuple(value) if isinstance(value, list) else value for word, value in row["words"].items()}
        operator = dg.operator(row["operator"], dtype="f32", **words)
        configs = [{**timings["same"], **dict(zip(timings["knobs"], values, strict=True))} for values in row["configs"]]
        chosen = [{knob: value for knob, value in config.items() if value is not None} for config in configs]
        times = [FAMILY.modelled_seconds(operator, H200, config) or 0.0 for config in chosen]
        reached.append(min(row["us"]) / row["us"][times.index(min(times))])
        predicted.append(times[row["us"].index(min(row["us"]))] * 1e6 / min(row["us"]))
        ordered.append(correlation(_places(times), _places(row["us"])))
    assert fmean(map(log, reached)) > log(0.98) and min(reached) > 0.87
    assert sum(share > 0.95 for share in reached) >= 27
    assert fmean(ordered) > 0.78
    assert abs(fmean(map(log, predicted))) < 0.1


def test_the_default_is_the_fastest_by_the_model_also_where_others_of_its_tile_are_not_admissible() -> None:
    words = {"N": 2, "D": 96, "H": 96, "W": 96, "CI": 48, "CO": 24, "k": 3, "layout": "ncdhw"}
    operator = dg.operator("conv_transpose3d", **words)
    first, *others = islice(FAMILY.ranked(operator, H200), 12)
    space, inadmissible = FAMILY.space(operator, H200), {**first, "TM": 8, "TN": 8, "COPY": "async", "STAGES": 2}
    assert first == FAMILY.default(operator, H200)
    assert (first["BM"], first["BN"], first["BK"]) == (32, 128, 16) and space.explain(inadmissible)
    times = [FAMILY.modelled_seconds(operator, H200, config) or 0.0 for config in (first, *others)]
    assert times[0] == min(times)
