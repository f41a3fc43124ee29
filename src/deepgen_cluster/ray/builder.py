"""A build as a Ray task: JSON goes in, JSON and the binary's bytes come out. Runs on the nodes that build."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from deepgen.extend import (
    Artifact,
    BuildError,
    BuildLimits,
    Cache,
    DeepgenError,
    Group,
    Kernel,
    Target,
    Toolchain,
    Verdict,
    default_cache_folder,
    make_artifact,
    targets,
    toolchain_for,
)
from deepgen_cluster.ray import devices, lease
from deepgen_cluster.ray.lease import end_with_node, refusal


def order(target: Target, toolchains: Mapping[str, str], limits: BuildLimits, cache: Path | None) -> str:
    """The settings that all builds of a study share."""
    return json.dumps(
        {
            "target": target.to_json(),
            "toolchains": dict(toolchains),
            "limits": asdict(limits),
            "cache": None if cache is None else str(cache),
        }
    )


def build(kernel: str, ordered: str) -> tuple[str, bytes]:
    """The Ray task. A failed build is a result; an exception is an internal error."""
    end_with_node()
    try:
        work = _build_setup(ordered)
        parsed = Kernel.from_json(json.loads(kernel))
        toolchain = _toolchain(ordered, parsed.language)
        with Group() as group, lease.building(group) if work.target.computes else nullcontext():
            artifact = make_artifact(parsed, toolchain, work.target, work.cache, work.limits, group)
        return json.dumps({"artifact": artifact.to_json()}), Path(artifact.binary).read_bytes()
    except BuildError as error:
        failed = {"verdict": error.verdict.value, "detail": error.detail, "log": error.log}
        return json.dumps({"failed": failed}), b""
    except DeepgenError as error:
        return json.dumps({"error": f"{platform.node()}: {error}"}), b""
    except OSError as error:
        return json.dumps({"error": refusal(error)}), b""


def read(reply: str) -> Artifact:
    """The result of `build`. Raises BuildError if the build failed, and DeepgenError if it could not be attempted."""
    answer: dict[str, Any] = json.loads(reply)
    if "failed" in answer:
        failed = answer["failed"]
        raise BuildError(Verdict(failed["verdict"]), failed["detail"], failed["log"])
    if "error" in answer:
        raise DeepgenError(answer["error"])
    return Artifact.from_json(answer["artifact"])


@dataclass(frozen=True)
class _BuildSetup:
    target: Target
    limits: BuildLimits
    cache: Cache


@lru_cache(maxsize=8)
def _build_setup(ordered: str) -> _BuildSetup:
    data = json.loads(ordered)
    folder = Path(data["cache"]) if data["cache"] else default_cache_folder()
    return _BuildSetup(targets.from_json(data["target"]), BuildLimits(**data["limits"]), Cache(folder))


@lru_cache(maxsize=8)
def _toolchain(ordered: str, language: str) -> Toolchain:
    # Cached for the life of the process: looking up a compiler runs it to get its version.
    return toolchain_for(_build_setup(ordered).target, language, json.loads(ordered)["toolchains"])


TRIES = 3  # of a build whose process dies, as in the local engine


class RemoteBuilds:
    """Submits kernels to any node with a free build slot."""

    def __init__(self, ray: Any, group: str | None, ordered: str) -> None:
        self._ray, self._order = ray, ordered
        self._task = ray.remote(
            num_cpus=0,
            resources=devices.taken_by_a_build(group),
            max_retries=0,  # we retry builds ourselves
            num_returns=2,
            scheduling_strategy="SPREAD",
        )(build)

    def start(self, kernel: str) -> tuple[Any, Any]:
        """References to the build's report, for `builder.read`, and to the binary, which stays on its node."""
        answer, binary = self._task.remote(kernel, self._order)
        return answer, binary

    def now(self, kernel: Kernel) -> tuple[Artifact, Any]:
        """Build and wait. Raises BuildError."""
        for _ in range(TRIES):
            answer, binary = self.start(json.dumps(kernel.to_json()))
            try:
                return read(self._ray.get(answer)), binary
            except self._ray.exceptions.RayTaskError as error:
                raise DeepgenError(f"a build on the Ray cluster failed: {error}") from error
            except self._ray.exceptions.RayError:  # the process or the node was lost
                continue
        raise BuildError(Verdict.BUILD_FAILED, f"the process that built it died {TRIES} times")
