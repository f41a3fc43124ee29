"""An operator and a family as a user would write them: the text of a file that tests write, change and run."""

from __future__ import annotations

import shutil
from pathlib import Path

TEXT = """
import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from deepgen.kernels.sim import SimTiles
from deepgen.tuning.search.plain import Random
from deepgen.operators import Answer, Operator, Param, Signature, least_work
from deepgen.vocabulary import Kernel, LaunchPlan, Source, Step, TensorArg


@dataclass(frozen=True)
class Twice(Operator):
    name: ClassVar[str] = "twice"
    n: int

    def signature(self):
        return Signature((Param("x", "input", "f32", ("n",)), Param("y", "output", "f32", ("n",))))

    def sizes(self):
        return {"n": self.n}

    def work(self):
        return least_work(self, {"f32": self.n})

    def reference(self, inputs):
        return {"y": Answer(2.0 * inputs["x"].astype(np.float64))}


class Family(SimTiles):
    name = "twice_family"
    version = VERSION

    def emit(self, operator, target, config):
        text = json.dumps({"config": dict(config), "version": self.version}, sort_keys=True)
        args = (TensorArg("x"), TensorArg("y"))
        return Kernel("twice", "sim", (Source("config.json", text),), (), LaunchPlan((Step("run", args),)))


class Backwards(Random):
    # The whole space from its last config on.

    def __init__(self, setting):
        self._left = list(range(setting.space.count()))
        self._space = setting.space

    def ask(self, n):
        return [self._space.at(self._left.pop()) for _ in range(min(n, len(self._left)))]
"""

RUN = """
import sys
sys.path.insert(0, {folder!r})
import deepgen as dg
import own

study = dg.tune(own.Twice(1000), target="sim", generator=own.Family(), trials={trials}, out={out!r}{more})
print(study.folder)
"""


def write(folder: Path, version: int = 1, comment: str = "") -> Path:
    return write_text(folder, comment + TEXT.replace("VERSION", str(version)))


def write_text(folder: Path, text: str) -> Path:
    path = folder / "own.py"
    path.write_text(text)
    # Python takes a file of the same size written within the same second for the one that it has compiled.
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    return path
