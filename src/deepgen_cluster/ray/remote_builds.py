"""Builds on the cluster, as the driver asks for them."""

from __future__ import annotations

import json
from typing import Any

from deepgen.toolchains import BuildError
from deepgen.vocabulary import Artifact, DeepgenError, Kernel, Verdict
from deepgen_cluster.ray import builder, roles

TRIES = 3  # of a build whose process dies, as in the local engine


class RemoteBuilds:
    """Hands kernels to whichever node has a build slot free."""

    def __init__(self, ray: Any, group: str | None, ordered: str) -> None:
        self._ray, self._order = ray, ordered
        self._task = ray.remote(
            num_cpus=0,
            resources=roles.taken_by_a_build(group),
            max_retries=0,  # we retry builds ourselves
            num_returns=2,
            scheduling_strategy="SPREAD",
        )(builder.build)

    def start(self, kernel: str) -> tuple[Any, Any]:
        """References to the build's report, for `builder.read`, and to the binary, which stays on its node."""
        told, binary = self._task.remote(kernel, self._order)
        return told, binary

    def now(self, kernel: Kernel) -> tuple[Artifact, Any]:
        """Build and wait. Raises BuildError."""
        for _ in range(TRIES):
            told, binary = self.start(json.dumps(kernel.to_json()))
            try:
                return builder.read(self._ray.get(told)), binary
            except self._ray.exceptions.RayTaskError as error:
                raise DeepgenError(f"a build on the Ray cluster went wrong: {error}") from error
            except self._ray.exceptions.RayError:  # the process or the node is gone
                continue
        raise BuildError(Verdict.BUILD_FAILED, f"the process that built it died {TRIES} times")
