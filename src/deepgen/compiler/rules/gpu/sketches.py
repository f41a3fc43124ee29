"""The sketches of an expression on a GPU: each part of it by matrix units, by threads, or by rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from itertools import islice, product
from math import prod
from typing import Any, TypeAlias

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.draft import unused
from deepgen.compiler.rules.gpu import operands, rows, tensor, threads, windows
from deepgen.compiler.rules.gpu.contraction import (
    MatrixContraction,
    along_of,
    by_four_warps,
    by_images,
    contraction,
    order,
    packed_name,
    split_counts,
    with_split_sums,
    with_whole_steps,
    workspace_bytes,
)
from deepgen.compiler.rules.gpu.groups import (
    StageGroup,
    cast_when_read,
    changed,
    groups,
    inlined,
    scans_rows,
    spread_parts,
)
from deepgen.compiler.rules.gpu.operands import Flat, flattened
from deepgen.compiler.rules.gpu.plan import Plan, Useless
from deepgen.compiler.rules.padding import with_padding
from deepgen.compiler.rules.residues import with_residues
from deepgen.compiler.rules.rewrites import with_joined
from deepgen.compiler.rules.sketch import Sketch, space_of
from deepgen.compiler.schedule import steps as s
from deepgen.operators.expr.nodes import Expression, Stage, reads
from deepgen.targets import Gpu

_MOST = 8  # sketches of an expression
_FEW = 256  # results: below that, threads had better share a reduction
_MATRICES, _WINDOWS = "matrices", "windows"
Form: TypeAlias = "Callable[[MatrixContraction, Gpu], MatrixContraction | None]"
Way: TypeAlias = "tuple[tuple[s.Step, ...], Callable[[Plan, Expression], None]]"  # stages it makes, then its loops


@dataclass(frozen=True)
class _Variant:
    """An expression, and the operands that are kept as stages: those of matrix units, or with a border of zeros."""

    expression: Expression
    kept: frozenset[str] = frozenset()
    by: str = ""


def gpu_sketches(expression: Expression, gpu: Gpu) -> list[Sketch]:
    """The better ones first."""
    joined = with_joined(expression)
    expression = joined if joined.tensors != expression.tensors else expression
    base = cast_when_read(with_padding(expression))
    apart = cast_when_read(with_padding(with_residues(expression)))
    lifted = {stage.name for stage in base.stages} - {stage.name for stage in expression.stages}
    by_name: dict[str, Sketch] = _by_flat_rows(base, gpu) if apart == base else {}
    whole = cast_when_read(with_padding(with_whole_steps(expression, gpu)))
    on_matrices = [_Variant(one, _operands(one, gpu), _MATRICES) for one in dict.fromkeys((apart, base, whole))]
    for variant in (*on_matrices, *_variants(base, lifted)):
        by_name |= _by_variant(variant, gpu, _MOST - len(by_name), set(by_name))
        if variant.by == _MATRICES and by_name and variant.expression in (apart, base):
            break  # plain arithmetic is never faster where matrix units serve, but for what they fill with zeros
    return [*by_name.values(), *_by_split_sums(base, gpu)]


def _by_variant(variant: _Variant, gpu: Gpu, most: int, existing: Set[str] = frozenset()) -> dict[str, Sketch]:
    """So many sketches of an expression at most, beside those that are known."""
    by_name: dict[str, Sketch] = {}
    parts_of = spread_parts(variant.expression) if variant.by == _MATRICES else frozenset[str]()
    first, plain = inlined(variant.expression, variant.kept | parts_of)
    if variant.by == _MATRICES and not any(contraction(stage, gpu) for stage in plain.stages):
        return by_name
    if variant.by == _WINDOWS and not any(windows.serves(stage) for stage in plain.stages):
        return by_name
    parts = [group for group in groups(plain) if group.last.name not in variant.kept]
    if any(group.spread and not contraction(group.sums[0], gpu) for group in parts):
        return by_name
    choices = product(*(_ways(plain, group, gpu, variant) for group in parts))
    for ways in islice(choices, most):
        plan = Plan(variant.expression, gpu)
        try:
            sketch = _sketch(plan, first, plain, ways)
        except Useless:
            continue
        if sketch.name not in existing | set(by_name) and _possible(sketch):
            by_name[sketch.name] = sketch
    return by_name


def _by_split_sums(base: Expression, gpu: Gpu) -> Iterator[Sketch]:
    """Sketches in which several blocks add up parts of a sum, where there are few results."""
    _, plain = inlined(base, _operands(base, gpu))
    for count in split_counts(plain, gpu):
        split = with_split_sums(plain, gpu, count)
        for name, sketch in _by_variant(_Variant(split, _operands(split, gpu), _MATRICES), gpu, _MOST).items():
            kind, _, rest = name.partition("_")
            if kind == "threads" and sketch.counts is not None:
                # The second launch reads what the first one wrote.
                bytes_ = workspace_bytes(prod(next(s.shape for s in plain.stages if contraction(s, gpu))), count)
                yield replace(
                    sketch,
                    name=f"{rest}_split{count}",
                    counts=replace(sketch.counts, packed=sketch.counts.packed + bytes_),
                )


def _variants(base: Expression, lifted: set[str]) -> Iterator[_Variant]:
    """For plain arithmetic."""
    shared = _shared(base, lifted)
    yield _Variant(windows.in_runs(base, shared), shared, _WINDOWS)
    yield _Variant(base, shared)
    _, plain = inlined(base, shared)
    if not shared or not any(windows.serves(stage) for stage in plain.stages):
        yield _Variant(base)


def _possible(sketch: Sketch) -> bool:
    """Whether it has configs at all."""
    space = space_of(sketch.name, [sketch])
    return space.contains(sketch.usual()) or space.size().count > 0


def _operands(expression: Expression, gpu: Gpu) -> frozenset[str]:
    """The stages that products of matrices read."""
    _, plain = inlined(expression, frozenset(stage.name for stage in expression.stages))
    contractions = [c for stage in plain.stages if (c := contraction(stage, gpu))]
    names = {read.tensor for c in contractions for read in (c.left, c.right)}
    return frozenset(names & {stage.name for stage in expression.stages if not facts.is_summed(stage)})


def _shared(expression: Expression, lifted: set[str]) -> frozenset[str]:
    """Of stages that have a border of zeros, those of which a block reads elements more than once."""
    _, plain = inlined(expression, frozenset(lifted))
    sums = [stage for stage in plain.stages if stage.reduce is not None and threads.shareable(stage)]
    return frozenset(lifted & {read.tensor for stage in sums for read in reads(stage.value)})


def _sketch(plan: Plan, first: tuple[s.Step, ...], plain: Expression, ways: tuple[Way, ...]) -> Sketch:
    copies = [{step.name: None for step in way if isinstance(step, s.CacheRead)} for way, _ in ways]
    others = _other_names(copies)
    stages = tuple(_renamed(step, names) for (way, _), names in zip(ways, others, strict=True) for step in way)
    whole = changed(plain, stages)
    plan.step(*first, *stages)
    for (_, arrange), names in reversed([*zip(ways, others, strict=True)]):
        before = len(plan.steps)
        arrange(plan, whole)
        plan.steps[before:] = [_renamed(step, names) for step in plan.steps[before:]]
    return plan.sketch()


def _other_names(copies: Sequence[Iterable[str]]) -> list[dict[str, str]]:
    """Other names of the copies of each part of an expression, where an earlier part has copies of the same tensors."""
    taken: list[str] = []
    renamed = []
    for names in copies:
        renamed.append({name: other for name in names if (other := unused(name, "{}_{}", taken)) != name})
        taken += [renamed[-1].get(name, name) for name in names]
    return renamed


def _renamed(step: s.Step, names: Mapping[str, str]) -> s.Step:
    def renamed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(renamed, value))
        return names.get(value, value) if isinstance(value, str) else value

    return replace(step, **{one.name: renamed(getattr(step, one.name)) for one in fields(step)}) if names else step


def _ways(expression: Expression, group: StageGroup, gpu: Gpu, variant: _Variant) -> list[Way]:
    """How the loops of a part may be arranged."""
    options: list[Way] = []
    kept = variant.kept
    sums = group.sums[0] if group.sums and not group.rows else None
    if sums is None and group.last.reduce is not None and not group.last.scan:
        sums = group.last
    if variant.by == _MATRICES and sums is not None and (c := contraction(sums, gpu)):
        taps = (True, False) if any(tap.extent > 1 for tap in c.taps) else (True,)
        four = by_four_warps(c, gpu)
        ways: list[tuple[Form | None, str]] = [(None, ""), *([(by_four_warps, "")] if four else [])]
        ways += [(by_images, "")] if by_images(c, gpu) and not group.spread else []
        if four and order(four.left, four) is not None:
            ways.append((by_four_warps, four.left.tensor))
        return [_by_matrices(expression, group, sums, gpu, all_taps, *way) for way in ways for all_taps in taps]
    if variant.by == _WINDOWS and sums is not None and windows.serves(sums):
        return [_by_window(group, sums, kept)]
    if sums is not None and kept & {read.tensor for read in reads(sums.value)}:
        return [_by_threads(group, sums, shared=True, kept=kept)]
    scan = _scan_of(group)
    if scan is not None and scans_rows(scan):
        options.append(_by_scans(group, scan))
        if group.sums:
            return options
    reused = sums is not None and threads.shareable(sums)
    few = rows.serves(group) and (group.rows or (_is_few(sums or group.last) and not reused))
    row_way: list[Way] = [((), lambda plan, _: rows.by_rows(plan, group))] if rows.serves(group) else []
    if few:
        options += row_way
    if not group.rows:
        if sums is not None and reused:
            options.append(_by_threads(group, sums, shared=True))
        options.append(_by_threads(group, sums, shared=False))
    return options if few else [*options, *row_way]


def _by_matrices(
    expression: Expression,
    group: StageGroup,
    sums: Stage,
    gpu: Gpu,
    all_taps: bool,
    form: Form | None,
    transposed_in_block: str = "",
) -> Way:
    """`form` makes of a product that a warp does one that four do together."""
    written, name = _written(group, sums, "warp")
    c = contraction(sums, gpu)
    assert c is not None
    out, staged = group.spread or group.last, group.last.name
    if form and not group.spread:
        staged = f"{staged}.staged"
        written = (*written, s.CacheWrite(group.last.name, staged, "shared"))

    def arrange(plan: Plan, whole: Expression) -> None:
        product = contraction(_with_operands(whole.stage(name), sums), gpu)
        product = form(product, gpu) if product and form else product
        assert product is not None
        if group.spread:
            plan.step(s.SetScope(staged, "shared"))
        through = whole.stage(staged) if form or group.spread else None
        stored = whole.stage(out.name)
        tensor.by_matrices(
            plan, stored, product, all_taps=all_taps, staged=through, transposed_in_block=transposed_in_block
        )
        stages = {stage.name for stage in plan.expression.stages if not facts.is_summed(stage)}
        for read in (product.left, product.right):
            if order(read, product) is not None and read.tensor != transposed_in_block:
                _packed(plan, whole, packed_name(read.tensor, stages), along_of(read, product))

    return (*written, *tensor.copies(expression, c, name, transposed_in_block)), arrange


def _packed(plan: Plan, whole: Expression, name: str, along: int) -> None:
    """The launch that puts an operand in another order."""
    copy = operands.tile_name(name)
    if copy in {stage.name for stage in whole.stages}:
        operands.by_tiles(plan, whole.stage(name), along, whole.stage(copy))
    else:
        threads.by_threads(plan, StageGroup(whole.stage(name)), shared=False)
        plan.names[-1] = "packed"


def _by_flat_rows(base: Expression, gpu: Gpu) -> dict[str, Sketch]:
    """The sketches in which the rows of matrix products are one axis, where there are such."""
    flat = flattened(inlined(base, _operands(base, gpu))[1], gpu)
    if flat is None:
        return {}
    ways = (flat, replace(flat, transposed_in_block=True)) if flat.packed else (flat,)
    sketches = [_with_flat_rows(one, gpu) for one in ways]
    return {sketch.name: sketch for sketch in sketches if sketch is not None and _possible(sketch)}


def _with_flat_rows(flat: Flat, gpu: Gpu) -> Sketch | None:
    sums, plan = flat.expression.stage(flat.sums), Plan(flat.expression, gpu)
    c = contraction(sums, gpu)
    assert c is not None
    steps = (*flat.steps, *tensor.copies(flat.expression, c, flat.sums))
    plan.step(*steps)
    whole = changed(flat.expression, steps)
    product = contraction(_with_operands(whole.stage(flat.sums), sums), gpu)
    product = by_four_warps(product, gpu) if product else None
    assert product is not None
    try:
        out, staged = whole.stage(flat.out), whole.stage(flat.staged)
        transposed = flat.operand if flat.transposed_in_block else ""
        plan.step(s.SetScope(flat.staged, "shared"))
        tensor.by_matrices(
            plan, out, product, all_taps=not product.taps, staged=staged, flat=flat, transposed_in_block=transposed
        )
        if flat.packed:
            plan.step(s.Layout(flat.packed, tuple(map(str, flat.order))))
            _packed(plan, whole, flat.packed, flat.along)
        if order(product.right, product) is not None:
            _packed(plan, whole, packed_name(product.right.tensor, set()), along_of(product.right, product))
    except Useless:
        return None
    return plan.sketch()


def _scan_of(group: StageGroup) -> Stage | None:
    """The scan that a part stores, as it is or changed place by place."""
    return group.sums[0] if group.sums and group.sums[0].scan else group.last if group.last.scan else None


def _by_scans(group: StageGroup, scan: Stage) -> Way:
    lanes = rows.fits_lanes(scan)
    written, name = _written(group, scan, "warp" if lanes else "shared")
    operands = reads(scan.value)
    scanned, copies = (rows.by_lanes, rows.runs) if lanes else (rows.by_rows_of_scans, rows.copies)

    def arrange(plan: Plan, whole: Expression) -> None:
        scanned(plan, StageGroup(whole.stage(group.last.name)), whole.stage(name), operands)

    return (*written, *copies(scan, name)), arrange


def _with_operands(stage: Stage, like: Stage) -> Stage:
    """A stage with the operands that it had before they were copied."""
    return Stage(stage.name, stage.axes, like.value, stage.reduce, stage.reduced, stage.scan)


def _by_window(group: StageGroup, sums: Stage, kept: frozenset[str]) -> Way:
    written, name = _written(group, sums, "register")

    def arrange(plan: Plan, whole: Expression) -> None:
        summed = _with_operands(whole.stage(name), sums)
        windows.by_window(plan, StageGroup(whole.stage(group.last.name), (summed,)), kept)

    return (*written, *windows.copies(sums, name, kept)), arrange


def _by_threads(group: StageGroup, sums: Stage | None, *, shared: bool, kept: frozenset[str] = frozenset()) -> Way:
    if sums is None or sums.scan:
        return (), lambda plan, whole: threads.by_threads(plan, StageGroup(whole.stage(group.last.name)), shared=False)
    written, name = _written(group, sums, "register")
    copied = [r.tensor for r in threads.operands(sums) if r.tensor not in kept]
    copies = tuple(s.CacheRead(tensor, f"{tensor}.shared", "shared", (name,)) for tensor in copied)

    def arrange(plan: Plan, whole: Expression) -> None:
        summed = _with_operands(whole.stage(name), sums)
        threads.by_threads(plan, StageGroup(whole.stage(group.last.name), (summed,)), shared=shared, kept=kept)

    return (*written, *(copies if shared else ())), arrange


def _written(group: StageGroup, sums: Stage, scope: str) -> tuple[tuple[s.Step, ...], str]:
    """Where the sums themselves are stored, they are added up in registers; the name of the stage that does it."""
    if group.last.name != sums.name:
        return (), sums.name
    return (s.CacheWrite(sums.name, f"{sums.name}.sums", scope),), f"{sums.name}.sums"


def _is_few(stage: Stage) -> bool:
    """Whether there are few results, or long reductions for each of them."""
    results, added = 1, 1
    for axis in stage.axes:
        results *= axis.extent
    for axis in stage.reduced:
        added *= axis.extent
    return results < _FEW or added >= _FEW
