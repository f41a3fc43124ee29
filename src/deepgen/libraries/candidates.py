"""Kernels generated for a shape when a library first measures it.

They need no search: the default of the shape's family, the configs that the family ranks next, and the winners of other
shapes with this shape's sizes compiled in. Further steps vary the fastest of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

from deepgen import __version__, generators
from deepgen.kernels.base import Generator, Modelled, Ranked
from deepgen.libraries.adding import Added, is_general, origin
from deepgen.libraries.entry import Entry, Rival, Timed
from deepgen.operators import Operator
from deepgen.run.measure.base import Contender
from deepgen.run.measure.race import median_interval, paired_ratio
from deepgen.space import Space
from deepgen.targets import host
from deepgen.toolchains import build_once
from deepgen.toolchains.base import require_plain
from deepgen.tuning.study.finals import Serves
from deepgen.tuning.study.winner import sha256
from deepgen.vocabulary import Artifact, DeepgenError, Kernel, Measurement, completed, digest

ORIGIN = "made for the shape, measured at first use"
_RANKED, _OTHERS, _VARIED = (
    12,
    4,
    12,
)  # at most: by the family's own ranking, winners of other shapes, in the second step
_ALIKE = 1.02  # ratio of modelled times up to which a config is worth trying: the model hardly distinguishes them
_SIZES_KNOB = "FIXED"  # whether sizes are compiled into a kernel

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Candidate:
    """A kernel built for one shape, to be timed in the same way as other entries."""

    operator: Operator
    like: Entry  # its target and conditions
    family: str
    config: Config
    kernel: Kernel
    artifact: Artifact

    @property
    def contender(self) -> Contender:
        return Contender(self.kernel.id, self.kernel, self.artifact)


def first(operator: Operator, like: Entry, winners: Sequence[Entry]) -> list[tuple[Generator, Config]]:
    """The configs worth trying at a shape, the default of its family first. Raises DeepgenError if none serves it."""
    family = generators.find(operator, like.target)
    target = like.target.limited_to(like.threads)
    space = family.space(operator, target)
    ranked = islice(family.ranked(operator, target), _RANKED) if isinstance(family, Ranked) else ()
    others = (dict(entry.config) for entry in winners if entry.family == family.name and _SIZES_KNOB in entry.config)
    fitting = islice((config for config in others if space.contains(config)), _OTHERS)
    return _once((family, sized(space, config)) for config in (family.default(operator, target), *ranked, *fitting))


def varied(best: Candidate, existing: Sequence[Config]) -> list[tuple[Generator, Config]]:
    """The fastest candidate with one knob changed, where the family's model predicts about the same time.

    Existing configs are left out. Empty if the family cannot rank configs: then only the default is built.
    """
    family = generators.by_name(best.family)
    if not isinstance(family, Ranked) or not isinstance(family, Modelled):
        return []
    target = best.like.target.limited_to(best.like.threads)
    space = family.space(best.operator, target)
    modelled = family.modelled_seconds(best.operator, target, best.config)
    by_knob: dict[str, list[tuple[int, Config]]] = {}
    for config in space.neighbors(best.config):
        if config in existing:
            continue
        knob = next(knob for knob in space.knobs if config.get(knob.name) != best.config.get(knob.name))
        expected = family.modelled_seconds(best.operator, target, config)
        if knob.name != _SIZES_KNOB and modelled is not None and expected is not None and expected <= _ALIKE * modelled:
            places = [knob.values.index(one[knob.name]) if knob.name in one else 0 for one in (config, best.config)]
            by_knob.setdefault(knob.name, []).append((abs(places[0] - places[1]), config))
    nearest_first = (sorted(rows, key=lambda row: row[0]) for rows in by_knob.values())
    interleaved = chain.from_iterable(zip_longest(*nearest_first))
    return [(family, row[1]) for row in islice(filter(None, interleaved), _VARIED)]


def sized(space: Space, config: Config) -> Config:
    """The config with the sizes compiled in, if the family supports that: it then serves no other shape."""
    fixed = {**config, _SIZES_KNOB: True}
    return fixed if _SIZES_KNOB in config and space.contains(fixed) else config


def build(operator: Operator, like: Entry, wanted: Sequence[tuple[Generator, Config]]) -> Iterator[Candidate | str]:
    """Build each of them in parallel on all CPUs; one that cannot be built gives the reason, such as no compiler."""

    def built(one: tuple[Generator, Config]) -> Candidate | str:
        try:
            return _built(operator, like, *one)
        except DeepgenError as error:
            return str(error)

    with ThreadPoolExecutor(host.usable_cores()) as pool:
        yield from pool.map(built, wanted)


def _built(operator: Operator, like: Entry, family: Generator, config: Config) -> Candidate:
    kernel = family.emit(operator, like.target, config)
    require_plain(kernel, like.name)  # the target may come from a library of somebody else
    artifact = build_once(kernel, like.target)
    plan = completed(kernel, artifact.plan).plan
    untried = Serves((dict(operator.sizes()),), why="not verified at any other shape", dense="never verified")
    requires = (*plan.requires, *kernel.implied, *untried.requirements(operator.signature()))
    signed = replace(artifact, plan=replace(plan, requires=requires))
    return Candidate(operator, like, family.name, config, kernel, signed)


def entry_of(candidate: Candidate, measured: Measurement, rivals: Mapping[str, Measurement]) -> Added:
    """The candidate as an entry, from a race with the baselines."""
    assert measured.seconds is not None and candidate.artifact.plan is not None, "it was built, and timed"
    beside = {
        name: Rival(rival.seconds, paired_ratio(rival.samples, measured.samples).estimate)
        for name, rival in rivals.items()
        if rival.ok and rival.seconds
    }
    requires, like = candidate.artifact.plan.requires, candidate.like
    entry = Entry(
        target=like.target,
        cold=like.cold,
        threads=like.threads,
        general=is_general(requires, candidate.operator),
        family=candidate.family,
        config=dict(candidate.config),
        kernel_id=candidate.kernel.id,
        binary=sha256(Path(candidate.artifact.binary)),
        requires=requires,
        timed=(Timed(candidate.operator, measured.seconds, median_interval(measured.samples), beside),),
        peak_gflops=like.peak_gflops,
        bandwidth=like.bandwidth,
        provenance={"origin": ORIGIN, "rounds": len(measured.samples), **origin(__version__, candidate.artifact)},
    )
    return entry, candidate.kernel, candidate.artifact


def _once(wanted: Iterable[tuple[Generator, Config]]) -> list[tuple[Generator, Config]]:
    return list({digest([family.name, dict(config)]): (family, config) for family, config in wanted}.values())
