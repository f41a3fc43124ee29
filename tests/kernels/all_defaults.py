"""Defaults of all families on all operators and formats, on all probes: none may be judged wrong.

python tests/kernels/all_defaults.py [--only gemm]       on this processor, or with --target cuda:native on its GPU
python tests/kernels/all_defaults.py --target cuda:sm_90a    emulated on this processor

A kernel with instructions that are not emulated is reported and not counted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

sys.path[:0] = [str(Path(__file__).parent)]

import attention_emulation  # noqa: E402
import hopper_emulation  # noqa: E402
import simt_emulation  # noqa: E402

import deepgen as dg  # noqa: E402
from deepgen import generators, targets  # noqa: E402
from deepgen.libraries.racing import Runners, opened  # noqa: E402
from deepgen.operators import OPERATORS, Attention, Operator  # noqa: E402
from deepgen.run.call.plans import evaluate  # noqa: E402
from deepgen.run.measure.base import Task  # noqa: E402
from deepgen.targets import Target  # noqa: E402
from deepgen.toolchains import build_once  # noqa: E402
from deepgen.vocabulary import DeepgenError, Kernel  # noqa: E402

SIZES = {"k": 3, "H": 9, "W": 10, "D": 6, "L": 33, "CI": 8, "CO": 16, "C": 8, "N": 2, "n": 2, "pad": 1}
OTHERS = (24, 40)  # for sizes with other names, alternately
PRODUCTS = ({"M": 40, "N": 24, "K": 40}, {"M": 8, "N": 256, "K": 1024, "layout": "nt"})
ATTENTION = {"B": 2, "H": 4, "HK": 2, "SQ": 17, "SK": 40, "D": 16, "DV": 24}
FOUR_BITS = {"M": 17, "N": 40, "K": 200}
GROUPED = {"E": 3, "M": 50, "N": 24, "K": 40}
OWN: dict[str, tuple[dict[str, Any], ...]] = {
    "gemm": (
        *PRODUCTS,
        {**PRODUCTS[0], "epilogue": "silu(x * scale[m] + bias[n]) * up[m, n]"},
        {**PRODUCTS[0], "epilogue": "gelu(x + bias[n]) * y"},
        {**PRODUCTS[0], "K": 300, "layout": "nt", "scales": "1x128,128x128"},
    ),
    "attention": (ATTENTION, {**ATTENTION, "SQ": 1}, {**ATTENTION, "lengths": True}),
    "attention_backward": ({word: size for word, size in ATTENTION.items() if word != "DV"},),
    "gemm_w4": (
        FOUR_BITS,
        {**FOUR_BITS, "weight_layout": "packed"},
        {**FOUR_BITS, "G": 32, "zeros": True, "weight_layout": "packed"},
    ),
    "grouped_gemm": (GROUPED, {**GROUPED, "layout": "tn"}),
}
ONES = ("stride", "dilation", "groups")
# With special instructions, of which those on 16 bits are emulated.
ON_HOPPER = ("sm90_gemm", "sm90_conv", "sm90_pointwise", "sm90_grouped")
MOST_THREADS = 8192  # for these
Wrong = Callable[[str], str]  # what is wrong with a kernel on a probe, in words


def operators(only: str) -> Iterator[Operator]:
    """Each operator in each of its formats, small; products also with epilogues."""
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
        for sizes, dtype, epilogue in product(OWN.get(name, (values,)), dtypes, epilogues):
            extra = {"dtype": dtype, "epilogue": epilogue}
            try:
                yield dg.operator(name, **{**{word: value for word, value in extra.items() if value}, **sizes})
            except DeepgenError as error:
                print(f"not made: {name} {dtype}: {error}"[:200], flush=True)


def checked(
    operator: Operator, target: Target, judged: Callable[[Kernel, Operator], Wrong], count: Counter[str]
) -> None:
    """The default of each family on all probes."""
    for family in generators.serving(operator, target):
        what = f"{family.name}: {operator.describe()}"
        kernel = family.emit(operator, target, dict(family.default(operator, target)))
        try:
            wrong = judged(kernel, operator)
        except AssertionError as error:
            count["not emulated"] += 1
            print(f"not emulated: {what}: {error}"[:300], flush=True)
            continue
        count["kernels"] += 1
        count[family.name] += 1
        for probe in operator.probes():
            count["checks"] += 1
            if why := wrong(probe):
                count["called wrong"] += 1
                print(f"WRONG {what} ({probe}): {why}"[:300], flush=True)


def emulated(parent: Path, kernel: Kernel, operator: Operator) -> Wrong:
    """Built for the emulation that its instructions need."""
    folder = Path(mkdtemp(dir=parent))
    if isinstance(operator, Attention) and kernel.name == "sm90_attention":
        return partial(attention_emulation.wrong, kernel, operator, folder)
    if kernel.name in ON_HOPPER:
        return on_hopper(kernel, operator, folder)
    for package in ("deepgen.compiler.text", "deepgen.kernels.shared", "deepgen.kernels.shared.dialect"):
        for file in resources.files(package).iterdir():
            if file.name.endswith(".h") and file.name not in simt_emulation.dialect():
                (folder / file.name).write_text(file.read_text())
    header = resources.files("deepgen.kernels.gemm.mma_gemm").joinpath("emulate_mma.h")
    (folder / header.name).write_text(header.read_text())
    return partial(simt_emulation.wrong, kernel, simt_emulation.build(kernel, folder), operator)


def on_hopper(kernel: Kernel, operator: Operator, folder: Path) -> Wrong:
    step = kernel.plan.steps[0]
    blocks, threads = (int(evaluate(size[0], operator.scalars())) for size in (step.grid, step.block))
    formats = {tensor.dtype.name for tensor in operator.tensors()}
    assert len(kernel.plan.steps) == 1 and blocks * threads <= MOST_THREADS, "several steps or many blocks"
    assert formats <= {"bf16", "f16", "i32"}, "other formats than bf16 and f16"
    library = hopper_emulation.build(kernel, folder)

    def wrong(probe: str) -> str:
        result = hopper_emulation.run(kernel, library, operator, probe)
        return "" if result.ok else str(result)

    return wrong


def run(target: Target, runners: Runners, kernel: Kernel, operator: Operator) -> Wrong:
    """Built and run on the device, like finalists."""
    artifact = build_once(kernel, target)

    def wrong(probe: str) -> str:
        measured = runners.on(Task(operator, target)).verify(kernel, artifact, 0, probe)
        return "" if measured.ok else f"{measured.verdict.value}: {measured.detail}"

    return wrong


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--target", default="cpu")
    words.add_argument("--only", default="", help="operators with this in their names")
    words.add_argument("--part", default="0/1", help="of the operators, such as 2/4: the third of four parts")
    options = words.parse_args()
    part, parts = map(int, options.part.split("/"))
    target, began, count = targets.resolve(options.target), time.monotonic(), Counter[str]()
    emulates = target.kind == "cuda" and "native" not in options.target
    with TemporaryDirectory() as folder, opened() as runners:
        judged = partial(emulated, Path(folder)) if emulates else partial(run, target, runners)
        for operator in [*operators(options.only)][part::parts]:
            try:
                checked(operator, target, judged, count)
            except DeepgenError as error:
                print(f"no family: {operator.describe()}: {error}"[:200], flush=True)
    print(f"{dict(count)} on {options.target}, {time.monotonic() - began:.0f} s")
    return int(count["called wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
