"""Implementations by others to compare with: each optional, each found at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from deepgen.baselines.base import Baseline, Choosing, NewResult
from deepgen.operators import Operator
from deepgen.targets import Target
from deepgen.vocabulary.finding import CodeSource
from deepgen.vocabulary.registry import Registry

BASELINES: Registry[Callable[[], Baseline]] = Registry(
    "deepgen.baselines",
    "baseline",
    {
        "numpy": "deepgen.baselines.cblas:NumpyBlas",
        "torch": "deepgen.baselines.torch_cpu:TorchCpu",
        "torch-gpu": "deepgen.baselines.torch_gpu:TorchGpu",
        "cublaslt": "deepgen.baselines.cublaslt:CublasLt",
        "cudnn": "deepgen.baselines.torch_gpu:Cudnn",
        "rocblas": "deepgen.baselines.torch_gpu:RocBlas",
        "hipblaslt": "deepgen.baselines.torch_gpu:HipBlasLt",
        "mkl": "deepgen.baselines.cblas:Mkl",
        "openblas": "deepgen.baselines.cblas:OpenBlas",
        "onednn": "deepgen.baselines.torch_cpu:OneDnn",
        "torch-compile": "deepgen.baselines.torch_gpu:TorchCompile",
        "triton": "deepgen.baselines.triton_matmul:TritonMatmul",
        "cutlass-dsl": "deepgen.baselines.cutlass_dsl:CutlassDsl",
        "tvm": "deepgen.baselines.tvm_schedules:Tvm",
    },
)


Own = Mapping[str, CodeSource]  # baselines of a user's own by their names, and how they are found


def find(operator: Operator, target: Target, own: Own | None = None) -> list[str]:
    """The names of those that can run this operator here."""
    candidates = [*(make() for make in BASELINES.working()), *(source.load()() for source in (own or {}).values())]
    return [one.name for one in candidates if one.missing(operator, target) is None]


def raced(names: Sequence[str]) -> list[str]:
    """Those that take part without being asked for by name: not what takes long to start or repeats another."""
    classes = {name: BASELINES.get(name) for name in names if name in BASELINES}
    return [name for name in names if not getattr(classes.get(name), "on_request", False)]


def by_name(name: str, own: Own | None = None) -> Baseline:
    if own and name in own:
        baseline: Baseline = own[name].load()()
        return baseline
    return BASELINES.get(name)()


__all__ = ["BASELINES", "Baseline", "Choosing", "NewResult", "by_name", "find", "raced"]
