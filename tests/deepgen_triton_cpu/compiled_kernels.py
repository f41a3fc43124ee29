"""Triton kernels as C, many in one file: compiled once for all tests of a module, and called with numpy arrays."""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from deepgen import targets
from deepgen.targets import Target
from deepgen.toolchains import toolchain_for
from deepgen.vocabulary import Kernel, LaunchPlan
from deepgen_triton_cpu.lowering import lower, ttir_of
from deepgen_triton_cpu.lowering.lower import flags, sources

TYPES = {
    "float16": "fp16", "float32": "fp32", "float64": "fp64", "bfloat16": "bf16", "bool": "i1", "int8": "i8",
    "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
}  # fmt: skip
BF16 = ml_dtypes.bfloat16
THREADS = 2
GUARD = 64  # elements around each array, which no kernel may access


@dataclass
class Case:
    """A call of a kernel: `arguments` in the order of the non-constant parameters, arrays or numbers.

    `expected` maps parameter names to arrays; others must stay unchanged.
    """

    function: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    expected: Callable[..., Mapping[str, np.ndarray[Any, Any]]]
    constants: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0

    @property
    def name(self) -> str:
        told = "_".join(str(value).replace(".", "") for value in self.constants.values())
        return f"{self.function.fn.__name__}_{told}" if told else str(self.function.fn.__name__)

    def signature(self) -> tuple[dict[str, str], dict[str, Any]]:
        signature: dict[str, str] = {}
        constants = dict(self.constants)
        for name in self.function.arg_names:
            value = self.arguments.get(name)
            signature[name] = "constexpr"
            if isinstance(value, np.ndarray):
                signature[name] = "*" + TYPES[str(value.dtype)]
            elif isinstance(value, float):
                signature[name] = "fp32"
            elif value is not None and value != 1:
                signature[name] = "i32"
            elif value is not None:
                constants[name] = value
        return signature, constants


def compile_cases(
    cases: Sequence[Case], folder: Path, target: Target, optimise: str = "-O1", fused: bool = False, given: str = ""
) -> None:
    """Build their library in a folder, which may be copied to another machine.

    `given` are lines of C before all others.
    """
    made = []
    for number, case in enumerate(cases):
        signature, constants = case.signature()
        made.append(lower(ttir_of(case.function, signature, constants, {}), f"kernel{number}"))
    first, *headers = sources(given + _without_repeats(one.text for one in made), "kernels")
    for source in (first, *headers):
        (folder / source.name).write_text(source.text)
    told = toolchain_for(target, "c").recipe(Kernel("kernels", "c", (first,), flags(fused), LaunchPlan(())), target)
    assert told is not None
    subprocess.run([optimise if word == "-O3" else word for word in told.command], cwd=folder, check=True)
    (folder / "scratch.json").write_text(json.dumps([one.scratch for one in made]))


class Compiled:
    """Cases in one shared library, compiled here unless the folder already has it."""

    def __init__(self, cases: Sequence[Case], folder: Path, optimise: str = "-O1", **given: Any) -> None:
        if not (folder / "kernel.so").exists():
            compile_cases(cases, folder, targets.resolve("cpu"), optimise, **given)
        self._scratch: list[int] = json.loads((folder / "scratch.json").read_text())
        self._numbers = {id(case): number for number, case in enumerate(cases)}
        self._library = ctypes.CDLL(str(folder / "kernel.so"))

    def run(self, case: Case) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays after the call, with a check that their surroundings are untouched."""
        signature, _ = case.signature()
        held: dict[str, np.ndarray[Any, Any]] = {}
        passed: list[Any] = []
        for name, value in case.arguments.items():
            if isinstance(value, np.ndarray):
                held[name] = guarded(value)
                passed.append(ctypes.c_void_p(inside(held[name], value).ctypes.data))
            elif signature[name] == "fp32":
                passed.append(ctypes.c_float(value))
            elif signature[name] == "i32":
                passed.append(ctypes.c_int32(value))
        number = self._numbers[id(case)]
        scratch = np.empty(self._scratch[number] * THREADS + 64, np.uint8)
        address = -(-scratch.ctypes.data // 64) * 64
        grid = (ctypes.c_int32(size) for size in (*case.grid, 1, 1)[:3])
        entry = self._library[f"kernel{number}"]
        entry(*passed, *grid, ctypes.c_int32(THREADS), ctypes.c_void_p(address))
        for name, whole in held.items():
            around = np.concatenate([whole[:GUARD], whole[-GUARD:]]).view(np.uint8)
            assert (around == 0xA5).all(), f"{case.name} wrote beside {name}"
        return {name: inside(whole, case.arguments[name]).copy() for name, whole in held.items()}


def guarded(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    whole = np.full((value.size + 2 * GUARD) * value.itemsize, 0xA5, np.uint8).view(value.dtype)
    whole[GUARD : GUARD + value.size] = value.ravel()
    return whole


def inside(whole: np.ndarray[Any, Any], like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return whole[GUARD : GUARD + like.size].reshape(like.shape)


def check(compiled: Compiled, case: Case) -> None:
    found = compiled.run(case)
    expected = case.expected(**case.arguments)
    for name, array in found.items():
        want = np.asarray(expected.get(name, case.arguments[name]))
        assert array.shape == want.shape, f"{case.name}: {name} has the shape {array.shape}, expected {want.shape}"
        exact = case.tolerance == 0 or array.dtype.kind not in "fV"
        if exact and array.dtype.kind != "V":
            np.testing.assert_array_equal(array, want.astype(array.dtype), err_msg=f"{case.name}: {name}")
        else:
            with np.errstate(all="ignore"):
                got, need = array.astype(np.float64), want.astype(array.dtype).astype(np.float64)
            np.testing.assert_allclose(got, need, rtol=case.tolerance, atol=case.tolerance, err_msg=case.name)


def _without_repeats(texts: Iterable[str]) -> str:
    include = '#include "tile.h"\n'
    return include + "\n".join(text.replace(include, "") for text in texts)
