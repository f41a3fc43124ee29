"""The dispatch tables of an exported library, as in predict.py: times at the tuned shapes, relative to the best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log

from deepgen.baselines import products
from deepgen.baselines.products import VendorModel
from deepgen.libraries import predict
from deepgen.libraries.c.functions import ExportedFunction
from deepgen.libraries.c.kernels import KernelText
from deepgen.libraries.choice import choose, model_of
from deepgen.libraries.entry import Entry
from deepgen.libraries.predict import Point
from deepgen.libraries.store import LibraryContent
from deepgen.operators.signature import INOUT
from deepgen.vocabulary.dtypes import dtype


@dataclass(frozen=True)
class Table:
    """The kernels of a function that were timed under the same conditions, and the shapes at which they were timed."""

    entries: tuple[Entry, ...]
    kernels: tuple[KernelText, ...]
    points: tuple[Point, ...]
    chosen: tuple[int, ...]  # at each point: the index of the kernel, or -1 for a vendor's library


def tables_of(function: ExportedFunction, kernels: Mapping[str, KernelText], content: LibraryContent) -> list[Table]:
    """One table per device and conditions; the device with the most instruction sets comes first."""
    by: dict[tuple[str, bool, int | None], list[Entry]] = {}
    for entry in function.entries:
        if entry.name in kernels:
            by.setdefault(entry.conditions, []).append(entry)
    ordered = sorted(by.values(), key=lambda rows: (-len(rows[0].target.instruction_sets), -len(rows)))
    return [_table(function, rows, kernels, content) for rows in ordered]


def tables_text(function: ExportedFunction, tables: Sequence[Table]) -> str:
    """All tables of a function in C."""
    parts, rows = [], []
    for place, table in enumerate(tables):
        rivals = list(dict.fromkeys(name for point in table.points for name in point.baselines))
        lost = [_lost(p.kernels.get(entry.kernel_id), p) for entry in table.entries for p in table.points]
        both = list(zip(table.entries, table.kernels, strict=True))
        modelled = [_modelled(entry, p) if text.modelled else "NAN" for entry, text in both for p in table.points]
        theirs = [_lost(p.baselines.get(name), p, predict.MOST_LOST) for name in rivals for p in table.points]
        first = table.entries[0]
        model = products.vendor_model(first.operator, first.target)
        reached = [_logarithm(products.reached(p.operator, first.target)) for p in table.points]
        sizes = [str(point.operator.sizes()[name]) for point in table.points for name in function.sizes]
        rows_of = products.row_bytes(first.operator, first.target)
        off = predict.spread(table.entries, table.points, model_of)
        margins = [repr(predict.margin(entry, table.points, off)) for entry in table.entries]
        name = f"{function.name}_{place}"
        parts += [
            _array(f"kernel *const {name}_kernels", (f"&{text.object}" for text in table.kernels)),
            _array(f"const int64_t {name}_sizes", sizes or ["0"]),
            _array(f"const double {name}_lost", lost),
            _array(f"const double {name}_modelled", modelled),
            _array(f"const double {name}_rivals", theirs or ["NAN"]),
            _array(f"const int {name}_row_bytes", [str(rows_of.get(size, 0)) for size in function.sizes] or ["0"]),
            _array(f"const double {name}_reached", reached),
            _array(f"const int {name}_chosen", map(str, table.chosen)),
            _array(f"const double {name}_margins", margins),
            "" if model is None else _vendor_model(function, model, name),
        ]
        counts = f"{len(table.kernels)}, {len(table.points)}, {len(function.sizes)}, {len(rivals)}"
        names = ("sizes", "lost", "modelled", "rivals", "row_bytes", "reached")
        arrays = ", ".join(f"{name}_{part}" for part in names)
        vendor = "0" if model is None else f"{name}_vendor_model"
        limits = f"{predict.LOST_PER_OCTAVE}, {predict.FAR}, {predict.MOST_LOST!r}"
        rows.append(f"{{{name}_kernels, {counts}, {arrays}, {vendor}, {name}_chosen, {name}_margins, {limits}}}")
    return "\n".join([*parts, _array(f"const group {function.name}_groups", rows)])


def _table(
    function: ExportedFunction, entries: Sequence[Entry], kernels: Mapping[str, KernelText], content: LibraryContent
) -> Table:
    own = function.operator.sizes()
    fixed = [name for name in own if name not in function.sizes]
    all_points = predict.points(entries, content.times)
    points = tuple(p for p in all_points if all(p.operator.sizes()[name] == own[name] for name in fixed))
    names = [entry.name for entry in entries]
    served = [choose(content, point.operator, entries[0].target).entry for point in points]
    chosen = tuple(names.index(entry.name) if entry is not None and entry.name in names else -1 for entry in served)
    return Table(tuple(entries), tuple(kernels[name] for name in names), points, chosen)


def _array(declared: str, values: Iterable[str]) -> str:
    return f"static {declared}[] = {{{', '.join(values)}}};"


def _vendor_model(function: ExportedFunction, model: VendorModel, name: str) -> str:
    """The vendor's model as a function of sizes."""
    signature = function.operator.signature()
    bytes_of = [
        f"{dtype(signature.dtype_of(p)).bytes * (2 if p.role == INOUT else 1)} * {function.product(p.shape)}"
        for p in function.tensors
    ]
    numbers = (model.multiprocessors, model.byte_seconds, products.FIXED_SECONDS, products.PARTS_SECONDS)
    rates = ", ".join(map(repr, (*numbers, products.PARTS, products.LEAST_K, products.STEP)))
    arguments = ", ".join([*(function.sized[size] for size in products.SIZES), " + ".join(bytes_of)])
    tiles = _array(
        f"const tile {name}_tiles", (f"{{{rows}, {columns}, {each!r}}}" for rows, columns, each in model.tiles)
    )
    return f"""{tiles}
static double {name}_vendor_model(const int64_t *v) {{
    static const vendor_model here = {{{rates}, {name}_tiles, {len(model.tiles)}}};
    return reached_seconds(&here, {arguments});
}}"""


def _lost(seconds: float | None, point: Point, most: float = inf) -> str:
    return "NAN" if seconds is None else repr(min(point.lost(seconds), most))


def _logarithm(seconds: float | None) -> str:
    return "NAN" if seconds is None else repr(log(seconds))


def _modelled(entry: Entry, point: Point) -> str:
    seconds = model_of(entry, point.operator)
    return "NAN" if seconds is None else repr(seconds)
