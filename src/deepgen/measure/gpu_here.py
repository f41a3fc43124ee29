"""Is there a GPU here on which a target's kernels run?"""

from __future__ import annotations

from deepgen.targets import Cuda, Gpu, host
from deepgen.vocabulary import Missing


class Elsewhere(Missing):
    """Kernels for the target can be built on this machine but not run."""


def require(target: Gpu) -> None:
    """Raises Elsewhere, saying what this machine can do instead."""
    try:
        found: Gpu = host.cuda() if isinstance(target, Cuda) else host.hip()
    except Missing as error:
        raise _elsewhere(target, "this machine has none") from error
    if not runs_on(target, found):
        raise _elsewhere(target, f"the one here is {found.model} ({found.arch})")


def runs_on(target: Gpu, found: Gpu) -> bool:
    """Whether code built for a target runs on the card that was found."""
    if not isinstance(target, Cuda) or not isinstance(found, Cuda):
        return target.kind == found.kind and target.arch == found.arch
    if target.arch.endswith("a"):
        return target.sm == found.sm
    return target.sm // 10 == found.sm // 10 and target.sm <= found.sm


def _elsewhere(target: Gpu, why: str) -> Elsewhere:
    return Elsewhere(
        f"a GPU that runs {target.arch}",
        blocks=f"{why}, so this host can build kernels for {target.name} but not measure them",
        remedy="Pack them with `deepgen bundle pack`, run the bundle where such a GPU is, and merge its results.",
    )
