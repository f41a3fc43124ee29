"""From a task's files to its tuning requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepgen.generators import Generator
from deepgen.run.measure.base import Policy
from deepgen.settings import Settings
from deepgen.tuning import Request, formats
from deepgen.vocabulary import BadInput, foreign
from deepgen_cluster.fetch import Fetched
from deepgen_cluster.model import WorkGroup

FINALISTS = 8  # of `keep_top` rows: finals are for choosing a winner, result files for reading


def requests_of(
    group: WorkGroup, fetched: Fetched, out: Path, options: Mapping[str, Any], settings: Settings
) -> Sequence[Request]:
    """One per study. The group says where; the config what; the command line comes before both for how long."""
    # Kept as they were when the task started: the host's file may change.
    config = out / "configs" / fetched.name
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_bytes(fetched.config)
    samples = {} if group.samples is None else {"min_samples": group.samples, "max_samples": group.samples}
    policy = Policy(timeout_seconds=settings.limits.run_seconds, **samples)  # type: ignore[arg-type]
    said = {**group.tuning, **{name: value for name, value in options.items() if value is not None}}
    common: dict[str, Any] = {"target": fetched.target, "policy": policy, "out": out}
    common["keep_top"] = min(group.keep_top, FINALISTS)
    own = formats.read(config, group.space_strategy, fetched.name)
    if own.generator is not None:
        return [Request(operator=own.operators[0], generator=_points(own, fetched, group), **common, **said)]
    for name in ("trials", "time_budget", "seed", "strategy", "counters"):
        if getattr(own, name) is not None:
            said.setdefault(name, getattr(own, name))
    return [Request(operator=operator, domains=own.knobs, **common, **said) for operator in own.operators]


def _points(config: formats.TuningFile, fetched: Fetched, group: WorkGroup) -> Generator | None:
    """As in the older tool: a space file that exists is the space, and must be of the same problem."""
    if fetched.space is None:
        return config.generator
    where = f"group {group.name}: the space file of {fetched.name}"
    space = formats.Document(config.file, foreign.parse(fetched.space, where), where)
    if not formats.FORMATS.get("older_points")().claims(space.items):
        raise BadInput("is not a space file", where=where, allowed='{"template": a tuning config, "cfgs": [numbers]}')
    listed = formats.tuning_of(space, group.space_strategy)
    problem, other = config.operators[0], listed.operators[0]
    if problem != other:
        raise BadInput(f"is of {other.describe()}, and the config of {problem.describe()}", where=where)
    return listed.generator
