"""Families of kernels, and in which order they are tried for an operator on a target: the first is the default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.generators.base import Generator, Yielding
from deepgen.operators import Operator
from deepgen.targets import Target
from deepgen.vocabulary.errors import BadInput


def families() -> tuple[Generator, ...]:
    """All generators. Of those that serve, the better choice is an earlier one, unless it yields."""
    from deepgen.generators.sim import SimTiles
    from deepgen.generators.templates.mma.mma_gemm import MmaGemm
    from deepgen.generators.templates.simt.simt_gemm import SimtGemm
    from deepgen.generators.templates.skinny.skinny_gemm import SkinnyGemm
    from deepgen.generators.templates.sm90.sm90_gemm import Sm90Gemm
    from deepgen.generators.templates.x86_amx.amx_gemm import AmxGemm, AmxGemmConstant
    from deepgen.generators.templates.x86_dot.dot_gemm import DotGemm
    from deepgen.generators.templates.x86_fma.fma_gemm import X86Gemm, X86GemmConstant

    return (
        X86Gemm(),
        X86GemmConstant(),
        AmxGemm(),
        DotGemm(),
        AmxGemmConstant(),  # after vectors, too: what packs B ahead is only taken by name
        Sm90Gemm(),
        SkinnyGemm(),
        MmaGemm(),
        SimtGemm(),
        SimTiles(),
    )


def find(operator: Operator, target: Target) -> Generator:
    """The generator for this operator on this target; says why when there is none."""
    return serving(operator, target)[0]


def serving(operator: Operator, target: Target) -> list[Generator]:
    """All generators for this operator on this target, the best choice first; says why when there is none."""
    answers = [(family, family.refuses(operator, target)) for family in families()]
    found = [family for family, reason in answers if reason is None]
    if not found:
        reasons = "; ".join(f"{family.name}: {reason}" for family, reason in answers)
        raise BadInput(f"no generator serves {operator.describe()} on {target.name}", allowed=reasons)
    return sorted(found, key=lambda family: isinstance(family, Yielding) and family.yields(operator, target))


def by_name(name: str, recipe: Mapping[str, Any] | None = None) -> Generator:
    """The generator that a study was made with; `recipe` is what the study kept of one that is made from data."""
    if recipe is not None:
        from deepgen.generators.legacy import NAME, LegacyGenerator

        if name == NAME:
            return LegacyGenerator.from_recipe(recipe)
    for family in families():
        if family.name == name:
            return family
    raise BadInput(f"unknown generator {name!r}", allowed="one of " + ", ".join(f.name for f in families()))


__all__ = ["Generator", "by_name", "families", "find", "serving"]
