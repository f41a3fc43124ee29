"""Defaults of all families for GPUs on all operators and formats, emulated on a CPU: none is called wrong on any probe.

python tests/kernels/emulated_defaults.py [--target cuda:sm_90a] [--only gemm]

A kernel with instructions that the emulation does not have is named and not counted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path[:0] = [str(Path(__file__).parent)]

import simt_emulation  # noqa: E402

import deepgen as dg  # noqa: E402
from deepgen import generators, targets  # noqa: E402
from deepgen.operators import OPERATORS, Operator  # noqa: E402
from deepgen.targets import Target  # noqa: E402
from deepgen.vocabulary import DeepgenError  # noqa: E402

SIZES = {"k": 3, "H": 9, "W": 10, "D": 6, "L": 33, "CI": 8, "CO": 16, "C": 8, "N": 2, "n": 2, "pad": 1}
OTHERS = (24, 40)  # of sizes by other names, in turns
PRODUCTS = ({"M": 40, "N": 24, "K": 40}, {"M": 8, "N": 256, "K": 1024, "layout": "nt"})
ONES = ("stride", "dilation", "groups")
UNABLE = ("sm90_gemm",)  # of Hopper's own instructions


def operators(only: str) -> Iterator[Operator]:
    """Each in each of its formats, small; products also with what follows them."""
    for name in sorted(OPERATORS.names()):
        words = {word.name: word for word in getattr(OPERATORS.get(name), "words", ())}
        if only not in name:
            continue
        needed = [word.name for word in words.values() if word.default is None and word.kind == "size"]
        values: dict[str, Any] = {
            word: 1 if word in ONES else SIZES.get(word, OTHERS[place % 2]) for place, word in enumerate(needed)
        }
        dtypes = words["dtype"].choices if "dtype" in words else (None,)
        epilogues = ("bias,gelu", None) if "epilogue" in words else (None,)
        for sizes, dtype, epilogue in product(PRODUCTS if name == "gemm" else (values,), dtypes, epilogues):
            extra = {"dtype": dtype, "epilogue": epilogue}
            try:
                yield dg.operator(name, **sizes, **{word: value for word, value in extra.items() if value})
            except DeepgenError as error:
                print(f"not made: {name} {dtype}: {error}"[:200], flush=True)


def checked(operator: Operator, target: Target, folder: Path, count: Counter[str]) -> None:
    """The default of each family on all probes."""
    for number, family in enumerate(generators.serving(operator, target)):
        what, place = f"{family.name}: {operator.describe()}", folder / str(number)
        if family.name in UNABLE:
            count["not emulated"] += 1
            continue
        place.mkdir()
        for package in ("deepgen.compiler.text", "deepgen.kernels.shared", "deepgen.kernels.shared.dialect"):
            for file in resources.files(package).iterdir():
                if file.name.endswith(".h") and file.name not in simt_emulation.dialect():
                    (place / file.name).write_text(file.read_text())
        kernel = family.emit(operator, target, dict(family.default(operator, target)))
        try:
            header = resources.files("deepgen.kernels.gemm.mma_gemm").joinpath("emulate_mma.h")
            (place / header.name).write_text(header.read_text())
            library = simt_emulation.build(kernel, place)
        except AssertionError as error:
            count["not emulated"] += 1
            print(f"not emulated: {what}: {error}"[:300], flush=True)
            continue
        count["kernels"] += 1
        for probe in operator.probes():
            count["checks"] += 1
            if wrong := simt_emulation.wrong(kernel, library, operator, probe):
                count["called wrong"] += 1
                print(f"WRONG {what}: {wrong}"[:300], flush=True)


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--target", default="cuda:sm_90a")
    words.add_argument("--only", default="", help="operators with this in their names")
    options = words.parse_args()
    target, began, count = targets.resolve(options.target), time.monotonic(), Counter[str]()
    for operator in operators(options.only):
        with TemporaryDirectory() as folder:
            try:
                checked(operator, target, Path(folder), count)
            except DeepgenError as error:
                print(f"no family: {operator.describe()}: {error}"[:200], flush=True)
    print(f"{dict(count)} on {options.target}, {time.monotonic() - began:.0f} s")
    return int(count["called wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
