"""The VTA plug-in's entry points; what bundles need for measuring is in `chip.py`. Imports are lazy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepgen.extend import Generator, Target, Toolchain


def family() -> Generator:
    from deepgen_vta.family import VtaRules

    return VtaRules()


def toolchain(target: Target, paths: Mapping[str, str]) -> Toolchain:
    from deepgen_vta.toolchain import VtaToolchain

    return VtaToolchain()
