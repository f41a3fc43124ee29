"""Third-party implementations to compare with; each is optional and detected at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from deepgen.baselines.base import Baseline, Choosing, NewResult, PackedAhead, baseline_of
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
        "cudnn-nhwc": "deepgen.baselines.torch_gpu:CudnnNhwc",
        "sdpa-cudnn": "deepgen.baselines.torch_gpu:Sdpa",
        "sdpa-flash": "deepgen.baselines.torch_gpu:SdpaFlash",
        "sdpa-efficient": "deepgen.baselines.torch_gpu:SdpaEfficient",
        "sdpa-math": "deepgen.baselines.torch_gpu:SdpaMath",
        "sdpa-backward-cudnn": "deepgen.baselines.torch_gpu:SdpaBackward",
        "sdpa-backward-flash": "deepgen.baselines.torch_gpu:SdpaBackwardFlash",
        "rocblas": "deepgen.baselines.torch_gpu:RocBlas",
        "hipblaslt": "deepgen.baselines.torch_gpu:HipBlasLt",
        "mkl": "deepgen.baselines.cblas:Mkl",
        "openblas": "deepgen.baselines.cblas:OpenBlas",
        "onednn": "deepgen.baselines.torch_cpu:OneDnn",
        "onednn-packed": "deepgen.baselines.torch_cpu:OneDnnPacked",
        "torch-compile": "deepgen.baselines.torch_gpu:TorchCompile",
        "triton": "deepgen.baselines.triton_matmul:TritonMatmul",
        "cutlass-dsl": "deepgen.baselines.cutlass_dsl:CutlassDsl",
        "tvm": "deepgen.baselines.tvm_schedules:Tvm",
    },
)


Own = Mapping[str, CodeSource]  # the user's own baselines: a name, and where the code is


def find(operator: Operator, target: Target, own: Own | None = None) -> list[str]:
    """The names of the baselines that can run this operator here."""
    candidates = [*(make() for make in BASELINES.working()), *(by_name(name, own) for name in own or ())]
    return [one.name for one in candidates if one.missing(operator, target) is None]


def raced(names: Sequence[str], beside: Operator | None = None, *, packs: bool = False) -> list[str]:
    """The baselines that take part by default, without those that start slowly or repeat another one.

    `beside`: if they are only shown for comparison with kernels of this operator, those with prepacked weights are
    included; `packs`: so are they if those kernels prepack their weights too.
    """
    classes = {name: BASELINES.get(name) for name in names if name in BASELINES}
    able = [name for name in names if not getattr(classes.get(name), "on_request", False)]
    ahead = {name: getattr(classes.get(name), "ahead", None) for name in able}
    return [name for name, shown in ahead.items() if shown is None or (beside is not None and (packs or shown(beside)))]


def light(names: Sequence[str], own: Own | None = None) -> list[str]:
    """The baselines without imports that take seconds."""
    return [name for name in names if not getattr(by_name(name, own), "imports", ())]


def behind(name: str, own: Own | None = None) -> bool:
    """Whether its users' arrays begin behind a cache line."""
    return name not in (own or ()) and name in BASELINES and getattr(BASELINES.get(name), "behind", False)


def by_name(name: str, own: Own | None = None) -> Baseline:
    if own and name in own:
        baseline = baseline_of(own[name].load())
        assert baseline is not None, "it was one when it was given"
        return baseline
    return BASELINES.get(name)()


__all__ = [
    "BASELINES",
    "Baseline",
    "Choosing",
    "NewResult",
    "PackedAhead",
    "baseline_of",
    "by_name",
    "find",
    "light",
    "raced",
]
