"""What a task needs from its group's hosts: its config, its space file, and the tester's target."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from deepgen import targets
from deepgen.targets import Target
from deepgen.vocabulary import BadInput
from deepgen_cluster.code import own_code
from deepgen_cluster.machines import reach
from deepgen_cluster.model import GroupTask, WorkGroup
from deepgen_cluster.ssh import Ask, HostError


@dataclass(frozen=True)
class Fetched:
    """A task's files as they were when it started."""

    name: str  # for messages
    config: bytes
    space: bytes | None
    target: Target


def fetch(group: WorkGroup, task: GroupTask, beside: Path, password: Ask) -> Fetched:
    """Read files from the builder's folder, or else from beside the task file."""
    return asyncio.run(_fetch(group, task, beside, password))


async def _fetch(group: WorkGroup, task: GroupTask, beside: Path, password: Ask) -> Fetched:
    async with reach(group.builder, password) as machine:

        async def read(path: str) -> bytes | None:
            found = await machine.call("read", path=path)
            if found is not None:
                return base64.b64decode(found)
            local = beside / path
            return local.read_bytes() if local.is_file() else None

        config = await read(task.config)
        space = await read(task.space) if task.space else None
    if config is None:
        what = f"{task.config} is neither in {group.builder.folder} on {group.builder} nor in {beside}"
        raise BadInput(what, where=f"group {group.name}")
    return Fetched(PurePosixPath(task.config).name, config, space, await _target(group, password))


async def _target(group: WorkGroup, password: Ask) -> Target:
    """A named architecture is the same everywhere; `native` and processors are resolved on the tester."""
    kind, _, arch = group.target.partition(":")
    if kind != "x86" and arch not in ("", "native"):
        return targets.resolve(group.target)
    if kind == "sim":
        return targets.resolve(group.target)
    async with reach(group.tester, password) as machine:
        said = (await machine.call("probe", code=own_code().name, build=[], measure=[group.target]))["measure"]
    found = said[group.target]
    if "problem" in found:
        raise HostError(group.tester, found["problem"])
    return targets.from_json(found["ok"])
