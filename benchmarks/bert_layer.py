"""A layer like BERT's on this machine's processor through deepgen.torch, beside torch.

    python benchmarks/bert_layer.py record tune bench --dtype f32 --folder build/bert --json bert_layer.json

Hidden 768, 12 heads, MLP 3072, one sequence of 128 tokens, random weights. The bar in bf16, on a processor with AMX, is
1.3 times as fast as torch. `--threads` is for torch and for the kernels; by default both use every core. One layer
is run again and again, so its weights stay in caches: kernels are tuned with warm ones. The steps leave their results
in the folder, so each can be run by itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import model_stages  # noqa: E402
from common import run_main, save  # noqa: E402

HIDDEN, HEADS, MLP, TOKENS = 768, 12, 3072, 128
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
STEPS = ("record", "tune", "bench")


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and MLP, each added to its input and normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.up, self.down = nn.Linear(HIDDEN, MLP), nn.Linear(MLP, HIDDEN)
        self.first, self.second = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        shape = (batch, length, HEADS, HIDDEN // HEADS)
        q, k, v = (part(x).view(shape).transpose(1, 2) for part in (self.q, self.k, self.v))
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        x = self.first(x + self.o(seen.transpose(1, 2).reshape(batch, length, HIDDEN)))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


def made(dtype: str) -> Callable[[], Tensor]:
    torch.manual_seed(0)
    layer, x = Layer().to(DTYPES[dtype]), torch.randn(1, TOKENS, HIDDEN, dtype=DTYPES[dtype])
    return lambda: layer(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="+", choices=STEPS)
    parser.add_argument("--dtype", choices=(*DTYPES,), default="f32")
    parser.add_argument("--time-budget", type=float, default=240.0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("build/bert"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    threads: tuple[str, ...] = ()
    if given.threads is not None:
        torch.set_num_threads(given.threads)
        threads = ("--threads", str(given.threads))
    runs = {"layer": (lambda: made(given.dtype), 5)}
    work, library = given.folder / f"work-{given.dtype}.json", given.folder / "library"
    if "record" in given.steps:
        model_stages.record(runs, work)
    if "tune" in given.steps:
        model_stages.tune(work, library, given.time_budget, "cpu", "--warm", *threads)
    if "bench" in given.steps:
        results: dict[str, Any] = {
            "layer": model_stages.bench(runs, library, rounds=given.rounds, compiled=not given.no_compile, graphs=False)
        }
        if given.json is not None:
            save(given.json, results, dtype=given.dtype, threads=torch.get_num_threads())
        model_stages.check_not_slower(results["layer"])


if __name__ == "__main__":
    run_main(main)
