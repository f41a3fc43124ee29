"""The default of a shape's family, made when a library measures the shape for the first time.

It needs no search, and it is made for the shape: there it is often faster than the winners of other shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deepgen import __version__, generators
from deepgen.build import build_once
from deepgen.build.flags import require_plain
from deepgen.generators.base import Generator
from deepgen.libraries.adding import Added, is_general, origin
from deepgen.libraries.entry import Entry, Rival, Timed
from deepgen.operators import Operator
from deepgen.targets import Target
from deepgen.tuning.serving import serves_only
from deepgen.tuning.statistics import median_interval, paired_ratio
from deepgen.tuning.winner import sha256
from deepgen.vocabulary import Artifact, Kernel, Measurement, completed

ORIGIN = "default of the family, measured at first use"
_SIZES_KNOB = "FIXED"  # whether a kernel knows its sizes when it is compiled


@dataclass(frozen=True)
class Default:
    """A kernel that was built for one shape, and is to be timed as other entries were."""

    operator: Operator
    like: Entry  # its target and conditions
    family: str
    config: Mapping[str, Any]
    kernel: Kernel
    artifact: Artifact


def config_of(family: Generator, operator: Operator, target: Target) -> Mapping[str, Any]:
    """The family's default, with the sizes compiled in where the family can: it will serve no other shape."""
    config = family.default(operator, target)
    fixed = {**config, _SIZES_KNOB: True}
    return fixed if _SIZES_KNOB in config and family.space(operator, target).contains(fixed) else config


def make(operator: Operator, like: Entry) -> Default:
    """Build it. Raises DeepgenError where no family serves the shape, where there is no compiler, or it fails."""
    family = generators.find(operator, like.target)
    config = config_of(family, operator, like.target.limited_to(like.threads))
    kernel = family.emit(operator, like.target, config)
    require_plain(kernel, like.name)  # whose target may be of somebody else's library
    artifact = build_once(kernel, like.target)
    plan = completed(kernel, artifact.plan).plan
    untried = {"only": [dict(operator.sizes())], "why": "verified at no other shape", "dense": "never verified"}
    requires = (*plan.requires, *kernel.implied, *serves_only(untried, operator.signature()))
    signed = replace(artifact, plan=replace(plan, requires=requires))
    return Default(operator, like, family.name, config, kernel, signed)


def entry_of(default: Default, measured: Measurement, rivals: Mapping[str, Measurement]) -> Added:
    """As an entry, from a race in which it and the baselines took part."""
    assert measured.seconds is not None and default.artifact.plan is not None, "it was built, and timed"
    beside = {
        name: Rival(rival.seconds, paired_ratio(rival.samples, measured.samples).estimate)
        for name, rival in rivals.items()
        if rival.ok and rival.seconds
    }
    requires, like = default.artifact.plan.requires, default.like
    entry = Entry(
        target=like.target,
        cold=like.cold,
        threads=like.threads,
        general=is_general(requires, default.operator),
        family=default.family,
        config=dict(default.config),
        kernel_id=default.kernel.id,
        binary=sha256(Path(default.artifact.binary)),
        requires=requires,
        timed=(Timed(default.operator, measured.seconds, median_interval(measured.samples), beside),),
        peak_gflops=like.peak_gflops,
        bandwidth=like.bandwidth,
        provenance={"origin": ORIGIN, "rounds": len(measured.samples), **origin(__version__, default.artifact)},
    )
    return entry, default.kernel, default.artifact
