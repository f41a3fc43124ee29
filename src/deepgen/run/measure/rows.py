"""Kernels and baselines as requests to a worker name them."""

from __future__ import annotations

from pathlib import Path

from deepgen.run.measure.base import Contender
from deepgen.vocabulary import Artifact, JsonObject, Kernel, completed


def entry(kernel: Kernel, artifact: Artifact) -> JsonObject:
    """A built kernel, as it is launched."""
    launched = completed(kernel, artifact.plan).without_sources()
    return {"kernel": launched.to_json(), "binary": str(Path(artifact.binary).absolute())}


def row(contender: Contender) -> JsonObject:
    """A kernel or a baseline of a race."""
    named: JsonObject = {"name": contender.name, "timed": contender.timed}
    if contender.kernel is None or contender.artifact is None:
        return named
    return {**named, "worn": contender.worn, **entry(contender.kernel, contender.artifact)}
