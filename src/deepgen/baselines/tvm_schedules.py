"""Products by Apache TVM on CPUs: tiles of several sizes are compiled, and the fastest is the baseline.

MetaSchedule, TVM's own tuner, did not finish with the release used during development.
"""

from __future__ import annotations

import ctypes
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from math import inf
from typing import Any

from deepgen.baselines.products import is_plain, product
from deepgen.operators import Array, Gemm, Operator
from deepgen.targets import Target
from deepgen.vocabulary import BadInput, Missing

_DTYPES = {"f32": "float32", "f64": "float64"}
_TILES = ((4, 16, 4), (6, 16, 4), (8, 8, 8), (6, 32, 4), (12, 32, 4), (8, 64, 4))  # rows, columns, steps of K
_TRIES = 3
_ALIGNED = 64  # bytes: the alignment that TVM's code assumes
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
_ACTION_BYTES = 256  # enough for a `struct sigaction`
_ALL_CORES = 1  # TVM's number for the set of cores its threads run on


class Tvm:
    """Register tiles of C, vectors along rows, threads over tiles. Compiling takes seconds, so only when requested by
    name.
    """

    name = "tvm"
    on_request = True

    def missing(self, operator: Operator, target: Target) -> str | None:
        if target.runner != "cpu":
            return f"TVM is compared on CPUs, not on {target.name}"
        if (
            not isinstance(operator, Gemm)
            or operator.batch > 1
            or {operator.a, operator.b, operator.c} != {operator.acc}
        ):
            return "TVM is compared on single products of one dtype"
        if operator.a not in _DTYPES:
            return "TVM is compared in " + " and ".join(_DTYPES)
        if not is_plain(operator):
            return "TVM is compared on plain products"
        return None if find_spec("tvm") else "TVM is not installed (pip install apache-tvm)"

    def prepare(self, operator: Operator, tensors: Mapping[str, Array], threads: int) -> Callable[[], None]:
        operator = product(operator, "TVM")
        for name, array in tensors.items():
            if array.ctypes.data % _ALIGNED:
                raise BadInput(f"{name} is not {_ALIGNED}-byte aligned, which TVM's kernels need")
        try:
            with _handlers_kept():
                import tvm
                import tvm_ffi
                from tvm import s_tir  # noqa: F401
        except ImportError as error:
            remedy = "pip install 'apache-tvm>=0.27'"
            raise Missing("TVM 0.27 or newer", blocks="its baseline cannot run", remedy=remedy) from error
        tvm.get_global_func("runtime.config_threadpool")(_ALL_CORES, threads)
        arguments = [tvm_ffi.from_dlpack(tensors[name]) for name in "ABC"]
        best, least = None, inf
        for tile in _TILES:
            function = _compiled(tvm, operator, *tile)
            seconds = min(_seconds(function, arguments) for _ in range(_TRIES))
            if seconds < least:
                best, least = function, seconds
        assert best is not None, "there are tiles"
        chosen = best

        def run() -> None:
            chosen(*arguments)

        return run


def _compiled(tvm: Any, gemm: Gemm, rows: int, columns: int, depth: int) -> Any:
    """One schedule: a register tile of C is accumulated over all of K, then stored."""
    te, of = tvm.te, _DTYPES[gemm.a]
    shapes = {"A": (gemm.m, gemm.k), "B": (gemm.k, gemm.n)}
    transposed = {"A": gemm.layout[0] == "t", "B": gemm.layout[1] == "t"}
    a, b = (te.placeholder(shape[::-1] if transposed[n] else shape, of, n) for n, shape in shapes.items())
    steps = te.reduce_axis((0, gemm.k), name="k")

    def at(array: Any, name: str, row: Any, column: Any) -> Any:
        return array[column, row] if transposed[name] else array[row, column]

    c = te.compute(
        (gemm.m, gemm.n), lambda i, j: te.sum(at(a, "A", i, steps) * at(b, "B", steps, j), axis=steps), name="C"
    )
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([a, b, c])}))
    sums = schedule.get_sblock("C")
    stored = schedule.cache_write(sums, 0, "global")
    i, j, k = schedule.get_loops(sums)
    blocks_m, i = schedule.split(i, [None, rows])
    blocks_n, j = schedule.split(j, [None, columns])
    blocks_k, k = schedule.split(k, [None, depth])
    schedule.reorder(blocks_m, blocks_n, blocks_k, k, i, j)
    schedule.reverse_compute_at(stored, blocks_n)
    schedule.vectorize(j)
    schedule.unroll(i)
    schedule.parallel(schedule.fuse(blocks_m, blocks_n))
    zeroed = schedule.decompose_reduction(sums, schedule.get_loops(sums)[1])
    for block in (zeroed, stored):
        schedule.vectorize(schedule.get_loops(block)[-1])
    about = tvm.target.codegen
    processor = {"kind": "llvm", "mtriple": about.llvm_get_system_triple(), "mcpu": about.llvm_get_system_cpu()}
    return tvm.compile(schedule.mod, target=tvm.target.Target(processor))["main"]


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """TVM installs signal handlers when imported; with them, its crashes would be attributed to kernels of the same
    process.
    """
    libc = ctypes.CDLL(None)
    before = {number: ctypes.create_string_buffer(_ACTION_BYTES) for number in _CRASHES}
    for number, action in before.items():
        libc.sigaction(int(number), None, action)
    try:
        yield
    finally:
        for number, action in before.items():
            libc.sigaction(int(number), action, None)


def _seconds(function: Any, arguments: list[Any]) -> float:
    started = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - started
