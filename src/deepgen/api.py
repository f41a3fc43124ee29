"""The Python interface: the same defaults as the command line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from deepgen import targets
from deepgen.engines import Engine
from deepgen.generators import Generator
from deepgen.measure.base import Policy
from deepgen.operators import Operator
from deepgen.search import DEFAULT
from deepgen.targets import Target
from deepgen.tuning import Progress, Request, Study
from deepgen.tuning import tune as run
from deepgen.tuning.request import STUDIES
from deepgen.vocabulary import BadInput


def tune(
    operator: Operator,
    *,
    target: str | Target | None = None,
    trials: int = 200,
    time_budget: float | None = None,
    seed: int = 0,
    strategy: str = DEFAULT,
    options: Mapping[str, Any] | None = None,
    transfer: bool = True,
    second_look: bool = True,
    target_speedup: float | None = None,
    patience: int | None = None,
    keep_top: int = 8,
    knobs: Mapping[str, Sequence[Any]] | None = None,
    generator: Generator | None = None,
    policy: Policy | None = None,
    baselines: bool = True,
    out: str | Path = STUDIES,
    engine: Engine | None = None,
    watch: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> Study:
    """Tune an operator on a target and give its study; called again with the same words, it goes on where it stopped.

    `target` is a name such as "x86:native", or None for the best device here. `knobs` narrows knobs to some of their
    values. `generator` is a family of kernels of your own in place of deepgen's. `out` is where studies are kept.
    """
    if not isinstance(target, (str, Target, NoneType)):
        raise BadInput(f"target is {target!r}", allowed='a name such as "x86:native", or None')
    request = Request(
        operator=operator,
        target=target if isinstance(target, Target) else targets.resolve(target),
        trials=trials,
        time_budget=time_budget,
        seed=seed,
        strategy=strategy,
        options=options or {},
        transfer=transfer,
        second_look=second_look,
        target_speedup=target_speedup,
        patience=patience,
        keep_top=keep_top,
        domains=knobs or {},
        generator=generator,
        policy=policy or Policy(),
        baselines=baselines,
        out=Path(out),
    )
    return run(request, engine=engine, watch=watch, stop=stop)
