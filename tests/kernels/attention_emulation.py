"""Runs emitted Hopper attention kernels on the CPU: their own source over an emulation of the instructions."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import simt_emulation as simt

from deepgen.operators import Array, Attention, AttentionBackward
from deepgen.operators.compare import compare
from deepgen.run.call.plans import evaluate
from deepgen.vocabulary import Arg, DescriptorArg, Kernel, ScalarArg, Step, TensorArg, WorkspaceArg

COMPILER, NO_COMPILER = simt.COMPILER, simt.NO_COMPILER
_HEADER = Path(__file__).with_name("emulate_hopper.h")
_FLAGS = ("-std=c++17", "-O1", "-w", "-fPIC", "-fno-strict-aliasing")
_REPLACED = ("hopper.h", "numbers.h", "instructions.h", "copies.h")
_PRODUCTS = """#pragma once
#include "emulate_hopper.h"
template <class A> void product_keys(float* d, A a, u64 b, int add) { emulate::keys<TYPE, BN>(d, a, b, add); }
inline void product_values(float* d, const u32* a, u64 b) { emulate::values<TYPE, DV>(d, a, b); }
inline void product_again(float* d, const u32* a, u32 b, u32 c) { emulate::again<TYPE>(d, a, b, c); }
"""
_BACKWARD_PRODUCTS = """#pragma once
#include "emulate_hopper.h"
inline void product_with_queries(float* d, u64 a, u64 b, int add) { emulate::keys<TYPE, KEYS_WIDE>(d, a, b, add); }
inline void product_with_keys(float* d, u64 a, u64 b, int add) { emulate::keys<TYPE, QUERIES_WIDE>(d, a, b, add); }
inline void product_values(float* d, const u32* a, u64 b) { emulate::values<TYPE, D>(d, a, b); }
"""
_HARNESS = """
#include <tuple>
#include <utility>
template <class... A, size_t... I> void call(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_cv_t<A>*>(args[I])...);
}
template <class... A> void start(void (*kernel)(A...), void** args) {
    call(kernel, args, std::index_sequence_for<A...>{});
}
"""
_ENTRY = """
extern "C" const char* run_{entry}(void** args, int grid, int threads, int shared) {{
    emulate::body = [=] {{ start({entry}, args); }};
    static std::string error;
    error = emulate::run(grid, threads, shared);
    return error.c_str();
}}
"""


class _Map(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_void_p), ("sizes", ctypes.c_int64 * 4), ("strides", ctypes.c_int64 * 3),
        ("rows", ctypes.c_int), ("width", ctypes.c_int), ("rest", ctypes.c_char * 56),
    ]  # fmt: skip


def wrong(kernel: Kernel, operator: Attention | AttentionBackward, folder: Path, *probes: str, blocks: int = 3) -> str:
    """A description of the errors in its results; empty if none. Few blocks, so that each has several tiles."""
    products = _PRODUCTS if isinstance(operator, Attention) else _BACKWARD_PRODUCTS
    for source in kernel.sources:
        replaced = products if source.name == "products.h" else '#include "emulate_hopper.h"\n'
        text = replaced if source.name in (*_REPLACED, "products.h") else source.text
        (folder / source.name).write_text(text)
    (folder / _HEADER.name).write_text(_HEADER.read_text())
    entries = "".join(_ENTRY.format(entry=step.entry) for step in kernel.plan.steps)
    (folder / "harness.cpp").write_text(f'#include "{kernel.sources[0].name}"\n{_HARNESS}{entries}')
    assert COMPILER is not None
    command = [COMPILER, "-shared", *kernel.flags, *_FLAGS, *simt.standard(_HEADER, *_FLAGS)]
    made = subprocess.run(
        [*command, "-o", "kernel.so", "harness.cpp"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr[:3000]
    library = ctypes.CDLL(str(folder / "kernel.so"))
    for probe in probes:
        if problem := _run(kernel, operator, library, probe, blocks):
            return f"{operator.describe()} ({probe}): {problem}"
    return ""


def _run(kernel: Kernel, operator: Attention | AttentionBackward, library: ctypes.CDLL, probe: str, blocks: int) -> str:
    inputs, scalars = operator.inputs(5, probe), operator.scalars()
    results = {t.name: t for t in operator.tensors() if t.role == "output"}
    unwritten = {name: np.empty(t.shape, t.dtype.numpy()) for name, t in results.items()}
    for array in unwritten.values():
        array.view(np.uint8).fill(0xFF)
    tensors: dict[str, Array] = {**inputs, **unwritten}
    spaces: dict[str, Array] = {}
    for _ in range(2):
        for step in kernel.plan.steps:
            if problem := _run_step(step, scalars, tensors, spaces, library, blocks):
                return f"{step.entry}: {problem}"
        if any(spaces[a.name].any() for s in kernel.plan.steps for a in s.args if _is_zeroed(a)):
            return "the counter is not left zero"
    for name, answer in operator.reference(inputs).items():
        found = compare(tensors[name], answer, results[name].dtype, operator.tolerance(name, probe))
        if not found.ok:
            return f"{name}: {found}"
    return ""


def _is_zeroed(arg: Arg) -> TypeGuard[WorkspaceArg]:
    return isinstance(arg, WorkspaceArg) and arg.zeroed


def _run_step(
    step: Step,
    scalars: Mapping[str, int | float],
    tensors: Mapping[str, Array],
    spaces: dict[str, Array],
    library: ctypes.CDLL,
    blocks: int,
) -> str:
    values: list[Any] = []
    kinds = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float}
    for arg in step.args:
        if isinstance(arg, DescriptorArg):
            values.append(_map(arg, tensors[arg.tensor], scalars))
        elif isinstance(arg, TensorArg):
            values.append(ctypes.c_void_p(tensors[arg.tensor].ctypes.data))
        elif isinstance(arg, WorkspaceArg):
            fill = 0 if arg.zeroed else 0xFF
            space = spaces.setdefault(arg.name, np.full(int(evaluate(arg.bytes, scalars)) + 16, fill, np.uint8))
            values.append(ctypes.c_void_p(space.ctypes.data + -space.ctypes.data % 16))
        else:
            assert isinstance(arg, ScalarArg)
            number = evaluate(arg.value, scalars)
            values.append(kinds[arg.ctype](int(number) if arg.ctype[0] == "i" else number))
    places = [value[1] if isinstance(value, tuple) else ctypes.addressof(value) for value in values]
    packed = (ctypes.c_void_p * len(places))(*places)
    # Only blocks of attention itself take several tiles.
    all_blocks = int(evaluate(step.grid[0], scalars))
    grid = min(blocks, all_blocks) if step.entry == "attention" else all_blocks
    entry = library[f"run_{step.entry}"]
    entry.restype = ctypes.c_char_p
    return str(entry(packed, grid, int(step.block[0]), int(evaluate(step.shared_bytes, scalars))).decode())


def _map(arg: DescriptorArg, array: Array, scalars: Mapping[str, int | float]) -> tuple[Any, int]:
    """A tensor map with what holds it."""
    spec = arg.spec
    sizes, strides = ([int(evaluate(n, scalars)) for n in each or ()] for each in (spec.sizes, spec.strides))
    raw = (ctypes.c_char * 256)()
    start = ctypes.addressof(raw) + -ctypes.addressof(raw) % 64
    box = _Map.from_address(start)
    box.base, box.rows, box.width = array.ctypes.data, int(evaluate(spec.box[1], scalars)), array.itemsize
    box.sizes[:], box.strides[:] = sizes, strides
    return raw, start
