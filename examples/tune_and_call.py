"""Tune a small GEMM on this machine, call the winner on numpy arrays, and look at what was tried.

python examples/tune_and_call.py
"""

from __future__ import annotations

import numpy as np

import deepgen as dg


def main() -> None:
    operator = dg.gemm(192, 256, 128, layout="nt")
    study = dg.tune(operator, target="cpu", trials=6)

    kernel = study.best().load()
    rng = np.random.default_rng(1)
    a = rng.standard_normal((192, 128), dtype=np.float32)
    b = rng.standard_normal((256, 128), dtype=np.float32)
    np.testing.assert_allclose(kernel(a, b), a @ b.T, rtol=1e-3, atol=1e-3)

    # Sizes are run-time arguments: the same binary serves other shapes.
    tall = rng.standard_normal((500, 77), dtype=np.float32)
    wide = rng.standard_normal((30, 77), dtype=np.float32)
    np.testing.assert_allclose(kernel(tall, wide), tall @ wide.T, rtol=1e-3, atol=1e-3)

    for trial in study.top(3):
        assert trial.seconds is not None
        print(f"trial {trial.id}: {operator.flops() / trial.seconds / 1e9:6.1f} GFLOP/s  {dict(trial.config)}")


if __name__ == "__main__":
    main()
