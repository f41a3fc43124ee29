"""Programs as text in the dialect that CUDA, HIP and the emulation share, and as kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from deepgen.compiler.intrinsics.matrix import PRODUCTS, MatrixProduct, WideProduct, wide_product
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
    called = _called(program)
    kernels = [line for n in range(len(program.launches)) for line in ("", *LaunchEmitter(program, n).lines())]
    lines = [*(f'#include "{one}"' for one in _headers(program, kernels)), ""]
    lines += [line for name in called if (product := wide_product(name)) for line in function(product)]
    lines += [_declared(PRODUCTS[name]) for name in called if name in PRODUCTS]
    return "\n".join([*lines, *kernels]) + "\n"


def _called(program: Program) -> list[str]:
    parts = (part for launch in program.launches for part in launch.parts)
    return sorted({s.name for part in parts for s in walk(part.body) if isinstance(s, Call)})


def _headers(program: Program, kernels: Sequence[str]) -> list[str]:
    """Those that the text includes."""
    called = _called(program)
    products = [PRODUCTS[name] for name in called if name in PRODUCTS]
    wide = any(map(wide_product, called))
    wanted = {
        "warpgroup.h": wide,
        "matrices.h": not wide and any(not product.own for product in products),
        _PRODUCTS: any(product.own for product in products),
        _SCANS: any(name.startswith(SCAN) for name in called),
        _OVERLAPS: any(overlaps(program, n) for n in range(len(program.launches))),
        _GATHERS: any(gpu_values.CALL in line for line in kernels),
    }
    return ["expressions.h", *(header for header, is_wanted in wanted.items() if is_wanted)]


def _declared(product: MatrixProduct) -> str:
    formats = f"{product.name}, {product.sum}, {product.operand}"
    if not product.own:
        return f'DG_PRODUCT({formats}, {product.k}, "{product.instruction}")'
    if product.lanes == 1:
        return f"DG_DOT({formats}, {product.k})"
    return f"DG_MFMA({formats}, {product.m}, {product.k}, {product.instruction})"


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


def function(product: WideProduct) -> list[str]:
    """`product.name(sums, rows, columns)`: sums in registers, columns by their place in shared memory, rows either."""
    count, kind, sum_ = product.columns // 2, product.intrinsic.operand, product.intrinsic.sum
    whole = sum_ == "i32"
    sums = ", ".join(f"%{n}" for n in range(count))
    outputs = ", ".join(f'"+{"r" if whole else "f"}"(d[{n}])' for n in range(count))
    instruction = f"wgmma.mma_async.sync.aligned.{product.intrinsic.instruction.format(n=product.columns)}"
    sizes = f"{kind}, {product.columns}, {product.leading}"
    if product.apart:
        rows, second, transposed = f"%{count}", count + 1, "0, "
        inputs = f'"l"(first_operand(a, {product.apart}))'
        head, emulated = "u32 a", f"multiply_lines<{sizes}, {product.apart}>"
    else:
        rows, second, transposed = f"{{{', '.join(f'%{count + n}' for n in range(4))}}}", count + 4, ""
        inputs = ", ".join(f'"r"(a[{n}])' for n in range(4))
        head, emulated = "const u32* a", f"multiply_wide<{sizes}>"
    # Whole numbers are neither negated nor transposed.
    modes = "add" if whole else f"add, 1, 1, {transposed}{int(product.leading > 0)}"
    head = f"DG_DEVICE void {product.name}({sum_}* d, {head}, u32 b) {{"
    return [
        "#if defined(DG_EMULATE)",
        f"{head} emulate::{emulated}(d, a, b); }}",
        "#else",
        head,
        '    asm volatile("{\\n.reg .pred add;\\nsetp.ne.b32 add, 1, 0;\\n"',
        f'                 "{instruction} {{{sums}}}, {rows}, %{second}, {modes};\\n}}"',
        f"                 : {outputs}",
        f'                 : {inputs}, "l"(second_operand(b, {product.leading})));',
        "}",
        "#endif",
    ]
