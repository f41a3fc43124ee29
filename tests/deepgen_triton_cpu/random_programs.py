"""Random Triton programs of elementwise operations, reductions, scans, loops and branches, drawn from a seed.

Run as a program, it computes them in Triton's interpreter:

    TRITON_INTERPRET=1 python random_programs.py FILE SEED COUNT
"""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

OUTPUTS = 3
SHAPES = ((8, 16), (4, 32), (16, 16), (1, 64), (32, 2))
_FLOAT_2 = (
    "{a} + {b}",
    "{a} - {b}",
    "{a} * {b}",
    "{a} / (tl.abs({b}) + 1.0)",
    "tl.maximum({a}, {b})",
    "tl.minimum({a}, {b})",
)
_FLOAT_1 = (
    "-{a}", "tl.abs({a})", "tl.exp(-tl.abs({a}))", "tl.sqrt(tl.abs({a}))", "tl.log(tl.abs({a}) + 1.0)",
    "tl.exp2(tl.minimum({a}, 3.0))", "tl.sin({a} / (tl.abs({a}) + 1.0))", "tl.sigmoid({a})", "{a} * 0.37 + 1.5",
    "tl.erf({a})", "tl.clamp({a}, -1.5, 2.5)",
)  # fmt: skip
_WHOLE_2 = (
    "{m} + {n}", "{m} - {n}", "{m} * {n}", "{m} ^ {n}", "{m} & {n}", "{m} | {n}", "{m} // ((({n}) & 15) + 1)",
    "{m} % ((({n}) & 31) + 1)", "tl.maximum({m}, {n})", "tl.minimum({m}, {n})",
)  # fmt: skip
_WHOLE_1 = ("{m} >> 2", "{m} << 1", "-{m}", "tl.abs({m})", "~{m}", "{m} * 12345 + 678")
_REDUCED = (
    "tl.sum({a}, axis={axis}, keep_dims=True)",
    "tl.max({a}, axis={axis}, keep_dims=True)",
    "tl.min({a}, axis={axis}, keep_dims=True)",
)
_CONDITIONS = ("{x} > {y}", "{x} <= {y}", "{m} < {n}", "{m} == {n}", "({m} & 3) != 0", "({x} > 0) & ({m} < {n})")
_TURNS = ("{f}, {g} = {g}, {f} * 0.5", "{f} = {f} * 0.5 + {g}")


class Program:
    """One function's text. Only inputs are compared as floats: rounding must not change a comparison."""

    def __init__(self, number: int, chance: random.Random) -> None:
        self._chance = chance
        rows, columns = chance.choice(SHAPES)
        self.shape = (rows, columns)
        self.lines = [
            "@triton.jit",
            f"def program_{number}(x, y, m, n, limit, out, whole, R: tl.constexpr, C: tl.constexpr):",
            "    i, j = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]",
            "    at = i * C + j",
            f"    x0 = tl.load(x + at{self._mask()})",
            f"    y0 = tl.load(y + {chance.choice(['at', 'at', '(R * C - 1 - at)'])})",
            "    m0 = tl.load(m + at)",
            f"    n0 = tl.load(n + {chance.choice(['at', '(i * C)', '(j + i * 0)'])})",
        ]
        self._floats, self._exact, self._wholes = ["x0", "y0"], ["x0", "y0"], ["m0", "n0"]
        for step in range(chance.randint(6, 16)):
            self._add(step, "    ")
        for place in range(OUTPUTS):
            self.lines.append(
                f"    tl.store(out + {place} * R * C + at, {self._float()} + tl.zeros((R, C), tl.float32))"
            )
        self.lines.append(
            f"    tl.store(whole + at, {self._whole()} + tl.zeros((R, C), tl.int32){self._mask(other=False)})"
        )

    def _mask(self, other: bool = True) -> str:
        mask = self._chance.choice(["", "at < limit", "(i < 3) & (at >= 2)", "j < limit - i * 3"])
        return "" if not mask else f", mask={mask}" + (", other=0.5" if other else "")

    def _float(self) -> str:
        return self._chance.choice(self._floats[-6:])

    def _whole(self) -> str:
        return self._chance.choice(self._wholes[-4:])

    def _filled(self, text: str) -> str:
        x, y = self._chance.choice(self._exact), self._chance.choice(self._exact)
        axis = self._chance.randint(0, 1)
        given = {"a": self._float(), "b": self._float(), "m": self._whole(), "n": self._whole(), "x": x, "y": y}
        return text.format(**given, axis=axis)

    def _add(self, step: int, indent: str) -> None:
        kind = self._chance.random()
        name = f"f{step}"
        if kind < 0.3:
            self._floating(indent, name, _FLOAT_2)
        elif kind < 0.5:
            self._floating(indent, name, _FLOAT_1)
        elif kind < 0.7:
            self.lines.append(f"{indent}w{step} = {self._filled(self._chance.choice(_WHOLE_2 + _WHOLE_1))}")
            self._wholes.append(f"w{step}")
        elif kind < 0.78:
            self._floating(indent, name, _REDUCED)
        elif kind < 0.84:
            condition = self._filled(self._chance.choice(_CONDITIONS))
            self._floating(indent, name, (f"tl.where({condition}, {self._float()}, {self._float()})",))
        elif kind < 0.88:
            self._floating(indent, name, ("tl.cumsum({a} + tl.zeros((R, C), tl.float32), axis={axis})",))
        elif kind < 0.92:
            self._floating(indent, name, ("({m} & 1023).to(tl.float32) * 0.01",))
        elif kind < 0.97:
            self._loop(step, indent, name)
        else:
            self._branch(indent, name)

    def _floating(self, indent: str, name: str, texts: tuple[str, ...]) -> None:
        self.lines.append(f"{indent}{name} = {self._filled(self._chance.choice(texts))}")
        self._floats.append(name)

    def _loop(self, step: int, indent: str, name: str) -> None:
        other = f"g{step}"
        self.lines += [
            f"{indent}{name} = {self._float()} + tl.zeros((R, C), tl.float32)",
            f"{indent}{other} = {self._float()} + tl.zeros((R, C), tl.float32)",
            f"{indent}for k{step} in range(0, limit, 9):",
            f"{indent}    {self._chance.choice(_TURNS).format(f=name, g=other)}",
            f"{indent}    {other} = {other} * 0.5 + k{step}",
        ]
        self._floats += [name, other]

    def _branch(self, indent: str, name: str) -> None:
        self.lines += [
            f"{indent}if limit > {self._chance.randint(1, 60)}:",
            f"{indent}    {name} = {self._float()} * 2.0 + tl.zeros((R, C), tl.float32)",
            f"{indent}else:",
            f"{indent}    {name} = {self._float()} - 1.0 + tl.zeros((R, C), tl.float32)",
        ]
        self._floats.append(name)


def write(path: Path, seed: int, count: int) -> list[tuple[int, int]]:
    """Write the programs as a Python file; returns their shapes."""
    chance = random.Random(seed)
    programs = [Program(number, chance) for number in range(count)]
    text = ["import triton", "import triton.language as tl", ""]
    path.write_text("\n".join([*text, *("\n".join(["", *program.lines, ""]) for program in programs)]))
    return [program.shape for program in programs]


def inputs(shape: tuple[int, int], number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    size = shape[0] * shape[1]
    return {
        "x": rng.standard_normal(size).astype(np.float32),
        "y": rng.standard_normal(size).astype(np.float32),
        "m": rng.integers(-50, 50, size).astype(np.int32),
        "n": rng.integers(-50, 50, size).astype(np.int32),
        "limit": int(rng.integers(2, size)),
        "out": np.zeros((OUTPUTS, size), np.float32),
        "whole": np.full(size, 77, np.int32),
    }


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("random_triton_programs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(file: str, seed: str, count: str) -> None:
    import torch

    path = Path(file)
    shapes = write(path, int(seed), int(count))
    module, found = load(path), {}
    for number, shape in enumerate(shapes):
        given = inputs(shape, number)
        passed = [torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in given.values()]
        getattr(module, f"program_{number}")[(1,)](*passed, R=shape[0], C=shape[1])
        found |= {f"out{number}": given["out"], f"whole{number}": given["whole"]}
    np.savez(path.with_suffix(".npz"), **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
