"""Result files of a task, one per device as the older tool writes them, here and on the host that built."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path

from deepgen.tuning import Study
from deepgen.tuning.formats import write_results
from deepgen.vocabulary import Json, Trial
from deepgen_cluster.machines import reach
from deepgen_cluster.model import WorkGroup
from deepgen_cluster.ssh import Ask, HostError

ON_BUILDER = "_cluster_run"  # where the older tool put them, in the builder's folder


class OnDevice(Study):
    """The part of a study that one of its group's devices measured."""

    def __init__(self, study: Study, slot: int, card: int) -> None:
        super().__init__(study.folder, study.definition, operator=study.operator, generator=study.generator)
        self._slot, self._card = slot, card

    def _here(self, conditions: Mapping[str, Json]) -> bool:
        # Ray may give any card to any slot; without cards, only slots are known.
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
    """Copy result files to the host that built; returns what went wrong, if anything."""

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
