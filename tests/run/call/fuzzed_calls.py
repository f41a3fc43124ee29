"""Random calls, valid and invalid ones, made through compiled code and through Python on identical memory.

python tests/run/call/fuzzed_calls.py 10000 [SEED]
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
from plain_operators import (
    CPU,
    DOUBLE,
    GEMM,
    GEMM_MORE,
    NORM,
    WEIGHTED,
    Add,
    Double,
    Norm,
    Weighted,
    Windows,
    add,
    plain,
    tensors,
)

from deepgen.operators import Operator, gemm
from deepgen.run.call import compiled
from deepgen.run.call.loaded import Loaded, load
from deepgen.vocabulary import Kernel, ScalarArg

ARENA = 1 << 16
_SIZES = (1, 2, 3, 3, 4, 4, 4, 0)
_WINDOWS = "void windows(const float *x, float *y, long n) { for (long i = 0; i < n; i++) y[i] = x[i]; }"
_KERNELS: dict[str, tuple[Kernel, Operator]] = {
    "gemm": (GEMM, gemm(4, 4, 4)),
    "gemm_more": (GEMM_MORE, gemm(4, 4, 4, bias=True, beta=0.5)),
    "norm": (NORM, Norm()),
    "add": (add(), Add()),
    "add_i8": (add("signed char"), Add(of="i8")),
    "add_bf16": (add("unsigned short"), Add(of="bf16")),
    "double": (DOUBLE, Double()),
    "weighted": (WEIGHTED, Weighted()),
    "windows": (plain("windows", _WINDOWS, *tensors("x", "y"), ScalarArg("i64", "n - k + 1")), Windows()),
}
_FORMATS = {"f32": "float32", "i8": "int8", "bf16": "uint16"}


class OnlyDlpack:
    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self) -> Any:
        return self.array.__dlpack__()


class Derived(np.ndarray):
    """A subclass, which the compiled code does not know."""


def _arena() -> Any:
    raw = np.empty(ARENA + 256, np.uint8)
    skip = -raw.ctypes.data % 256
    arena = raw[skip : skip + ARENA]
    numbers = np.random.default_rng(0).integers(-3, 4, ARENA // 4).astype(np.float32)
    arena[:] = numbers.view(np.uint8)
    return arena


@dataclass
class Memory:
    """One buffer that contains all arrays of a call, with the same numbers at the same places each time."""

    bytes: Any = field(default_factory=_arena)
    used: int = 0

    def place(self, chance: random.Random, size: int, *, faults: bool = True) -> int:
        """After the previous allocation, aligned; with `faults` sometimes anywhere, so that arrays overlap."""
        if not faults:
            self.used += 256 + size
            return (self.used - size) // 256 * 256
        if chance.random() < 0.12 and self.used:
            return chance.randrange(self.used) // 4 * 4
        start = -(-self.used // 256) * 256
        self.used = start + size
        return start if chance.random() < 0.93 else start + chance.choice((1, 2, 4, 8))


def both(name: str, counted: Counter[str]) -> tuple[Loaded, Callable[..., Any]]:
    """A kernel, called in C and in Python; calls in which C falls back to Python are counted."""
    kernel, operator = _KERNELS[name]
    with patch.object(compiled, "core", lambda: None):
        slow = load(kernel, operator, CPU)

    def in_python(*positions: Any, **named: Any) -> Any:
        with patch.object(compiled, "core", lambda: None):
            return slow(*positions, **named)

    quick = load(kernel, operator, CPU)
    call = quick._call

    def counting(*args: Any) -> Any:
        counted["left to Python"] += 1
        return call(*args)

    quick._call = counting  # type: ignore[method-assign]
    return quick, in_python


def an_array(
    chance: random.Random, memory: Memory, shape: tuple[int, ...], format_: str, torch: Any, faults: bool
) -> Any:
    """An array of this shape; with `faults`, sometimes wrong in some way."""
    if not faults:
        start = memory.place(chance, 256, faults=False)
        element = np.dtype(format_)
        array = memory.bytes[start : start + int(np.prod(shape)) * element.itemsize].view(element).reshape(shape)
        if torch is None:
            return OnlyDlpack(array) if chance.random() < 0.1 else array
        return torch.from_numpy(array).view(torch.bfloat16) if format_ == "uint16" else torch.from_numpy(array)
    if chance.random() < 0.06:
        shape = tuple(chance.choice(_SIZES) for _ in range(chance.choice((0, 1, 2, 2, 3))))
    if chance.random() < 0.05:
        format_ = chance.choice(("float64", "float32", "int8", "uint16", "uint8", "complex64", "bool", ">f4"))
    wide = tuple(size * chance.choice((1, 1, 1, 1, 1, 1, 1, 2)) for size in shape)
    element = np.dtype(format_)
    size = int(np.prod(wide)) * element.itemsize
    start = memory.place(chance, size + 16)
    whole = memory.bytes[start : start + size]
    if start % element.itemsize:  # numpy can view such memory nevertheless
        array = np.frombuffer(memory.bytes.data, element, size // element.itemsize, start).reshape(wide)
    else:
        array = whole.view(element).reshape(wide)
    array = array[(*(slice(None, None, w // s if s else 1) for w, s in zip(wide, shape, strict=True)), ...)]
    way = chance.random()
    if way < 0.03:
        array = array.T
    elif way < 0.05 and array.ndim:
        array = array[::-1]
    elif way < 0.07:
        array = np.broadcast_to(array[:1], array.shape) if array.ndim else array
    elif way < 0.09:
        array.flags.writeable = False
    elif way < 0.10:
        array = array.view(Derived)
    elif way < 0.12:
        return chance.choice((None, 1.0, [[1.0]], "array", array.tolist(), object(), np.float32(1)))
    elif way < 0.16 and array.dtype.isnative:
        return OnlyDlpack(array)
    if torch is None or chance.random() < 0.05:
        return array
    try:
        tensor = torch.from_numpy(array)
    except (TypeError, ValueError):
        return array
    if format_ == "uint16":
        tensor = tensor.view(torch.bfloat16)
    way = chance.random()
    if way < 0.03 and tensor.is_floating_point():
        return torch.nn.Parameter(tensor, requires_grad=chance.random() < 0.5)
    if way < 0.05:
        return chance.choice((tensor.to_sparse, lambda: tensor.to("meta"), tensor.flatten))()
    return tensor


def a_call(name: str, operator: Operator, seed: int, torch: Any) -> tuple[tuple[Any, ...], dict[str, Any], Memory]:
    """The arguments of a call; the same seed gives equal ones in other memory."""
    chance, memory = random.Random(seed), Memory()
    signature = operator.signature()
    sizes = {symbol: chance.choice(_SIZES) for symbol in operator.sizes()}
    shapes = {"n - k + 1": max(0, sizes.get("n", 0) - 2)}
    of = _FORMATS[name.rpartition("_")[2] if name.rpartition("_")[2] in _FORMATS else "f32"]
    with_torch = torch if chance.random() < 0.4 else None
    faults = chance.random() < 0.5
    made: dict[str, Any] = {}
    for param in signature.tensors:
        if param.role == "output" and chance.random() < 0.5:
            continue
        if param.optional and chance.random() < 0.6:
            continue
        shape = tuple(sizes[size] if size in sizes else shapes[str(size)] for size in map(str, param.shape))
        if param.broadcast and chance.random() < 0.3:
            shape = chance.choice(((1, shape[1]), (shape[0], 1), shape[1:]))
        made[param.name] = an_array(chance, memory, shape, of, with_torch, faults)
    positions, named, results = [], {}, {}
    for param in signature.tensors:
        if param.name not in made or (faults and chance.random() < 0.02):
            continue
        if param.role == "output" or (param.role == "inout" and chance.random() < 0.5):
            results[param.name] = made[param.name]
        elif param.optional or named or chance.random() < 0.15:
            named[param.name] = made[param.name]
        else:
            positions.append(made[param.name])
    if results:
        way = chance.random()
        if way < 0.65 and len(results) == 1:
            [named["out"]] = results.values()
        elif way < 0.8:
            named["out"] = chance.choice((tuple, list))(results.values())
        elif way < 0.85:
            named["out"] = results
        else:
            named.update(results)
    for param in signature.scalars:
        if chance.random() < 0.3:
            named[param.name] = chance.choice((0.25, 0.5, 1, 0, 0.0, -0.0, 2.0, -1, "much", None, True, 1 << 80, [1]))
    if faults and chance.random() < 0.1:
        strange = chance.choice((("stream", None), ("stream", 0), ("out", None), ("A", None), ("gamma", 1), ("x", 1)))
        named.setdefault(*strange)
    if faults and chance.random() < 0.04:
        positions.append(chance.choice((None, 1.0, np.ones((4, 4), np.float32))))
    if chance.random() < 0.1:  # names that are equal, but not identical
        named = {"".join(list(key)): value for key, value in named.items()}
    return tuple(positions), named, memory


def outcome(call: Callable[..., Any], positions: tuple[Any, ...], named: Mapping[str, Any], memory: Memory) -> Any:
    """The result of a call, and the content of all memory after it."""
    try:
        result = call(*positions, **named)
    except Exception as error:
        return type(error), str(error), _sum(memory)
    flat = [*positions]
    for value in named.values():
        flat += value if isinstance(value, (tuple, list)) else value.values() if isinstance(value, dict) else [value]
    results = result if isinstance(result, tuple) else (result,)
    return tuple(_described(one, flat) for one in results), _sum(memory)


def _sum(memory: Memory) -> str:
    return hashlib.sha256(memory.bytes.tobytes()).hexdigest()


def _described(array: Any, given: list[Any]) -> Any:
    place = next((i for i, one in enumerate(given) if one is array), None)
    if place is not None:
        return place
    values = array.detach().double().numpy() if hasattr(array, "data_ptr") else array
    strides = array.stride() if hasattr(array, "data_ptr") else array.strides
    return type(array), str(array.dtype), tuple(array.shape), strides, values.tobytes()


def compare(calls: int, seed: int, torch: Any = None) -> Counter[str]:
    """Make calls both ways. Raises AssertionError if they differ; counts the outcomes."""
    chance, counted = random.Random(seed), Counter[str]()
    pairs = {name: both(name, counted) for name in _KERNELS}
    recent: list[tuple[str, int]] = []
    for _ in range(calls):
        repeated = recent and chance.random() < 0.4  # kinds of calls that were seen before
        name, number = chance.choice(recent) if repeated else (chance.choice([*_KERNELS]), chance.randrange(1 << 40))
        recent = [*recent[-40:], (name, number)]
        results = []
        for loaded in pairs[name]:
            positions, named, memory = a_call(name, _KERNELS[name][1], number, torch)
            results.append(outcome(loaded, positions, named, memory))
        in_c, in_python = results
        assert in_c == in_python, f"{name}, seed {number}: {in_c[:2]} in C, {in_python[:2]} in Python"
        counted[in_c[0].__name__ if isinstance(in_c[0], type) else "computed"] += 1
    return counted


if __name__ == "__main__":
    import torch as _torch

    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print(dict(compare(count, first, _torch)))
