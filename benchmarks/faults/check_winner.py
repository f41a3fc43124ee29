"""A separate program: load the winner of the study in a folder, call it on new inputs, and compare with numpy."""

from __future__ import annotations

import sys

import numpy as np

import deepgen as dg


def main(folder: str) -> int:
    study = dg.Study.open(folder)
    operator = study.operator
    inputs = operator.inputs(12345)
    loaded = study.best().load()
    got = loaded(*inputs.values())
    [answer] = operator.reference(inputs).values()
    good = np.allclose(np.asarray(got), answer.values, rtol=1e-3, atol=1e-3)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
