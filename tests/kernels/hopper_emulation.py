"""Runs a kernel with Hopper's own instructions on the CPU: its source with plain C++ in place of hopper.h."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import simt_emulation

from deepgen.operators import Operator
from deepgen.operators.base import Array
from deepgen.operators.compare import Comparison, compare
from deepgen.operators.signature import TensorFacts
from deepgen.run.call import gpu_kernel
from deepgen.run.call.plans import evaluate
from deepgen.run.measure.guarded import Guarded
from deepgen.targets.gpu_driver import CUDA
from deepgen.vocabulary import DescriptorArg, Kernel, ScalarArg, TensorArg

_HEADER = Path(__file__).with_name("hopper_emulation.h")
_FLAGS = ("-std=c++20", "-O1", "-w", "-fPIC")
_PLAIN = {"im2col.h": ""}  # already part of the header
_NUMBERS = (
    ('asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));', "y = hopper::number<f16>((const char*)&x);"),
    ('asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(b), "f"(a));', "bits = two_bf16(a, b);"),
    ('asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(b), "f"(a));', "bits = two_f16(a, b);"),
)
_FORMATS = """
struct f8e4m3 { unsigned char bits; };
namespace hopper {
template <>
inline float number<f8e4m3>(const char* at) {
    int bits = *at & 0xFF, exponent = bits >> 3 & 15, fraction = bits & 7;
    float size = exponent ? __builtin_ldexpf(8 + fraction, exponent - 10) : __builtin_ldexpf(fraction, -9);
    return (bits & 0x7F) == 0x7F ? __builtin_nanf("") : bits & 0x80 ? -size : size;
}
template <>
inline float number<f16>(const char* at) { _Float16 x; memcpy(&x, at, 2); return (float)x; }
template <>
inline float number<bf16>(const char* at) { u32 x = 0; memcpy((char*)&x + 2, at, 2); return __int_as_float(x); }
}
inline u32 two_f16(float a, float b) { _Float16 x[2] = {(_Float16)a, (_Float16)b}; u32 y; memcpy(&y, x, 4); return y; }
inline u32 one_bf16(float a) {
    u32 x = __float_as_uint(a);
    return a != a ? x >> 16 | 64 : (x + 0x7FFF + (x >> 16 & 1)) >> 16;
}
inline u32 two_bf16(float a, float b) { return one_bf16(a) | one_bf16(b) << 16; }
"""
_PRODUCT = """#pragma once
#include "numbers.h"
#if ELEMENT == 1
typedef f8e4m3 Operand;
#else
typedef TYPE_C Operand;
#endif
#ifdef PAIRED
enum { COLUMNS = 2 * BN };
#else
enum { COLUMNS = BN };
#endif
inline void product(float* d, u64 a, u64 b, int add) {
    hopper::multiply<Operand>(d, a, b, add, COLUMNS, A_K_MAJOR, B_K_MAJOR);
}
"""
_HARNESS = """#include "{source}"
extern "C" int run(void** args, int blocks, int threads, int cluster) {{
    return hopper::launch({entry}, args, blocks, threads, cluster);
}}
"""
_COPIES = r"(copy_number|numbers_\w+|copy_async|arrive_when_copied)"
_INTS = {0: 0, 1: 32, 2: 64, 3: 128}  # bytes of a swizzle by the driver's codes


def build(kernel: Kernel, folder: Path) -> ctypes.CDLL:
    texts = {source.name: source.text for source in kernel.sources}
    numbers = texts["numbers.h"]
    for real, plain in _NUMBERS:
        assert real in numbers
        numbers = numbers.replace(real, plain)
    numbers = re.sub(r"asm volatile\([^;]*\);", "", numbers)
    first = numbers.index("struct f16 {")
    after = numbers.index("};\n", first) + 3
    texts["numbers.h"] = numbers[:after] + _FORMATS + numbers[after:]
    # Copies of single numbers are those of the header.
    texts = {
        name: re.sub(r"(template <int BYTES>\n)?DG_DEVICE void " + _COPIES + r"\(.*?\n}\n", "", text, flags=re.DOTALL)
        for name, text in texts.items()
    }
    if "async_lines.h" in texts:
        texts["async_lines.h"] = re.sub(r"DG_DEVICE void all_copied.*\n", "", texts["async_lines.h"])
    main = kernel.sources[0].name
    texts[main] = texts[main].replace("extern __shared__ char memory[];", "char* memory = hopper::now->block->shared;")
    texts |= {"hopper.h": _HEADER.read_text(), "products.h": _PRODUCT, **_PLAIN}
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "harness.cpp").write_text(_HARNESS.format(source=main, entry=kernel.plan.steps[0].entry))
    command = [str(simt_emulation.COMPILER), *kernel.flags, *_FLAGS, *simt_emulation.standard(_HEADER, *_FLAGS)]
    made = subprocess.run(
        [*command, "-shared", "-o", "harness.so", "harness.cpp"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[:3000]
    return ctypes.CDLL(str(folder / "harness.so"))


def encoded(arg: DescriptorArg, tensor: Array, element: str, scalars: Any) -> tuple[Any, Any]:
    """A tensor map whose bytes are the address of the driver call's arguments, as numbers."""
    numbers = (ctypes.c_int64 * 33)()

    def tiled(storage: Any, kind: int, rank: int, address: Any, sizes: Any, strides: Any, box: Any, *rest: Any) -> int:
        return note(storage, rank, address, sizes, strides, [*box], rest, 0)

    def im2col(storage: Any, kind: int, rank: int, address: Any, sizes: Any, strides: Any, *rest: Any) -> int:
        lower, upper, channels, pixels, *others = rest
        numbers[20:23], numbers[23:26] = [*lower, 0], [*upper, 0]
        return note(storage, rank, address, sizes, strides, [channels.value, pixels.value], others, 1)

    def note(storage: Any, rank: int, address: Any, sizes: Any, strides: Any, box: Any, rest: Any, windows: int) -> int:
        steps, interleave, swizzle, _, fill = rest
        assert (interleave, fill) == (0, 0)
        lists = [*((*one, 0, 0, 0, 0, 0)[:5] for one in (sizes, strides, box)), (*steps, 0, 0)[:5]]
        numbers[0:3] = [address.value, tensor.itemsize, rank]
        numbers[3:8], numbers[8:13], numbers[13:18], numbers[26:31] = map(list, lists)
        numbers[18:20] = [_INTS[swizzle], windows]
        storage.raw = ctypes.addressof(numbers).to_bytes(8, "little").ljust(128, b"\0")
        return 0

    library = SimpleNamespace(cuTensorMapEncodeTiled=tiled, cuTensorMapEncodeIm2col=im2col)
    driver: Any = SimpleNamespace(api=CUDA, library=library, check=lambda name, code: None)
    made = gpu_kernel.encode(driver, arg, tensor.ctypes.data, tensor.shape, element, scalars)
    return made.storage, (numbers, made)


def run(
    kernel: Kernel, library: ctypes.CDLL, operator: Operator, probe: str = "normal", turned: Collection[str] = ()
) -> Comparison:
    """How the kernel's output compares with the exact one. Inputs that are `turned` have their first dimension
    innermost; what the others have after them cannot be read."""
    inputs = operator.inputs(1, probe)
    shapes = {t.name: t for t in operator.tensors()}
    guarded = {name: Guarded(name, t.bytes, align=16) for name, t in shapes.items() if name not in turned}
    tensors = {
        name: guarded[name].array(t.shape, t.dtype.numpy()) if name in guarded else np.array(inputs[name], order="F")
        for name, t in shapes.items()
    }
    for name in guarded:
        tensors[name].view(np.uint8).fill(0xFF)  # so that unwritten elements show
        tensors[name][...] = inputs.get(name, tensors[name])
    facts = {name: TensorFacts(x.shape, "", tuple(s // x.itemsize for s in x.strides)) for name, x in tensors.items()}
    scalars = {**operator.strided({name: facts[name] for name in turned})}
    (step,) = kernel.plan.steps
    kept: list[Any] = []
    for arg in step.args:
        if isinstance(arg, DescriptorArg):
            storage, more = encoded(arg, tensors[arg.tensor], shapes[arg.tensor].dtype.name, scalars)
            kept.append((storage, more))
        elif isinstance(arg, TensorArg):
            kept.append((ctypes.c_uint64(tensors[arg.tensor].ctypes.data), None))
        elif isinstance(arg, ScalarArg):
            value = evaluate(arg.value, scalars) if isinstance(arg.value, str) else arg.value
            kinds = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float}
            kept.append((kinds[arg.ctype](value), None))
        else:
            space = np.zeros(int(evaluate(arg.bytes, scalars)) + 64, np.uint8)
            kept.append((ctypes.c_uint64(-(-space.ctypes.data // 64) * 64), space))
    addresses = (ctypes.c_void_p * len(kept))(*(ctypes.addressof(value) for value, _ in kept))
    blocks = int(evaluate(step.grid[0], scalars))
    waiting = library.run(addresses, blocks, int(evaluate(step.block[0], scalars)), step.cluster[0])
    assert waiting == 0, f"{waiting} threads wait for ever"
    (output,) = operator.signature().outputs
    expected = operator.reference(inputs)[output.name]
    result = tensors[output.name].copy()
    for memory in guarded.values():
        memory.close()
    return compare(result, expected, shapes[output.name].dtype, operator.tolerance(output.name, probe))
