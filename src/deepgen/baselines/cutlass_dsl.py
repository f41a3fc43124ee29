"""CUTLASS's kernels in its Python DSL: those that nvMatmulHeuristics ranks first are timed, and the fastest is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import inf
from statistics import median
from typing import Any, NamedTuple

from deepgen.baselines.base import Timer
from deepgen.baselines.products import factors, is_plain, product
from deepgen.baselines.torch_gpu import gpu_torch, shared
from deepgen.operators import Gemm, Operator
from deepgen.targets import Target
from deepgen.vocabulary import DeepgenError

_PACKAGE, _RANKS = "nvidia-cutlass-operators", "nvMatmulHeuristics"
_LETTERS = {"f16": "H", "bf16": "T", "f32": "S"}  # as nvMatmulHeuristics names formats
_CHIPS = ("H200_SXM", "H100_SXM", "H20_SXM", "B200", "A100_SXM_80GB", "L40S", "RTX_4090")  # supported GPUs, by name
_PROPOSED = 64  # configs requested from it
_TRIED, _TRIES = 8, 5


class CutlassDesign(NamedTuple):
    """The design of a kernel: rows and columns of a block's tile, and of a cluster in blocks."""

    tile: tuple[int, int]
    cluster: tuple[int, int]


class CutlassDsl:
    """Compiling takes seconds for each kernel, so it takes part only when requested by name."""

    name = "cutlass-dsl"
    on_request = True

    def missing(self, operator: Operator, target: Target) -> str | None:
        if "cuda" not in target.languages:
            return f"CUTLASS does not run on {target.name}"
        if not isinstance(operator, Gemm) or operator.batch > 1:
            return "CUTLASS is compared on single products"
        if operator.a != operator.b or operator.acc != "f32" or not {operator.a, operator.c} <= _LETTERS.keys():
            return "CUTLASS is compared on f16, bf16 and f32 with f32 sums"
        if not is_plain(operator):
            return "CUTLASS is compared on plain products"
        try:
            version(_PACKAGE)
        except PackageNotFoundError:
            return f"CUTLASS's Python kernels are not installed (pip install '{_PACKAGE}[heuristics]')"
        if find_spec(_RANKS) is None:
            return f"{_RANKS}, which ranks CUTLASS's kernels, is not installed (pip install nvidia-matmul-heuristics)"
        return None if find_spec("torch") else "torch, whose tensors it takes, is not installed (pip install torch)"

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        """The fastest kernel, timed with torch's events."""
        torch = gpu_torch()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def seconds(run: Callable[[], None]) -> float:
            start.record()
            run()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e-3

        return self.choose(operator, tensors, threads, seconds)

    def choose(
        self, operator: Operator, tensors: Mapping[str, Any], threads: int, seconds: Timer
    ) -> Callable[[], None]:
        operator = product(operator, "CUTLASS")
        import cutlass.operators as ops

        torch = gpu_torch()
        t = {name: shared(torch, tensor) for name, tensor in tensors.items()}
        a, b = factors(operator, t)
        arguments = ops.GemmArguments(A=a, B=b, out=t["C"], accumulator_type=torch.float32)
        major, minor = torch.cuda.get_device_capability()
        kernels = ops.get_operators(arguments, target_sm=f"{major}{minor}{'a' if major >= 9 else ''}")
        designs = [_design(one) for one in kernels]
        order = ranked(designs, proposed(operator, torch.cuda.get_device_name()))
        best, least = None, inf
        for place in order[:_TRIED]:
            call = _call(kernels[place], arguments)
            took = median(seconds(call) for _ in range(_TRIES))
            if took < least:
                best, least = call, took
        if best is None:
            raise DeepgenError(f"CUTLASS has no kernel for {operator.describe()}")
        return best


def proposed(gemm: Gemm, device: str) -> list[CutlassDesign]:
    """The configs nvMatmulHeuristics proposes for a GPU of this name, best first; empty if it does not know the GPU."""
    import nvMatmulHeuristics as heuristics

    chip_name = next((name for name in _CHIPS if name.partition("_")[0] in device), None)
    if chip_name is None:
        return []
    precision = _LETTERS[gemm.a] + "S" + _LETTERS[gemm.c]
    asked = heuristics.NvMatmulHeuristicsInterface(heuristics.NvMatmulHeuristicsTarget.CUTLASS3, precision)
    asked.nvMatmulHeuristicsDestroy = lambda *_: None  # release 0.1.0.27 crashes when it is destroyed
    chip = asked.createHardwareDescriptor()
    try:
        asked.setHardwarePredefinedGpu(chip, heuristics.NvMatmulHeuristicsNvidiaGpu[chip_name])
        layout = heuristics.NvMatmulHeuristicsMatmulLayout[f"{gemm.layout.upper()}_ROW_MAJOR"]
        asked.loadInternalDiscoverySet(layout, chip)
        rows = asked.get_with_mnk(gemm.m, gemm.n, gemm.k, layout, _PROPOSED, chip)
    finally:
        asked.destroyHardwareDescriptor(chip)
    configs = [row["kernel"] for row in rows]
    return [CutlassDesign((c.cta_tile_m, c.cta_tile_n), (c.cluster_m, c.cluster_n)) for c in configs if c.split_k == 1]


def ranked(designs: Sequence[CutlassDesign], wanted: Sequence[CutlassDesign]) -> list[int]:
    """Indices of kernels: ordered by the first proposal with the same tile and cluster, then with the same tile, then
    the rest.
    """
    whole = {design: place for place, design in reversed(list(enumerate(wanted)))}
    tiles = {design.tile: place for place, design in reversed(list(enumerate(wanted)))}

    def key(place: int) -> tuple[float, float]:
        return whole.get(designs[place], inf), tiles.get(designs[place].tile, inf)

    return sorted(range(len(designs)), key=key)


def _design(operator: Any) -> CutlassDesign:
    about = operator.metadata.design
    return CutlassDesign(tuple(about.tile_shape[:2]), tuple(about.cluster_shape[:2]))


def _call(operator: Any, arguments: Any) -> Callable[[], None]:
    artifact = operator.compile(arguments)

    def run() -> None:
        operator.run(arguments, artifact, assume_supported_args=True)  # on the default stream

    return run
