"""Families of kernels, and in which order they are tried for an operator on a target: the first is the default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from deepgen.kernels import refusals
from deepgen.kernels.base import BringsFamily, Generator, rank_of
from deepgen.operators import Operator
from deepgen.targets import Target
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.registry import Registry

if TYPE_CHECKING:
    from deepgen.space import Space

_KERNELS = "deepgen.kernels"
# Of the families that serve with the same rank, the better choice is an earlier one. Plug-ins come after all of these.
FAMILIES: Registry[Callable[[], Generator]] = Registry(
    "deepgen.generators",
    "generator",
    {
        "x86_gemm": f"{_KERNELS}.gemm.x86_gemm:X86Gemm",
        "x86_gemm_constant_b": f"{_KERNELS}.gemm.x86_gemm:X86GemmConstant",
        "x86_amx_gemm": f"{_KERNELS}.gemm.x86_amx_gemm:AmxGemm",
        "x86_vector_dot_gemm": f"{_KERNELS}.gemm.x86_dot:DotGemm",
        # After vectors, too: what packs B ahead is only taken by name.
        "x86_amx_gemm_constant_b": f"{_KERNELS}.gemm.x86_amx_gemm:AmxGemmConstant",
        "rvv_gemm": f"{_KERNELS}.gemm.rvv_gemm:RvvGemm",
        "c_gemm": f"{_KERNELS}.gemm.c_gemm:CGemm",
        "sm90_gemm": f"{_KERNELS}.gemm.sm90_gemm:Sm90Gemm",
        "skinny_gemm": f"{_KERNELS}.gemm.skinny_gemm:SkinnyGemm",
        "mma_gemm": f"{_KERNELS}.gemm.mma_gemm:MmaGemm",
        "simt_gemm": f"{_KERNELS}.gemm.simt_gemm:SimtGemm",
        "c_softmax": f"{_KERNELS}.softmax.c_softmax:CSoftmax",
        "simt_softmax": f"{_KERNELS}.softmax.simt_softmax:SimtSoftmax",
        "c_conv2d": f"{_KERNELS}.conv2d.c_conv2d:CConv2d",
        "simt_conv2d": f"{_KERNELS}.conv2d.simt_conv2d:SimtConv2d",
        "rules": "deepgen.compiler.family:Rules",
        # Only taken by name: it takes weights to be constant.
        "rules_constant_weights": "deepgen.compiler.family:RulesConstantWeights",
        "sim_tiles": "deepgen.kernels.sim:SimTiles",
    },
)
# Generators that are made from data, by the names that studies keep of them.
RECIPES: Registry[Callable[[Mapping[str, Any]], Generator]] = Registry(
    "deepgen.recipes", "generator", {"own kernel": f"{_KERNELS}.own.triton_family:from_recipe"}
)


def families() -> tuple[Generator, ...]:
    """All generators, deepgen's own first."""
    return tuple(make() for make in FAMILIES.working())


def find(operator: Operator, target: Target, family: str | None = None) -> Generator:
    """The generator for this operator on this target, the best or that of the name; says why when there is none."""
    return serving(operator, target)[0] if family is None else serves(by_name(family), operator, target)


def serves(family: Generator, operator: Operator, target: Target) -> Generator:
    """The family itself. Raises BadInput where it does not serve the operator there."""
    refusals.check_addressable(operator)
    if (reason := family.refuses(operator, target)) is not None:
        what = f"generator {family.name} does not serve {operator.describe()} on {target.name}"
        raise BadInput(what, allowed=reason)
    return family


def on_threads(family: Generator, space: Space, most: int) -> dict[str, list[int]]:
    """The values of knobs that limit kernels to that many threads."""
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise BadInput(f"threads is {most!r}", allowed="an integer of at least 1")
    counts = next((knob.values for knob in space.knobs if knob.name == "THREADS"), ())
    fitting = [count for count in counts if isinstance(count, int) and count <= most]
    if not fitting:
        raise BadInput(f"threads is {most}", allowed=f"only for a CPU: {family.name} has no threads to count")
    return {"THREADS": fitting}


def serving(operator: Operator, target: Target) -> list[Generator]:
    """All generators for this operator on this target, the best choice first; says why when there is none."""
    if isinstance(operator, BringsFamily):
        return [serves(operator.family, operator, target)]
    candidates = families()
    refusals.check_addressable(operator)
    matches = [family for family in candidates if family.refuses(operator, target) is None]
    if not matches:
        instead = refusals.served_instead(operator, target, candidates)
        raise BadInput(f"no generator serves {operator.describe()} on {target.name}", allowed=instead)
    return sorted(matches, key=lambda family: rank_of(family, operator, target))


def by_name(name: str, recipe: Mapping[str, Any] | None = None) -> Generator:
    """The generator that a study was made with; `recipe` is what the study kept of one that is made from data."""
    if recipe is not None and name in RECIPES:
        return RECIPES.get(name)(recipe)
    return FAMILIES.get(name)()


__all__ = ["FAMILIES", "RECIPES", "Generator", "by_name", "families", "find", "on_threads", "serves", "serving"]
