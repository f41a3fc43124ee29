"""A task's files: config, space file and the tester's target from the hosts, the requests, and the results."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from deepgen.extend import (
    BadInput,
    Generator,
    Json,
    Policy,
    Request,
    Settings,
    Study,
    Target,
    Trial,
    foreign,
    formats,
    targets,
    write_results,
)
from deepgen_cluster.machines import own_code, reach
from deepgen_cluster.model import GroupTask, WorkGroup
from deepgen_cluster.ssh import Ask, HostError


@dataclass(frozen=True)
class Fetched:
    """A task's files as of its start."""

    name: str  # for messages
    config: bytes
    space: bytes | None
    target: Target


def fetch(group: WorkGroup, task: GroupTask, beside: Path, password: Ask) -> Fetched:
    """Read files from the builder's folder, or else from the task file's folder."""
    return asyncio.run(_fetch(group, task, beside, password))


async def _fetch(group: WorkGroup, task: GroupTask, beside: Path, password: Ask) -> Fetched:
    async with reach(group.builder, password) as machine:

        async def read(path: str) -> bytes | None:
            content = await machine.call("read", path=path)
            if content is not None:
                return base64.b64decode(content)
            local = beside / path
            return local.read_bytes() if local.is_file() else None

        config = await read(task.config)
        space = await read(task.space) if task.space else None
    if config is None:
        what = f"{task.config} is neither in {group.builder.folder} on {group.builder} nor in {beside}"
        raise BadInput(what, where=f"group {group.name}")
    return Fetched(PurePosixPath(task.config).name, config, space, await _target(group, password))


async def _target(group: WorkGroup, password: Ask) -> Target:
    """A named architecture is the same everywhere; `native` and CPUs are resolved on the tester."""
    kind, _, arch = group.target.partition(":")
    if kind != "x86" and arch not in ("", "native"):
        return targets.resolve(group.target)
    if kind == "sim":
        return targets.resolve(group.target)
    async with reach(group.tester, password) as machine:
        answers = (await machine.call("probe", code=own_code().name, build=[], measure=[group.target]))["measure"]
    answer = answers[group.target]
    if "problem" in answer:
        raise HostError(group.tester, answer["problem"])
    return targets.from_json(answer["ok"])


FINALISTS = 8  # if `keep_top` is larger: finals choose a winner, result files are for reading


def requests_of(
    group: WorkGroup, fetched: Fetched, out: Path, options: Mapping[str, Any], settings: Settings
) -> Sequence[Request]:
    """One per study. The group defines the target, the config the work; the command line overrides the budget."""
    # Saved as of the task's start, since the file on the host may change.
    config = out / "configs" / fetched.name
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_bytes(fetched.config)
    samples = {} if group.samples is None else {"min_samples": group.samples, "max_samples": group.samples}
    policy = Policy(timeout_seconds=settings.limits.run_seconds, **samples)  # type: ignore[arg-type]
    tuning = {**group.tuning, **{name: value for name, value in options.items() if value is not None}}
    common: dict[str, Any] = {"target": fetched.target, "policy": policy, "out": out}
    common["keep_top"] = min(group.keep_top, FINALISTS)
    own = formats.read(config, group.space_strategy, fetched.name)
    if own.generator is not None:
        return [Request(operator=own.operators[0], generator=_points(own, fetched, group), **common, **tuning)]
    for name in ("trials", "time_budget", "seed", "strategy", "counters"):
        if getattr(own, name) is not None:
            tuning.setdefault(name, getattr(own, name))
    return [Request(operator=operator, domains=own.knobs, **common, **tuning) for operator in own.operators]


def _points(config: formats.TuningFile, fetched: Fetched, group: WorkGroup) -> Generator | None:
    """As in the legacy tool: if there is a space file, it defines the space, and must be for the same problem."""
    if fetched.space is None:
        return config.generator
    where = f"group {group.name}: the space file of {fetched.name}"
    space = formats.Document(config.file, foreign.parse(fetched.space, where), where)
    if not formats.FORMATS.get("older_points")().claims(space.items):
        raise BadInput("is not a space file", where=where, allowed='{"template": a tuning config, "cfgs": [numbers]}')
    listed = formats.tuning_of(space, group.space_strategy)
    problem, other = config.operators[0], listed.operators[0]
    if problem != other:
        raise BadInput(f"is of {other.describe()}, but the config is of {problem.describe()}", where=where)
    return listed.generator


ON_BUILDER = "_cluster_run"  # the legacy tool's location, in the builder's folder


class OnDevice(Study):
    """The part of a study that one of its group's devices measured."""

    def __init__(self, study: Study, slot: int, card: int) -> None:
        super().__init__(study.folder, study.definition, operator=study.operator, generator=study.generator)
        self._slot, self._card = slot, card

    def _here(self, conditions: Mapping[str, Json]) -> bool:
        # Ray may assign any card to any slot; without cards, only slots are known.
        card = conditions.get("card")
        return conditions.get("slot") == self._slot if card is None else card == str(self._card)

    def top(self, count: int = 10) -> list[Trial]:
        everything = super().top(len(self.trials()) or 1)
        return [trial for trial in everything if self._here(trial.measurement.conditions)][:count]


def write_all(study: Study, group: WorkGroup, prefix: Path) -> list[Path]:
    """Write a file for each device with a correct kernel, with the best `keep_top` of each."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    if len(group.devices) == 1:
        return [write_results(study, prefix, group.devices[0], group.keep_top)]
    views = [(device, OnDevice(study, slot, device)) for slot, device in enumerate(group.devices)]
    return [write_results(view, prefix, device, group.keep_top) for device, view in views if view.top(1)]


def copy_to_builder(files: list[Path], group: WorkGroup, password: Ask) -> str | None:
    """Copy result files to the host that built; returns the problem, if any."""

    async def copy() -> None:
        async with reach(group.builder, password) as machine:
            for file in files:
                content = base64.b64encode(file.read_bytes()).decode()
                await machine.call("write", path=f"{ON_BUILDER}/{file.name}", content=content)

    try:
        asyncio.run(copy())
    except HostError as error:
        return f"the results are here but were not copied to the builder: {error}"
    return None
