"""Programs as text in the dialect that CUDA, HIP and the emulation share, and as kernels."""

from __future__ import annotations

from math import prod

from deepgen.compiler.intrinsics.matrix import called_product
from deepgen.compiler.passes.ir import Call, Program, walk
from deepgen.compiler.passes.lanes import SCAN
from deepgen.compiler.passes.lower import overlaps
from deepgen.compiler.text import gpu_values
from deepgen.compiler.text.gpu_launch import LaunchEmitter, entry, used
from deepgen.kernels.shared import dialect_sources, sources
from deepgen.operators.expr.nodes import Binary, Expression, Unary
from deepgen.operators.expr.nodes import walk as walk_value
from deepgen.vocabulary import Kernel, LaunchPlan, Source, Step, TensorArg, WorkspaceArg, dtype

_OWN = ("expressions.h", "matrices.h", "warpgroup.h", "emulate_lanes.h")
_SCANS, _PRODUCTS, _GATHERS, _OVERLAPS = "lane_scans.h", "own_products.h", "gathers.h", "overlaps.h"
_OTHERS = (_SCANS, _PRODUCTS, _GATHERS, _OVERLAPS)  # that few kernels need
_LIBRARY = {"exp", "log", "sin", "cos", "tanh", "erf", "sigmoid"}


def kernel(program: Program, language: str, warp: int, name: str | None = None) -> Kernel:
    """The kernel of a program in CUDA or HIP."""
    text = emit(program)
    own = sources(__package__, (*_OWN, *(one for one in _OTHERS if f'"{one}"' in text)))
    return Kernel(
        name=name or program.name,
        language=language,
        sources=(Source(f"kernel.{'cu' if language == 'cuda' else 'hip'}", text), *own, *dialect_sources(language)),
        flags=("-std=c++17", f"-DWARP={warp}"),
        plan=LaunchPlan(tuple(_step(program, n) for n in range(len(program.launches)))),
    )


def emit(program: Program) -> str:
    """One file with a kernel for each launch."""
    parts = [part for launch in program.launches for part in launch.parts]
    called = sorted({s.name for part in parts for s in walk(part.body) if isinstance(s, Call)})
    kernels = [line for n in range(len(program.launches)) for line in ("", *LaunchEmitter(program, n).lines())]
    products = [product for name in called if (product := called_product(name))]
    products.sort(key=lambda product: product.header, reverse=True)
    needed = {product.header for product in products}
    wanted = {
        "warpgroup.h": "warpgroup.h" in needed,
        "matrices.h": "matrices.h" in needed and "warpgroup.h" not in needed,  # which includes it
        _PRODUCTS: _PRODUCTS in needed,
        _SCANS: any(name.startswith(SCAN) for name in called),
        _OVERLAPS: any(overlaps(program, n) for n in range(len(program.launches))),
        _GATHERS: any(gpu_values.CALL in line for line in kernels),
    }
    headers = ["expressions.h", *(header for header, is_wanted in wanted.items() if is_wanted)]
    lines = [*(f'#include "{one}"' for one in headers), "", *(product.text for product in products)]
    return "\n".join([*lines, *kernels]) + "\n"


def missing_functions(expression: Expression) -> list[str]:
    """The functions of an expression that HIP's compiler has only with a vendor's library."""
    values = [v for stage in expression.stages for v in walk_value(stage.value)]
    wide = {v.op for v in values if isinstance(v, Unary) and v.dtype == "f64"} & _LIBRARY
    return sorted({f"{op} of f64" for op in wide} | {"pow" for v in values if isinstance(v, Binary) and v.op == "pow"})


def _step(program: Program, n: int) -> Step:
    launch, scratch = program.launches[n], {buffer.name for buffer in program.scratch}
    args = tuple(
        WorkspaceArg(b.name, b.elements * dtype(b.dtype).bytes) if b.name in scratch else TensorArg(b.name)
        for b in used(program, launch)
    )
    blocks, shared = sum(prod(p.blocks) for p in launch.parts), max(p.shared_bytes for p in launch.parts)
    threads = (prod(launch.threads), 1, 1)
    return Step(entry(program, n), args, (blocks, 1, 1), threads, shared_bytes=shared, overlaps=overlaps(program, n))
