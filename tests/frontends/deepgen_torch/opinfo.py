"""torch's own samples (OpInfo) for the operators that kernels serve, with and without a library in use.

    python tests/frontends/deepgen_torch/opinfo.py            # all samples; compiled, three of each
    python tests/frontends/deepgen_torch/opinfo.py --seed 1 --samples 2

Each sample is computed forward, backward, under vmap and compiled. The library has a kernel for everything.
"""

from __future__ import annotations

import argparse
import random
import sys
import unittest
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from stand_in import SERVED, Everything

import deepgen.torch as dt

OF_LAYERS = ("linear", "layer_norm", "conv2d", "scaled_dot_product_attention")
NAMES = ("mm", "bmm", "addmm", "softmax", *(f"nn.functional.{name}" for name in OF_LAYERS))
KINDS = (*SERVED, "conv2d", "dilated_conv2d", "depthwise_conv2d")
COMPILED = 3  # samples per operator: each takes seconds


def infos(names: Sequence[str]) -> list[Any]:
    if "expecttest" not in sys.modules:  # torch's tests subclass its TestCase; samples do not need it
        stand_in = ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    return [info for info in op_db if info.name in names]


def samples(info: Any, *, grad: bool) -> list[Any]:
    torch.manual_seed(0)
    return [*info.sample_inputs("cpu", torch.float32, requires_grad=grad)]


def forward(info: Any, sample: Any) -> Any:
    return info.op(sample.input, *sample.args, **sample.kwargs)


def backward(info: Any, sample: Any) -> Any:
    inputs = [one for one in (sample.input, *sample.args) if isinstance(one, torch.Tensor) and one.requires_grad]
    out = forward(info, sample)
    return (out, torch.autograd.grad(out, inputs, torch.ones_like(out), allow_unused=True))


def vmapped(info: Any, sample: Any) -> Any:
    both = torch.stack([sample.input.detach(), sample.input.detach() * 0.5])
    return torch.vmap(lambda one: info.op(one, *sample.args, **sample.kwargs))(both)


def compiled(info: Any, sample: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(info.op)(sample.input, *sample.args, **sample.kwargs)


WAYS: dict[str, tuple[Callable[[Any, Any], Any], bool]] = {
    "forward": (forward, False),
    "backward": (backward, True),
    "vmap": (vmapped, False),
    "compile": (compiled, False),
}


def differences(seed: int = 0, count: int = 0, names: Sequence[str] = NAMES) -> Iterator[tuple[str, str, int, str]]:
    """For each operator and way: the number of samples, and what was wrong. `count`: this many, drawn by the seed."""
    library = Everything(kinds=KINDS)
    for info in infos(names):
        for way, (run, grad) in WAYS.items():
            drawn = samples(info, grad=grad)
            most = min(count or len(drawn), COMPILED if way == "compile" else len(drawn))
            if most < len(drawn):
                drawn = random.Random(f"{seed} {info.name} {way}").sample(drawn, most)
            wrong = [text for sample in drawn if (text := _difference(run, info, sample, library))]
            yield f"{info.name} {info.variant_test_name}".strip(), way, len(drawn), "; ".join(wrong)


def _difference(run: Callable[[Any, Any], Any], info: Any, sample: Any, library: Everything) -> str:
    try:
        want = run(info, sample)
    except Exception:  # torch cannot compute it, with or without a library
        return ""
    try:
        with dt.use(library, race=False):  # type: ignore[arg-type]
            results = [run(info, sample) for _ in range(1 if run is compiled else 2)]
        for result in results:
            torch.testing.assert_close(result, want, rtol=1e-4, atol=1e-4)
    except Exception as error:
        return f"{tuple(sample.input.shape)}: {str(error).splitlines()[0]}"
    return ""


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("names", nargs="*", help=f"{', '.join(NAMES)} [all]")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--samples", type=int, default=0, help="of each operator and way [all]")
    options = words.parse_args()
    failed = 0
    for name, way, count, wrong in differences(options.seed, options.samples, options.names or NAMES):
        print(f"{name:32} {way:9} {count:3} samples  {wrong or 'as torch'}", flush=True)
        failed += bool(wrong)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
