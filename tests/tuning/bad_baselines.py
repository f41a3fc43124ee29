"""Baselines that fail while loading, and one that does not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from deepgen.extend import Operator, Target


class Fine:
    """Records which processes load it."""

    name = "fine"

    def missing(self, operator: Operator, target: Target) -> str | None:
        return None

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], object]:
        self.began()
        return partial(np.matmul, tensors["A"], tensors["B"], out=tensors["C"])

    def began(self) -> None:
        with Path(os.environ["LOADED_BY"]).open("a") as file:
            file.write(f"{self.name} {os.getpid()}\n")


class ImportsMuch(Fine):
    """Its imports depend on the operator. Records when it is asked."""

    name = "imports much"

    def imports(self, operator: Operator) -> tuple[str, ...]:
        with Path(os.environ["LOADED_BY"]).open("a") as file:
            file.write(f"imports for {operator.describe()}\n")
        return ("no such module",)


class Crashes(Fine):
    name = "crashes"

    def began(self) -> None:
        super().began()
        os.kill(os.getpid(), signal.SIGSEGV)


class CrashesToo(Crashes):
    name = "crashes too"


class CrashesAsWell(Crashes):
    name = "crashes as well"


class Hangs(Fine):
    name = "hangs"

    def began(self) -> None:
        super().began()
        time.sleep(1000)


class WaitsForFile(Fine):
    """Loads once a file exists."""

    name = "waits for a file"

    def began(self) -> None:
        super().began()
        while not Path(os.environ["LOADED_BY"]).with_suffix(".go").exists():
            time.sleep(0.01)
