"""A layer that no library provides: RMS norm, a learned scale and SiLU, as one kernel.

An expression defines one element of the result. deepgen derives the reference, the tolerance and the kernels.

    python examples/fused_layer.py
"""

from __future__ import annotations

import numpy as np

import deepgen as dg

ROWS, COLUMNS = 256, 512


def layer() -> object:
    x, scale = dg.tensor("x", (ROWS, COLUMNS)), dg.tensor("scale", (COLUMNS,))
    k = dg.reduce_axis("k", COLUMNS)

    def element(i: object, j: object) -> object:
        normal = x[i, j] * dg.rsqrt(dg.sum(x[i, k] * x[i, k], k) / COLUMNS + 1e-5) * scale[j]
        return normal * dg.sigmoid(normal)

    return dg.compute("y", (ROWS, COLUMNS), element)


def main(trials: int = 4) -> dg.Study:
    study = dg.tune(layer(), target="cpu", trials=trials, threads=1, baselines=False)
    rng = np.random.default_rng(1)
    x, scale = rng.standard_normal((ROWS, COLUMNS), np.float32), rng.standard_normal(COLUMNS, np.float32)
    normal = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5) * scale
    np.testing.assert_allclose(study.best().load()(x, scale), normal / (1 + np.exp(-normal)), rtol=1e-3, atol=1e-4)
    return study


if __name__ == "__main__":
    print(main())
