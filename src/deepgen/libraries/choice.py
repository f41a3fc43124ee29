"""Dispatch: which of a library's kernels to use for a shape, why, and how to call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from typing import Any, TypeAlias

from deepgen import baselines, generators
from deepgen.kernels import Modelled
from deepgen.libraries import predict
from deepgen.libraries.entry import Entry, is_related, is_resized
from deepgen.libraries.store import LibraryContent
from deepgen.operators import Operator, TensorFacts
from deepgen.operators.signature import dense_strides
from deepgen.run.call.arguments import Arguments
from deepgen.run.call.arrays import CPU, View, allocator, view
from deepgen.run.call.loaded import Loaded
from deepgen.run.measure.gpu_device import DeviceTensor
from deepgen.targets import Target, host
from deepgen.tuning.study.text import counted, seconds_text
from deepgen.vocabulary import BadInput, DeepgenError
from deepgen.vocabulary.dtypes import DTYPES

EXACT, NEIGHBOUR, VENDOR, NONE = "exact", "neighbour", "vendor", "none"
Called: TypeAlias = "Loaded | VendorKernel"


class NotServed(DeepgenError):
    """The library has no kernel for the operator here, and no vendor library is available."""


@dataclass(frozen=True)
class Considered:
    """A candidate entry or baseline: its expected time, or why it cannot be used."""

    name: str
    seconds: float | None
    why_not: str | None = None


@dataclass(frozen=True)
class Choice:
    """The choice for an operator on a target."""

    operator: Operator
    target: Target
    how: str  # exact, neighbour, vendor or none
    entry: Entry | None  # if a kernel of the library was chosen
    vendor: str | None  # the baseline used instead
    seconds: float | None  # measured at this shape, or predicted
    reason: str
    considered: tuple[Considered, ...] = ()
    measured: bool = False  # whether kernels were timed at exactly this shape, even if a baseline is chosen
    loading: Callable[[Choice], Called] | None = field(default=None, repr=False, compare=False)

    @property
    def exact(self) -> bool:
        """Whether the choice was measured at exactly this shape."""
        return self.how == EXACT

    def load(self) -> Called:
        """A function on arrays, like `study.best().load()`. Raises NotServed if there is none."""
        if self.loading is None or self.how == NONE:
            raise NotServed(f"{self.operator.describe()} on {self.target.name} is not supported: {self.reason}")
        return self.loading(self)


def choose(content: LibraryContent, operator: Operator, target: Target, among: Sequence[str] | None = None) -> Choice:
    """The fastest, as measured at this shape or predicted from the tuned shapes.

    `among`: the baselines that may be used instead; None: all that can run.
    """
    able = baselines.find(operator, target)
    return decide(
        content,
        operator,
        target,
        baselines.raced(able) if among is None else [name for name in able if name in among],
    )


def decide(content: LibraryContent, operator: Operator, target: Target, able: Sequence[str]) -> Choice:
    """Like `choose`, with the baselines that can run."""
    alike = _alike(content, operator)
    here = comparable(content, operator, target)
    refused = {entry.name: f"it requires: {words}" for entry in here if (words := entry.serves(operator)) is not None}
    refused |= {entry.name: _foreign(entry, target) for entry in alike if entry not in here}
    serving = [entry for entry in here if entry.name not in refused]
    race = next(
        (r for r in content.times if here and (r.operator, r.conditions) == (operator, here[0].conditions)), None
    )
    failed = race is not None and not race.kernels
    without = "" if race is None or race.not_made is None else f"; no kernel was made for it: {race.not_made}"
    if serving and failed:
        refused = {entry.name: "it failed when it was timed at this shape" for entry in serving} | refused
        serving = []
    if not serving:
        choice = _without_ours(content, operator, target, alike, refused, able)
        return replace(choice, reason=f"{choice.reason}{without}", measured=failed)
    points = predict.points(here, content.times)
    times = _times_at(content, operator, serving, points, able)
    timed = [entry for entry in serving if entry.name in times.ours]
    octaves = {e.name: predict.distance(predict.nearest(operator, e, points), operator) for e in timed}
    near = [entry for entry in timed if octaves[entry.name] <= predict.FAR]
    best = min(near or timed, key=lambda entry: times.ours[entry.name])
    seconds = times.ours[best.name]
    vendor = min(times.rivals, key=lambda name: times.rivals[name], default=None)
    considered = (
        *(Considered(n, s) for n, s in sorted({**times.ours, **times.rivals}.items(), key=lambda row: row[1])),
        *(Considered(name, None, why) for name, why in refused.items()),
    )
    basis = "measured at this shape" if times.exact else f"predicted from {counted(len(points), 'tuned shape')}"
    if not near and able:
        name = vendor or able[0]
        closest = predict.nearest(operator, best, points).describe()
        away = f"the sizes of {closest} differ by a factor of {2 ** octaves[best.name]:.0f}"
        reason = f"no tuned shape is close: {away}; {name} is used instead"
        return Choice(operator, target, VENDOR, None, name, times.rivals.get(name), reason, considered)
    exact = times.exact or vendor is None
    off = 0.0 if exact else predict.margin(best, points, _spread(content, here, points))
    level = race is not None and vendor in race.ties and seconds <= min(race.kernels.values(), default=0.0)
    if (
        vendor is not None
        and not level
        and _is_behind(best, operator, vendor, seconds * exp(off), times.rivals[vendor])
    ):
        theirs = times.rivals[vendor]
        both = f"{basis}: {seconds_text(theirs)} against {seconds_text(seconds)} for ours"
        reason = f"{vendor} is faster, {both}{without}"
        if off and theirs >= seconds:
            reason = f"{vendor} may be faster, {both}, and such predictions are optimistic by up to {exp(off) - 1:.0%}"
        return Choice(operator, target, VENDOR, None, vendor, theirs, reason, considered, times.exact)
    reason = f"{seconds_text(seconds)}, {basis}"
    reason += "" if times.exact else f"; its kernel was tuned at {best.operator.describe()}"
    reason += "" if vendor is None else f"; {vendor} takes {seconds_text(times.rivals[vendor])}"
    slower = level and vendor is not None and times.rivals[vendor] <= seconds
    reason += ", equal within noise" if slower else ""
    how = EXACT if times.exact else NEIGHBOUR
    return Choice(operator, target, how, best, None, seconds, f"{reason}{without}", considered, times.exact)


def comparable(content: LibraryContent, operator: Operator, target: Target) -> list[Entry]:
    """The kernels of an operator, for any shape, that run on a target and whose times are comparable."""
    return _like_conditions([entry for entry in _alike(content, operator) if entry.target.runs_on(target)], target)


def _alike(content: LibraryContent, operator: Operator) -> list[Entry]:
    """The kernels of an operator, for any shape and any target."""
    return [entry for entry in content.entries.values() if any(is_resized(t.operator, operator) for t in entry.timed)]


def related(content: LibraryContent, operator: Operator) -> list[Entry]:
    """The kernels of an operator for other shapes, each of which serves only its own shape."""
    return [entry for entry in content.entries.values() if is_related(entry.operator, operator)]


@dataclass(frozen=True)
class _TimesAt:
    """Seconds at one shape: of entries by name, and of baselines."""

    exact: bool  # whether entries were timed there
    ours: Mapping[str, float]
    rivals: Mapping[str, float]


def _times_at(
    content: LibraryContent,
    operator: Operator,
    serving: Sequence[Entry],
    points: Sequence[predict.Point],
    able: Sequence[str],
) -> _TimesAt:
    """Measured times where available, otherwise predictions."""
    measured = next((point for point in points if point.operator == operator), predict.Point(operator, {}, {}))
    timed = {e.name: measured.kernels[e.kernel_id] for e in serving if e.kernel_id in measured.kernels}
    rivals = {name: measured.baselines[name] for name in able if name in measured.baselines}
    if timed and len(rivals) == len(able):
        return _TimesAt(True, timed, rivals)

    def once(entry: Entry, shape: Operator) -> float | None:
        key = entry.name, shape
        if shape is operator:
            return model_of(entry, shape)
        if key not in content.computed:
            content.computed[key] = model_of(entry, shape)
        modelled: float | None = content.computed[key]
        return modelled

    expected = predict.predict(operator, serving, points, once)
    predicted = {entry.name: expected.kernels[entry.kernel_id] for entry in serving}
    rivals = {**{name: value for name, value in expected.baselines.items() if name in able}, **rivals}
    return _TimesAt(bool(timed), timed or predicted, rivals)


def _spread(content: LibraryContent, here: Sequence[Entry], points: Sequence[predict.Point]) -> float:
    """How optimistic predictions from these entries are, which takes as long as many predictions."""
    key = tuple(entry.name for entry in here)
    if key not in content.computed:
        content.computed[key] = predict.spread(here, points, model_of)
    spread: float = content.computed[key]
    return spread


def model_of(entry: Entry, operator: Operator) -> float | None:
    """The logarithm of a kernel's time according to its family's model."""
    if entry.family not in generators.FAMILIES:
        return None
    family = generators.by_name(entry.family)
    if not isinstance(family, Modelled) or family.refuses(operator, entry.target) is not None:
        return None  # or an entry from elsewhere that names a family of another target
    try:
        seconds = family.modelled_seconds(operator, entry.target, entry.config)
    except (ArithmeticError, KeyError, TypeError, ValueError):  # a config from elsewhere, not one of the family's
        return None
    return log(seconds) if seconds is not None and seconds > 0 else None


def _like_conditions(entries: Sequence[Entry], target: Target) -> list[Entry]:
    """Entries with comparable times: of the most similar device, under the conditions that most were timed under."""
    on_device = [entry for entry in entries if entry.target.device_kind == target.device_kind]
    pool = on_device or list(entries)
    groups: dict[tuple[str, bool, int | None], list[Entry]] = {}
    for entry in pool:
        groups.setdefault(entry.conditions, []).append(entry)
    return max(groups.values(), key=len, default=[])


def _is_behind(entry: Entry, operator: Operator, vendor: str, ours: float, theirs: float) -> bool:
    """Whether the vendor's library is faster. If both were timed in interleaved rounds, the difference must be
    significant.
    """
    timed = entry.at(operator)
    rival = None if timed is None else timed.baselines.get(vendor)
    if rival is not None and rival.interval is not None:
        return rival.interval[1] < 1.0
    return theirs < ours


def _foreign(entry: Entry, target: Target) -> str:
    if not entry.target.runs_on(target):
        return f"it was built for {entry.target.describe()}"
    return f"it was timed under different conditions: {conditions_text(entry)}"


def conditions_text(entry: Entry) -> str:
    """The conditions under which an entry was timed."""
    caches = "cold" if entry.cold else "warm"
    threads = "" if entry.threads is None else f", at most {counted(entry.threads, 'thread')}"
    return f"{entry.target.device_kind}, {caches} caches{threads}"


def _without_ours(
    content: LibraryContent,
    operator: Operator,
    target: Target,
    alike: Sequence[Entry],
    refused: Mapping[str, str],
    able: Sequence[str],
) -> Choice:
    if not alike and (others := related(content, operator)):
        shapes = ", ".join(dict.fromkeys(entry.operator.describe() for entry in others[:3]))
        why = f"its {operator.name} kernels each support a single shape, and none this one: {shapes}"
        why += ", ..." if len(others) > 3 else ""
    elif not alike:
        why = "the library has no kernel for this operator at any shape"
    elif not any(entry.target.runs_on(target) for entry in alike):
        places = dict.fromkeys(entry.target.describe() for entry in alike)
        why = f"its kernels are for {', '.join(places)}, and this is {target.describe()}"
    else:
        name, reason = next(iter(refused.items()))
        why = f"none of its kernels supports this shape; {name}: {reason}"
    if content.damaged:
        why += f" ({counted(len(content.damaged), 'damaged file')}: see deepgen library check)"
    considered = tuple(Considered(name, None, reason) for name, reason in refused.items())
    if not able:
        return Choice(operator, target, NONE, None, None, None, why, considered)
    return Choice(operator, target, VENDOR, None, able[0], None, f"{why}; {able[0]} is used instead", considered)


class VendorKernel:
    """A baseline as a callable: takes the arrays that the operator reads, like a loaded kernel."""

    def __init__(self, name: str, operator: Operator, target: Target, threads: int | None = None) -> None:
        self.name, self.operator, self.target = name, operator, target
        self._baseline = baselines.by_name(name)
        self._arguments = Arguments(operator)
        self._threads = threads or host.usable_cores()

    def __call__(self, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """The operator's result: an array, or a tuple of several. Arrays must be dense."""
        arrays, values = self._arguments.sort(inputs, out, named)
        seen = {name: view(array, name) for name, array in arrays.items()}
        signature = self.operator.signature()
        facts = {
            n: TensorFacts(v.shape, signature.dtype_of(signature[n]), v.strides, v.device) for n, v in seen.items()
        }
        bound = self.operator.bind(facts, values)
        if (why := self._baseline.missing(bound, self.target)) is not None:
            raise BadInput(f"{self.name} does not support {bound.describe()}", allowed=why)
        for tensor in bound.tensors():
            if tensor.name in self._arguments.written and tensor.name not in arrays:
                arrays[tensor.name] = allocator([*arrays.values()], tensor, 1)(next(iter(arrays.values())))
                seen[tensor.name] = view(arrays[tensor.name], tensor.name)
        shaped = {t.name: t for t in bound.tensors()}
        tensors = {name: _shared(name, arrays[name], seen[name], shaped[name].dtype.name) for name in seen}
        self._baseline.prepare(bound, tensors, self._threads)()
        return self._arguments.result(arrays)

    def __repr__(self) -> str:
        return f"<{self.name} for {self.operator.describe()}, in place of a deepgen kernel>"


def _shared(name: str, array: Any, seen: View, dtype: str) -> Any:
    """The array's memory in the form that baselines take."""
    if seen.strides != dense_strides(seen.shape):
        raise BadInput(f"{name} is not a contiguous row-major array", allowed="pass a contiguous copy")
    if seen.device != CPU:
        return DeviceTensor(seen.address, seen.shape, DTYPES[dtype])
    import numpy as np

    return array if isinstance(array, np.ndarray) else np.asarray(array)
