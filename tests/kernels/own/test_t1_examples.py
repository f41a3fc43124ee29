"""The kernels of examples/t1: correct at every tested config, and built for a GPU from the hub's files."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepgen import targets
from deepgen.frontends import formats
from deepgen.operators.base import Array
from deepgen.vocabulary import TensorArg

EXAMPLES = Path(__file__).parents[3] / "examples" / "t1"
COMPILER = next((found for name in ("clang++-19", "clang++", "g++") if (found := shutil.which(name))), None)
CONFIGS = int(os.environ.get("DEEPGEN_T1_CONFIGS", "1"))  # each additional one takes about a second
HEADER = Path(__file__).with_name("plain_cuda.h")
# A launch through global variables: fibers start without arguments.
HARNESS = """
#include "plain_cuda.h"
#include "{source}"
static void** given;
static void body() {{ {entry}({passed}); }}
extern "C" void run(void** arguments, int gx, int gy, int bx, int by) {{
    given = arguments;
    fibers::launch(body, {{gx, gy, 1}}, {{bx, by, 1}});
}}
"""


def convolved(tensors: dict[str, Array], size: dict[str, int]) -> Array:
    height, width = size["image_height"], size["image_width"]
    image = tensors["input_image"].reshape(height + 14, width + 14).astype(np.float64)
    weights = tensors["d_filter"].reshape(15, 15)
    return sum(image[i : i + height, j : j + width] * weights[i, j] for i in range(15) for j in range(15))  # type: ignore[return-value]


def heated(tensors: dict[str, Array], size: dict[str, int]) -> Array:
    shape = size["grid_height"], size["grid_width"]
    heat = tensors["temp"].reshape(shape).astype(np.float64)
    power = tensors["power"][: heat.size].reshape(shape)
    around = np.pad(heat, 1, mode="edge")
    vertical = around[2:, 1:-1] + around[:-2, 1:-1] - 2 * heat
    horizontal = around[1:-1, 2:] + around[1:-1, :-2] - 2 * heat
    return heat + 21.845333 * (power + 0.1 * vertical + 0.1 * horizontal + (80 - heat) * 3.0517578579)


def multiplied(tensors: dict[str, Array], size: dict[str, int]) -> Array:
    a, b = (tensors[name].reshape(size["k"], -1).astype(np.float64) for name in "ab")
    return (a.T @ b).T


def dedispersed(tensors: dict[str, Array], size: dict[str, int]) -> Array:
    samples, dispersions = size["samples"], size["dispersions"]
    rows = tensors["input_samples"].reshape(size["channels"], -1).astype(np.float64)
    found = np.zeros((dispersions, samples))
    for dm in range(dispersions):
        for row, shift in zip(rows, tensors["shifts"], strict=True):
            delay = int(np.float32(dm) * shift)
            found[dm] += row[delay : delay + samples]
    return found


# The reference, the output, macros and scalars of a smaller problem, its extent, and the elements of each tensor.
CASES: dict[str, Any] = {
    "convolution": (convolved, "output_image", {"image_width": 150, "image_height": 37}, (150, 37), {
        "output_image": 150 * 37, "input_image": 164 * 51, "d_filter": 225}),
    "hotspot": (heated, "temp_dst", {"grid_width": 190, "grid_height": 45}, (190, 45), {
        "power": 200 * 50, "temp": 190 * 45, "temp_dst": 190 * 45}),
    "gemm": (multiplied, "c", {"m": 256, "n": 128, "k": 64}, (256, 128), {
        "a": 64 * 256, "b": 64 * 128, "c": 128 * 256}),
    "dedispersion": (dedispersed, "output_arr", {"samples": 75, "dispersions": 530, "channels": 3, "most_shift": 170},
        (75, 530), {"input_samples": 3 * 245, "output_arr": 75 * 530, "shifts": 3}),
}  # fmt: skip


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed, so kernels cannot be emulated")
@pytest.mark.parametrize("name", CASES)
def test_every_config_computes_the_same_right_answer(name: str, tmp_path: Path) -> None:
    kernel = formats.read(EXAMPLES / f"{name}.T1.json").kernel
    where, operator = targets.resolve("cuda:sm_90a"), kernel.operator()
    configs = kernel.family.space(operator, where).sample(CONFIGS, 3)
    for config in configs:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        assert_right(name, kernel.family.emit(operator, where, config), config, folder)


def assert_right(name: str, emitted: Any, config: dict[str, Any], folder: Path) -> None:
    reference, output, size, extent, elements = CASES[name]
    rng = np.random.default_rng(1)
    scale = {"shifts": 0.3, "temp": 324.0}
    tensors = {n: (rng.random(count) * scale.get(n, 1)).astype(np.float32) for n, count in elements.items()}
    tensors[output][:] = np.nan
    step = emitted.plan.steps[0]
    scalars = {"Rx_1": 0.1, "Ry_1": 0.1, "Rz_1": 3.0517578579, "step_div_cap": 21.845333}
    held = []
    for place in step.args:
        if isinstance(place, TensorArg):
            held.append(ctypes.c_void_p(tensors[place.tensor].ctypes.data))
        else:
            integer = place.value in size
            held.append(ctypes.c_int(size[place.value]) if integer else ctypes.c_float(scalars[place.value]))
    library = compiled(emitted, size, held, folder)
    for constant in emitted.plan.constants:
        to = getattr(library, f"symbol_{constant.symbol}")
        to.restype = ctypes.c_void_p
        ctypes.memmove(to(), tensors[constant.tensor].ctypes.data, tensors[constant.tensor].nbytes)
    pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(one) for one in held))
    tile = (
        [config["MWG"], config["NWG"]]
        if name == "gemm"
        else [config[f"block_size_{axis}"] * config[f"tile_size_{axis}"] for axis in "xy"]
    )
    blocks = [-(-whole // one) for whole, one in zip(extent, tile, strict=True)]
    library.run(pointers, *blocks, *step.block[:2])
    want = reference(tensors, size).ravel()
    np.testing.assert_allclose(tensors[output], want, rtol=1e-4, atol=1e-3 * np.abs(want).max(), err_msg=str(config))


def compiled(emitted: Any, size: dict[str, int], held: list[Any], folder: Path) -> ctypes.CDLL:
    """The kernel as a library for this machine, with macros set to the smaller problem."""
    folder.mkdir()
    source = emitted.sources[0]
    (folder / source.name).write_text(source.text)
    kinds = {ctypes.c_void_p: "float*", ctypes.c_int: "int", ctypes.c_float: "float"}
    passed = ", ".join(f"*({kinds[type(one)]}*)given[{i}]" for i, one in enumerate(held))
    text = HARNESS.format(source=source.name, entry=emitted.plan.steps[0].entry, passed=passed)
    symbols = [c.symbol for c in emitted.plan.constants]
    text += "".join(f'extern "C" void* symbol_{s}() {{ return {s}; }}\n' for s in symbols)
    (folder / "harness.cpp").write_text(text)
    kept = [flag for flag in emitted.flags if flag.startswith("-D") and flag[2:].split("=")[0] not in size]
    flags = [*kept, *(f"-D{name}={value}" for name, value in size.items() if name not in ("m", "n", "k"))]
    command = [str(COMPILER), "-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-I", str(HEADER.parent), *flags]
    made = subprocess.run(
        [*command, "-o", "harness.so", "harness.cpp"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr[:2000]
    return ctypes.CDLL(str(folder / "harness.so"))
