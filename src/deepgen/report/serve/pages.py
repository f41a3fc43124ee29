"""Pages of studies: the report of each, made again only when its journal has changed, and seldom while it runs.

To make a report takes seconds of a core, which a study that runs here would miss. What happens until the next one
reaches the page as events.
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
from deepgen.vocabulary import DeepgenError

_REST = 20.0  # times as long as a report took, before the next one of the same study
_LEAST_REST = 1.0  # seconds
_MOST = 16  # pages that are kept


@dataclass(frozen=True)
class _Page:
    html: str
    seen: Seen
    until: float  # when, by the monotonic clock, it may be made again while the study runs


class Pages:
    """The report of each study that somebody looked at."""

    def __init__(self, hub: Hub, *, may_stop: bool) -> None:
        self._hub, self._may_stop = hub, may_stop
        self._pages: OrderedDict[str, _Page] = OrderedDict()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def get(self, id: str, *, newest: bool) -> str:
        """The page of a study. `newest` waits for one that shows the journal as it is."""
        async with self._locks[id]:
            kept = self._pages.get(id)
            seen = await self._hub.seen(id)
            if seen is None:
                raise DeepgenError("this study is gone")
            if kept is not None and not changed(kept.seen.mark, seen.mark):
                return kept.html
            while kept is not None and seen.running and (left := kept.until - time.monotonic()) > 0:
                if not newest or self._hub.ended:
                    return kept.html
                await self._hub.rest(min(left, _LEAST_REST))
                seen = await self._hub.seen(id) or seen
            html, seconds = await asyncio.to_thread(self._render, seen)
            # The first page of all also takes what libraries take to load, and says nothing of the next one.
            rest = max(_LEAST_REST, _REST * seconds) if self._pages else _LEAST_REST
            self._pages[id] = _Page(html, seen, time.monotonic() + rest)
            self._pages.move_to_end(id)
            while len(self._pages) > _MOST:
                self._pages.popitem(last=False)
            return html

    def _render(self, seen: Seen) -> tuple[str, float]:
        """The page, and the seconds of a core that it took."""
        began = time.thread_time()
        facts = facts_of(Study.open(seen.folder))
        stop = f"/stop/study/{seen.id}" if self._may_stop and run_of(seen.id) is None else None
        html = page.render(facts, {**_joined(facts, seen), "stop": stop, "name": seen.name})
        return html, time.thread_time() - began


def _joined(facts: Facts, seen: Seen) -> dict[str, Any]:
    """What the page's script needs to add trials to those of the report, which have other names and units."""
    trials = seen.trials or Trials()
    return {
        "events": f"/events/{seen.id}?last={trials.epoch}-{len(trials.texts)}",
        "trials_shown": facts["ended"],
        "scale": facts["unit"]["scale"],
        "knobs": {knob["name"]: knob["field"] for knob in facts["knobs"]},
        "last": json.loads(trials.texts[-1]) if trials.texts else None,
    }
