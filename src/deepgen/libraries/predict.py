"""Predicts the times of kernels and baselines at shapes where none was timed.

Each tuned shape shows how close the best kernel comes to the device's bound there, and how much slower each other
kernel and each baseline is. These ratios are similar for nearby shapes, so they are averaged over the tuned shapes with
weights that decrease with the distance. A kernel that was only timed at distant shapes is expected to lose some
efficiency. How a kernel's time changes with the shape, through partial tiles or idle multiprocessors, comes from its
family's own model if it has one. The bound is a roofline; for products on GPUs it is what a vendor's library reaches
(baselines/products.py). Shapes whose rows have another alignment count as more distant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, log2, sqrt

from deepgen.baselines.products import LINE, reached, row_bytes
from deepgen.libraries.entry import Entry, Times, is_resized
from deepgen.operators import Operator
from deepgen.targets import Target
from deepgen.tuning.speed import bound

LOST_PER_OCTAVE = 0.03  # of the time, for each doubling of a size between a kernel's shapes and the requested one
FAR = 3.0  # octaves from every shape at which a kernel was timed: predictions beyond are not trusted
MOST_LOST = log(2.0)  # upper limit of a single loss: a disturbed measurement must not outweigh all others
UNTOLD = log(1.35)  # how optimistic predictions may be for a kernel timed only at its tuned shapes
_JUDGED = 32  # tuned shapes at which predictions are tested: large libraries must also answer quickly
_NEAR = 0.05  # octaves: within this distance all shapes have about the same weight

# The logarithm of a kernel's time according to its family's model, up to a constant; None without a model.
Model = Callable[[Entry, Operator], float | None]


@dataclass(frozen=True)
class Point:
    """A shape, and the seconds measured there: kernels by their ids, baselines by their names."""

    operator: Operator
    kernels: Mapping[str, float]
    baselines: Mapping[str, float]

    @property
    def best(self) -> float:
        return min(self.kernels.values())

    def lost(self, seconds: float) -> float:
        """The loss compared with the best kernel here: the logarithm of the ratio of times."""
        return log(seconds / self.best)


@dataclass(frozen=True)
class Predicted:
    """Seconds at a shape, by kernel id and by baseline."""

    kernels: Mapping[str, float]
    baselines: Mapping[str, float]


def points(entries: Sequence[Entry], times: Iterable[Times]) -> list[Point]:
    """The tuned shapes of entries timed under the same conditions. Side-by-side times take precedence."""
    first = entries[0]
    by_shape: dict[str, Point] = {}
    for entry in entries:
        for timed in entry.timed:
            key = timed.operator.slug()
            before = by_shape.get(key, Point(timed.operator, {}, {}))
            rivals = {name: rival.seconds for name, rival in timed.baselines.items()}
            by_shape[key] = Point(
                timed.operator, {**before.kernels, entry.kernel_id: timed.seconds}, {**before.baselines, **rivals}
            )
    here = {entry.kernel_id for entry in entries}
    for row in times:
        here_too = {kernel: value for kernel, value in row.kernels.items() if kernel in here}
        if here_too and row.conditions == first.conditions and is_resized(first.operator, row.operator):
            before = by_shape.get(row.operator.slug(), Point(row.operator, {}, {}))
            rivals = {**before.baselines, **row.baselines}
            by_shape[row.operator.slug()] = Point(row.operator, {**before.kernels, **here_too}, rivals)
    return list(by_shape.values())


def predict(operator: Operator, entries: Sequence[Entry], points: Sequence[Point], model: Model) -> Predicted:
    """Predict times for a shape that all of the entries serve."""
    first = entries[0]
    octaves = {id(point): away(operator, point.operator, first.target) for point in points}
    weights = {key: weight(far) for key, far in octaves.items()}

    def least(shape: Operator) -> float:
        work = reached(shape, first.target) or bound(shape, first.peak_gflops, first.bandwidth).seconds
        return log(work or shape.flops() or shape.least_bytes() or 1)

    def average(values: Mapping[int, float]) -> float:
        return sum(weights[key] * value for key, value in values.items()) / sum(weights[key] for key in values)

    modelled = _relative(operator, entries, points, model)
    base = least(operator) + average({id(p): log(p.best) - least(p.operator) for p in points})
    kernels = {}
    for entry in entries:
        timed = [point for point in points if entry.kernel_id in point.kernels]
        there = modelled.get(entry.kernel_id, {})
        beyond = {id(p): p.lost(p.kernels[entry.kernel_id]) - there.get(id(p), 0.0) for p in timed}
        lost = average({key: min(value, MOST_LOST) for key, value in beyond.items()})
        worse = LOST_PER_OCTAVE * min(octaves[id(point)] for point in timed)
        kernels[entry.kernel_id] = exp(base + lost + there.get(id(operator), 0.0) + worse)
    names = dict.fromkeys(name for point in points for name in point.baselines)
    baselines = {}
    for name in names:
        behind = {id(p): min(p.lost(p.baselines[name]), MOST_LOST) for p in points if name in p.baselines}
        baselines[name] = exp(base + average(behind))
    return Predicted(kernels, baselines)


def spread(entries: Sequence[Entry], points: Sequence[Point], model: Model) -> float:
    """How optimistic predictions are: the logarithm of a ratio, 0 if it cannot be determined.

    Each tuned shape is predicted from the others, without the kernels tuned there, since a requested shape has none.
    The error is that of the ratio between the time of the kernel that would be chosen and that of the fastest baseline;
    the result is the root mean square of the errors. A kernel that is faster than predicted counts as error 0, since
    that does no harm.
    """
    modelled: dict[tuple[str, int], float | None] = {}

    def once(entry: Entry, shape: Operator) -> float | None:
        key = entry.kernel_id, id(shape)
        if key not in modelled:
            modelled[key] = model(entry, shape)
        return modelled[key]

    squares = []
    for point in points[:_JUDGED]:
        others = [other for other in points if other is not point]
        elsewhere = {kernel for other in others for kernel in other.kernels} & set(point.kernels)
        rivals = {name for other in others for name in other.baselines} & set(point.baselines)
        able = [e for e in entries if e.kernel_id in elsewhere and e.at(point.operator) is None]
        if able and rivals:
            expected = predict(point.operator, able, others, once)
            best = min(expected.kernels, key=lambda kernel: expected.kernels[kernel])
            lead = expected.kernels[best] / min(expected.baselines[name] for name in rivals)
            measured = point.kernels[best] / min(point.baselines[name] for name in rivals)
            squares.append(min(max(0.0, log(measured / lead)), MOST_LOST) ** 2)
    return sqrt(sum(squares) / len(squares)) if squares else 0.0


def margin(entry: Entry, points: Sequence[Point], spread: float) -> float:
    """How far a kernel must be ahead of a vendor's library: the logarithm of a ratio.

    If it was timed only at its own shapes, its loss at other shapes is unknown. On an H200 the loss was up to UNTOLD.
    """
    elsewhere = any(entry.kernel_id in point.kernels and entry.at(point.operator) is None for point in points)
    return spread if elsewhere else max(spread, UNTOLD)


def nearest(operator: Operator, entry: Entry, points: Sequence[Point]) -> Operator:
    """The nearest of the shapes at which a kernel was timed."""
    shapes = (point.operator for point in points if entry.kernel_id in point.kernels)
    return min(shapes, key=lambda shape: distance(shape, operator))


def distance(one: Operator, other: Operator) -> float:
    """The distance between the sizes, in octaves."""
    return sqrt(_squares(one, other))


def weight(octaves: float) -> float:
    """The weight of a shape at that distance."""
    return 1.0 / (_NEAR + octaves) ** 2


def away(one: Operator, other: Operator, target: Target) -> float:
    """Like `distance`, plus the octaves between the alignments of rows, where these matter."""
    elements = row_bytes(one, target)
    rows = (
        log2(_begin(a * elements[name]) / _begin(b * elements[name]))
        for name, a, b in _both(one, other)
        if name in elements
    )
    return sqrt(_squares(one, other) + sum(octaves**2 for octaves in rows))


def _squares(one: Operator, other: Operator) -> float:
    return sum(log2(a / b) ** 2 for _, a, b in _both(one, other))


def _both(one: Operator, other: Operator) -> Iterator[tuple[str, int, int]]:
    """Sizes that are nonzero in both; the size of a padding, for example, may be 0."""
    a, b = one.sizes(), other.sizes()
    return ((name, a[name], b[name]) for name in a if a[name] > 0 and b.get(name, 0) > 0)


def _begin(row: int) -> int:
    """The alignment in bytes of rows of this length, up to a cache line."""
    return min(row & -row, LINE)


def _relative(
    operator: Operator, entries: Sequence[Entry], points: Sequence[Point], model: Model
) -> dict[str, dict[int, float]]:
    """According to each family's model: by how much a kernel is slower, at each shape, than a vendor's library, or, if
    there is no model of that, than the fastest kernel.
    """
    out: dict[str, dict[int, float]] = {entry.kernel_id: {} for entry in entries}
    for key, shape in [(id(operator), operator), *((id(point), point.operator) for point in points)]:
        modelled = {entry.kernel_id: model(entry, shape) for entry in entries}
        vendor = reached(shape, entries[0].target)
        least = log(vendor) if vendor else min((v for v in modelled.values() if v is not None), default=0.0)
        for kernel, value in modelled.items():
            if value is not None:
                out[kernel][key] = value - least
    return out
