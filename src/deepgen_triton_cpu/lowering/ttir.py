"""Triton's own IR of a kernel, in MLIR's generic form: made by Triton's front end, without a GPU or a driver."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepgen.extend import BadInput

RELEASE = "3.9"
_PRINTING = threading.Lock()
_GENERIC = b"--mlir-print-op-generic"


@dataclass(frozen=True)
class Options:
    """What Triton's front end asks a backend for. Those that shape code for GPUs are taken and change nothing."""

    num_warps: int = 4
    num_ctas: int = 1
    num_stages: int = 3
    warp_size: int = 1
    enable_fp_fusion: bool = True
    num_threads: int = 0  # 0: all cores
    maxnreg: int | None = None
    waves_per_eu: int | None = None
    matrix_instr_nonkdim: int | None = None
    kpack: int | None = None
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    debug: bool = False
    sanitize_overflow: bool = False
    backend_name: str = "deepgen_cpu"
    arch: str = ""
    extern_libs: tuple[tuple[str, str], ...] = ()
    supported_fp8_dtypes: tuple[str, ...] = ("fp8e4nv", "fp8e5")
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
    max_num_imprecise_acc_default: int = 0
    instrumentation_mode: str = ""
    fpsan_homomorphic_casts: bool = False
    ir_override: str | None = None

    def hash(self) -> str:
        return "-".join(f"{name}={value}" for name, value in sorted(vars(self).items()))


def serves(version: str) -> bool:
    """Whether the IR of this release is known."""
    return version.startswith(f"{RELEASE}.")


def require_release(version: str) -> None:
    """Raises BadInput for a release whose IR is not known."""
    if not serves(version):
        what = f"Triton {version} is installed, but CPU kernels need Triton {RELEASE}"
        raise BadInput(what, allowed=f"install that release: pip install 'triton=={RELEASE}.*'")


def front_end() -> tuple[dict[str, Any], dict[str, Any]]:
    """What Triton's front end calls back: the least sizes of a dot, and where functions of libdevice are declared."""
    from triton.language.extra.cuda import libdevice

    return {"min_dot_size": lambda *_: (1, 1, 1)}, {"triton.language.extra.libdevice": libdevice}


def simplify(module: Any) -> Any:
    """Triton's passes that know no hardware: calls inlined, descriptors as pointers, invariants out of loops."""
    from triton._C.libtriton import ir, passes

    manager = ir.pass_manager(module.context)
    passes.common.add_inliner(manager)
    passes.ttir.add_rewrite_tensor_descriptor_to_pointer(manager)
    passes.common.add_canonicalizer(manager)
    passes.ttir.add_combine(manager)
    passes.ttir.add_reorder_broadcast(manager)
    passes.common.add_cse(manager)
    passes.ttir.add_triton_licm(manager)
    passes.common.add_symbol_dce(manager)
    passes.ttir.add_loop_unroll(manager)
    passes.common.add_canonicalizer(manager)
    passes.common.add_cse(manager)
    manager.run(module, "make_ttir")
    return module


def generic(module: Any) -> str:
    """The module as text in MLIR's generic form. The option is the process's, and so it is taken back."""
    from triton._C import libtriton

    library = ctypes.CDLL(libtriton.__file__)
    words = (ctypes.c_char_p * 2)(b"deepgen", _GENERIC)
    with _PRINTING:
        library._ZN4mlir27registerAsmPrinterCLOptionsEv()
        library._ZN4llvm2cl25ResetAllOptionOccurrencesEv()
        library.LLVMParseCommandLineOptions(2, words, None)
        text = str(module.str())
        library._ZN4llvm2cl25ResetAllOptionOccurrencesEv()
    return text


def ttir_of(
    fn: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    attrs: Mapping[tuple[int, ...], Sequence[Any]],
) -> str:
    """The IR of a `@triton.jit` function for these types of parameters. The words are Triton's own."""
    import triton
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    require_release(triton.__version__)
    context = ir.context()
    ir.load_dialects(context)
    source = ASTSource(fn=fn, signature=dict(signature), constexprs=dict(constexprs), attrs=dict(attrs))
    functions, modules = front_end()
    target = GPUTarget("deepgen_cpu", "", 1)
    module = source.make_ir(target, Options(), functions, modules, context)
    module.context = context
    return generic(simplify(module))
