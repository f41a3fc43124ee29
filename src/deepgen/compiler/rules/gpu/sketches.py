"""The sketches of an expression on a GPU: rules applied to its prepared forms, and rules for matrix units that need
their own form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from math import prod
from types import MappingProxyType
from typing import TypeAlias

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.draft import unused
from deepgen.compiler.rules.gpu import columns, operands, parts, rows, scans, tensor, threads, windows
from deepgen.compiler.rules.gpu.chained import Chained, with_chained_parts
from deepgen.compiler.rules.gpu.contraction import (
    MatrixContraction,
    adds_parts,
    along_of,
    by_four_warps,
    by_images,
    contraction,
    matrix_product,
    order,
    packed_name,
    split_counts,
    with_parts,
    with_whole_steps,
    workspace_bytes,
)
from deepgen.compiler.rules.gpu.forms import cast_when_read, with_ones, with_row_values, with_short_places
from deepgen.compiler.rules.gpu.groups import StageGroup, groups, inlined, spread_parts, with_operands
from deepgen.compiler.rules.gpu.operands import Flat, flattened
from deepgen.compiler.rules.gpu.plan import Form, Plan
from deepgen.compiler.rules.padding import with_padding
from deepgen.compiler.rules.residues import with_residues
from deepgen.compiler.rules.rewrites import with_flat_rows, with_joined, with_kept, with_places
from deepgen.compiler.rules.rule import RULES, Log, Rule, RuleAnswer, rules_for, ways_of
from deepgen.compiler.rules.sketch import Sketch
from deepgen.compiler.schedule import steps as s
from deepgen.operators.expr.nodes import Expression, Stage, reads
from deepgen.targets import Gpu
from deepgen.vocabulary import DeepgenError

_MOST = 8  # sketches of an expression
_FLAT, _MATRICES, _WINDOWS, _SPLIT = "Flat-Rows", "Matrix-Units", "Windows", "Split-Sums"
_ROW_WINDOWS = "Row-Windows"
_FORMED = (_FLAT, _MATRICES, _WINDOWS, _SPLIT, _ROW_WINDOWS)  # rules that are only tried on forms prepared for them
_ONCE = "once"  # a form whose rows keep costly values
MatrixForm: TypeAlias = "Callable[[MatrixContraction, Gpu], MatrixContraction | None]"


_Key: TypeAlias = tuple[bool, str]  # whether a rule that is not deepgen's own takes part, and the sketch's name


def gpu_sketches(expression: Expression, gpu: Gpu, own: Sequence[Rule] = (), log: Log | None = None) -> list[Sketch]:
    """The better ones first, except that those of a user's rules and of plug-ins come before all others."""
    rules, log = rules_for(gpu, own), [] if log is None else log
    expression = columns.with_columns(with_short_places(with_places(with_row_values(with_ones(expression)))))
    joined = with_joined(expression, reductions=True)
    expression = joined if joined.tensors != expression.tensors else expression
    expression = with_flat_rows(expression)
    expression = scans.scan_in_pieces(expression, gpu) or expression
    base = cast_when_read(with_padding(expression))
    apart = cast_when_read(with_padding(with_residues(expression)))
    lifted = {stage.name for stage in base.stages} - {stage.name for stage in expression.stages}
    others = {rule.name: rule for rule in rules if rule.name not in RULES.own}
    sketches: dict[_Key, Sketch] = {}
    taken: frozenset[str] = frozenset()  # stages that another rule claims for itself
    if others:
        sketches = _by_form(Form(base), gpu, rules, log, _MOST, only=others.keys())
        taken = frozenset(stage for one in sketches.values() for stage, rule in one.by
                          if rule in others and others[rule].exclusive)  # fmt: skip
    before = len(sketches)
    flat = flattened(inlined(base, _operands(base, gpu))[1], gpu) if apart == base else "it is split by residues"
    if isinstance(flat, str):
        log.append(RuleAnswer(base.outputs[-1], _FLAT, flat))
    else:
        sketches |= _by_form(Form(flat.expression, by=_FLAT, facts=flat), gpu, rules, log, _MOST, {}, taken)
    whole = cast_when_read(with_padding(with_whole_steps(expression, gpu)))
    on_matrices = [Form(one, _operands(one, gpu), _MATRICES) for one in dict.fromkeys((apart, base, whole))]
    for form in (*on_matrices, *_shared_forms(base, gpu, log), *_plain_forms(base, lifted, gpu, log)):
        most = 1 if form.by == _SPLIT else _MOST - len(sketches) + before
        sketches |= _by_form(form, gpu, rules, log, most, sketches, taken)
        if form.by == _MATRICES and len(sketches) > before and form.expression in (apart, base):
            break  # plain arithmetic is never faster than matrix units, unless these need zero padding
    _, plain = inlined(base, _operands(base, gpu))
    for form in _split_forms(plain, split_counts(plain, gpu), log, gpu):
        sketches |= _by_form(form, gpu, rules, log, _MOST, sketches, taken)
    if not sketches:
        raise DeepgenError(f"no rule applies to expression {expression.name!r} on {gpu.name}")
    names = [name for other, name in sketches if not other]
    return [
        replace(one, name=unused(name, "{}_{}", names)) if other else one for (other, name), one in sketches.items()
    ]


def _by_form(
    form: Form,
    gpu: Gpu,
    rules: Sequence[Rule],
    log: Log,
    most: int,
    existing: Mapping[_Key, Sketch] = MappingProxyType({}),
    taken: Set[str] = frozenset(),
    only: Set[str] = frozenset(),
) -> dict[_Key, Sketch]:
    """At most `most` sketches of a form, in addition to the existing ones; with `only`, those in which one of these
    rules takes part. Stages that are `taken` are left to rules that are not deepgen's own."""
    first, plain, parts = _parts_of(form)
    plans = [Plan(form, gpu, plain, parts[-1])]
    if form.by in (_MATRICES, _WINDOWS):
        # The rule that a form was prepared for does not apply to most expressions.
        rule = MatrixUnits() if form.by == _MATRICES else windows.Windows()
        answers = [(part.stored.name, rule.declines(Plan(form, gpu, plain, part), part.stored)) for part in parts]
        if all(why for _, why in answers):
            log += [RuleAnswer(stage, rule.name, why or "") for stage, why in answers]
            return {}
    for part, earlier in zip(reversed(parts), (*reversed(parts[:-1]), None), strict=True):
        asked = _asked(rules, form, part, taken)
        columns = [ways_of(plan, part.stored, asked, log) for plan in plans]
        plans = [way for row in zip_longest(*columns) for way in row if way is not None][:most]
        plans = [plan.before(earlier, plain) for plan in plans] if earlier else plans
    sketches: dict[_Key, Sketch] = {}
    for plan in plans:
        by = {rule for _, rule in plan.by}
        if plan.useless or (form.by and form.by not in by) or (only and not by & only):
            continue
        sketch = plan.sketch(first)
        key = (not by <= {*RULES.own}, sketch.name)
        if key not in existing and key not in sketches and _possible(sketch):
            sketches[key] = sketch
    return sketches


def _parts_of(form: Form) -> tuple[tuple[s.Step, ...], Expression, list[StageGroup]]:
    """The steps that inline stages, the resulting expression, and its parts."""
    if isinstance(form.facts, Flat):
        return (), form.expression, [StageGroup(form.expression.stage(form.facts.out))]
    spread = spread_parts(form.expression) if form.by in (_MATRICES, _SPLIT) else frozenset[str]()
    chained = form.facts if isinstance(form.facts, Chained) else None
    first, plain = inlined(form.expression, form.kept | spread | (chained.stored if chained else frozenset()))
    split = form.by == _SPLIT or chained is not None
    parts = groups(plain, split, form.kept if form.facts == _ONCE else frozenset())
    return first, plain, [group for group in parts if group.last.name not in form.kept]


def _asked(rules: Sequence[Rule], form: Form, part: StageGroup, taken: Set[str]) -> list[Rule]:
    """The rules that can handle a part of an expression in this form."""
    read = {one.tensor for stage in (part.last, *part.sums) for one in reads(stage.value)}
    anyone = not form.kept & read and not part.spread and form.by != _FLAT  # nothing else has to be computed with it
    if part.stored.name in taken and not anyone:
        return []
    formed = {form.by, _MATRICES} if form.by == _SPLIT else {form.by}
    plain = not part.spread and form.by != _FLAT
    return [
        rule
        for rule in rules
        if (rule.name in formed if rule.name in _FORMED else plain if rule.name in RULES.own else anyone)
    ]


def _plain_forms(base: Expression, lifted: set[str], gpu: Gpu, log: Log) -> Iterator[Form]:
    """Forms for plain arithmetic."""
    _, plain = inlined(base)
    if summed := windows.summed_rows(plain, gpu):
        yield Form(plain, summed, _ROW_WINDOWS)
    else:
        log.append(RuleAnswer(base.outputs[-1], _ROW_WINDOWS, "it reduces no rows of sums"))
    once = with_kept(plain)
    if names := frozenset(stage.name for stage in once.stages) - {stage.name for stage in plain.stages}:
        form = Form(once, names, facts=_ONCE)
        if any({stage.name for stage in part.once} == names for part in _parts_of(form)[2]):
            yield form
    shared = _shared(base, lifted)
    yield Form(windows.in_runs(base, shared), shared, _WINDOWS)
    yield Form(base, shared)
    _, plain = inlined(base, shared)
    if not shared or all(map(windows.why_not, plain.stages)):
        yield Form(base)


def _shared_forms(base: Expression, gpu: Gpu, log: Log) -> Iterator[Form]:
    """Forms in which several blocks reduce parts of the same result, because there are few results."""
    _, plain = inlined(base)
    ways = parts.parts_of_reductions(plain, gpu)
    if chained := with_chained_parts(plain, gpu, many=isinstance(ways, str)):
        yield Form(chained.expression, facts=chained)
    yield from _split_forms(plain, ways, log)


def _split_forms(
    plain: Expression, ways: Sequence[Mapping[str, int]] | str, log: Log, gpu: Gpu | None = None
) -> Iterator[Form]:
    """Each way has the number of parts of some reductions; with `gpu` they are products for its matrix units."""
    if isinstance(ways, str):
        log.append(RuleAnswer(plain.outputs[-1], _SPLIT, ways))
        return
    for counts in ways:
        split = with_parts(plain, counts)
        yield Form(split, _operands(split, gpu) if gpu else frozenset(), _SPLIT, max(counts.values()))


def _possible(sketch: Sketch) -> bool:
    """Whether it has any config."""
    space = sketch.space
    return space.contains(sketch.usual()) or space.size().count > 0


def _operands(expression: Expression, gpu: Gpu) -> frozenset[str]:
    """The stages that matrix products read, and that blocks compute themselves."""
    _, plain = inlined(expression, frozenset(stage.name for stage in expression.stages))
    contractions = [c for stage in plain.stages if (c := contraction(stage, gpu))]
    names = {read.tensor for c in contractions for read in (c.left, c.right)}
    return frozenset(names & facts.computed_in_blocks(expression).keys())


def _shared(expression: Expression, lifted: set[str]) -> frozenset[str]:
    """The stages with a border of zeros of which a block reads elements more than once."""
    _, plain = inlined(expression, frozenset(lifted))
    sums = [stage for stage in plain.stages if stage.reduce is not None and facts.shareable(stage)]
    return frozenset(lifted & {read.tensor for stage in sums for read in reads(stage.value)})


class MatrixUnits:
    name, exclusive, targets = _MATRICES, True, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        sums = plan.part.reduction
        if sums is None:
            return "it has no reduction of its own"
        product = matrix_product(sums, plan.target)
        return product if isinstance(product, str) else None

    def apply(self, plan: Plan, stage: Stage) -> list[Plan]:
        sums, gpu = plan.part.reduction, plan.target
        c = contraction(sums, gpu) if sums else None
        assert sums is not None and c is not None
        taps = (True, False) if any(tap.extent > 1 for tap in c.taps) else (True,)
        four = by_four_warps(c, gpu)
        ways: list[tuple[MatrixForm | None, str]] = [(None, ""), *([(by_four_warps, "")] if four else [])]
        ways += [(by_images, "")] if by_images(c, gpu) and not plan.part.spread else []
        if four and order(four.left, four) is not None:
            ways.append((by_four_warps, four.left.tensor))
        return plan.tried(*(partial(_by_matrices, sums, c, all_taps, *way) for way in ways for all_taps in taps))


def _by_matrices(
    sums: Stage, c: MatrixContraction, all_taps: bool, form: MatrixForm | None, transposed: str, plan: Plan
) -> None:
    """`form` changes a product by one warp into one by four warps."""
    part, gpu, plain = plan.part, plan.target, plan.expression
    staged = part.last.name
    name = plan.added_up(sums, "warp")
    if form and not part.spread:
        plan.cache_write(part.last.name, staged := f"{staged}.staged", "shared")
    plan.restructure(*tensor.copies(plain, c, name, transposed))
    product = contraction(with_operands(plan.stage(name), sums), gpu)
    product = form(product, gpu) if product and form else product
    assert product is not None
    if part.spread:
        plan.step(s.SetScope(staged, "shared"))
    through = plan.stage(staged) if form or part.spread else None
    stored = plan.stage(part.stored.name)
    tensor.by_matrices(plan, stored, product, all_taps=all_taps, staged=through, transposed_in_block=transposed)
    stages = set(facts.computed_in_blocks(plan.base))
    for read in (product.left, product.right):
        if order(read, product) is not None and read.tensor != transposed:
            _packed(plan, packed_name(read.tensor, stages), along_of(read, product))


def _packed(plan: Plan, name: str, along: int) -> None:
    """The launch that reorders an operand."""
    copy = operands.tile_name(name)
    if copy in {stage.name for stage in plan.expression.stages}:
        operands.by_tiles(plan, plan.stage(name), along, plan.stage(copy))
    else:
        threads.by_threads(plan, plan.stage(name), None, shared=False)
        plan.names = (*plan.names[:-1], "packed")


class FlatRows:
    """Fuses the rows of matrix products into one axis."""

    name, exclusive, targets = _FLAT, True, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        return None if isinstance(plan.form.facts, Flat) else "its rows are not one axis"

    def apply(self, plan: Plan, stage: Stage) -> list[Plan]:
        flat: Flat = plan.form.facts
        ways = (flat, replace(flat, transposed_in_block=True)) if flat.packed else (flat,)
        return plan.tried(*(partial(_with_flat_rows, one) for one in ways))


def _with_flat_rows(flat: Flat, plan: Plan) -> None:
    sums = plan.stage(flat.sums)
    c = contraction(sums, plan.target)
    assert c is not None
    plan.restructure(*flat.steps, *tensor.copies(flat.expression, c, flat.sums))
    product = contraction(with_operands(plan.stage(flat.sums), sums), plan.target)
    product = by_four_warps(product, plan.target) if product else None
    assert product is not None
    out, staged = plan.stage(flat.out), plan.stage(flat.staged)
    transposed = flat.operand if flat.transposed_in_block else ""
    plan.step(s.SetScope(flat.staged, "shared"))
    tensor.by_matrices(
        plan, out, product, all_taps=not product.taps, staged=staged, flat=flat, transposed_in_block=transposed
    )
    if flat.packed:
        plan.step(s.Layout(flat.packed, s.whole(*flat.order)))
        _packed(plan, flat.packed, flat.along)
    if order(product.right, product) is not None:
        _packed(plan, packed_name(product.right.tensor, set()), along_of(product.right, product))


_MOST_SERIAL = 8  # parts that a thread reads in sequence


class SplitSums:
    """For reductions that are split among several blocks: a second launch reduces the parts."""

    name, exclusive, targets = _SPLIT, True, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        sums = plan.part.reduction
        return None if sums is not None and adds_parts(sums) else "it adds no partial sums"

    def apply(self, plan: Plan, stage: Stage) -> list[Plan]:
        sums = plan.part.reduction
        assert sums is not None
        count = sums.reduced[0].extent
        together = rows.ShortRows() if columns.why_no_columns(sums) else columns.Columns()
        way, *_ = (threads.ByThreads() if count <= _MOST_SERIAL else together).apply(plan, stage)
        way.names, way.suffix = plan.names, f"_split{plan.form.facts}"
        way.workspace += workspace_bytes(prod(sums.shape), count)
        return [way]
