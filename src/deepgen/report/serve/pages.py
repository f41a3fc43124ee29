"""Pages of studies: the report of each, made again only when its journal has changed, and seldom while that goes on.

To make a report takes a moment of a core, which a study that runs here would miss. So while one changes, most of the
time its report is not being made; what happens meanwhile reaches the page as events.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any

from deepgen.report import page
from deepgen.report.facts import Facts, facts_of
from deepgen.report.serve.hub import Hub
from deepgen.report.serve.looks import Seen, Trials
from deepgen.report.serve.places import changed, run_of
from deepgen.tuning import Study

_REST = 20.0  # times as long as a report took, before the next one of the same study
_LEAST_REST = 1.0  # seconds
_MOST = 16  # pages that are kept


@dataclass(frozen=True)
class _Made:
    html: str
    seen: Seen
    at: float  # monotonic
    rest: float  # seconds


class Pages:
    """The report of each study that somebody looked at."""

    def __init__(self, hub: Hub, *, may_stop: bool) -> None:
        self._hub, self._may_stop = hub, may_stop
        self._made: OrderedDict[str, _Made] = OrderedDict()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def get(self, id: str, *, newest: bool) -> str | None:
        """The page of a study, None where there is none. `newest` waits for one that shows the journal as it is."""
        async with self._locks[id]:
            seen = await self._hub.seen(id)
            if seen is None:
                return None
            made = self._made.get(id)
            if made is not None and changed(made.seen.mark, seen.mark):
                left = made.at + made.rest - time.monotonic()
                if left > 0 and not newest:
                    return made.html
                await asyncio.sleep(max(0.0, left))
                seen, made = await self._hub.seen(id), None
                if seen is None:
                    return None
            if made is None:
                began = time.monotonic()
                html = await asyncio.to_thread(self._render, seen)
                now = time.monotonic()
                made = self._made[id] = _Made(html, seen, now, max(_LEAST_REST, _REST * (now - began)))
                while len(self._made) > _MOST:
                    self._made.popitem(last=False)
            self._made.move_to_end(id)
            return made.html

    def _render(self, seen: Seen) -> str:
        facts = facts_of(Study.open(seen.folder))
        stop = f"/stop/study/{seen.id}" if self._may_stop and run_of(seen.id) is None else None
        return page.render(facts, {**_joined(facts, seen), "stop": stop, "name": seen.name})


def _joined(facts: Facts, seen: Seen) -> dict[str, Any]:
    """What the page's script needs to add trials to those of the report, which have other names and units."""
    trials = seen.trials or Trials()
    return {
        "events": f"/events/{seen.id}?last={trials.epoch}-{len(trials.texts)}",
        "made_of": facts["ended"],
        "scale": facts["unit"]["scale"],
        "knobs": {knob["name"]: knob["field"] for knob in facts["knobs"]},
        "last": json.loads(trials.texts[-1]) if trials.texts else None,
    }
