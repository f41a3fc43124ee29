"""Configs on the command line: `KNOB=V,KNOB=V`, a rank, or the generator's default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.space import Space
from deepgen.tuning.study.text import knob_text
from deepgen.vocabulary.errors import BadInput


def choose(space: Space, default: Mapping[str, Any], text: str | None, rank: int | None) -> dict[str, Any]:
    """The config that is meant, valid in its space. Knobs that `text` leaves out keep their default."""
    if text is not None and rank is not None:
        raise BadInput("--config and --rank are both given", allowed="give one of them")
    if rank is not None:
        if rank >= space.ranks:
            raise BadInput(f"--rank {rank} is out of range", allowed=f"0 to {space.ranks - 1}")
        return dict(space.at(rank))
    config = {**default, **(parse(space, text) if text is not None else {})}
    if not space.contains(config):
        broken = "; ".join(str(b) for b in space.explain(config))
        raise BadInput("--config is excluded by the space's constraints", allowed=broken or "see: deepgen space")
    return config


def parse(space: Space, text: str) -> dict[str, Any]:
    """Knobs and values, each spelled as `top` and `show` print them."""
    domains = {knob.name: {knob_text(value): value for value in knob.values} for knob in space.knobs}
    config: dict[str, Any] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = word.partition("=")
        if name not in domains:
            raise BadInput(f"--config: {word!r}: there is no knob {name!r}", allowed="one of " + ", ".join(domains))
        if value not in domains[name]:
            raise BadInput(f"--config: {name} cannot be {value!r}", allowed="one of " + ", ".join(domains[name]))
        if name in config:
            raise BadInput(f"--config: {name} is given twice", allowed="once")
        config[name] = domains[name][value]
    return config
