"""Reductions of rows: the threads of a block reduce a row together, and each stores its own columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from deepgen.compiler.passes.launches import CLUSTERED
from deepgen.compiler.rules import facts
from deepgen.compiler.rules.facts import operands, reused, shareable
from deepgen.compiler.rules.gpu.columns import why_no_columns
from deepgen.compiler.rules.gpu.groups import StageGroup, kept_tensors, place_of_rows
from deepgen.compiler.rules.gpu.plan import BORDER, WIDEST, Plan, powers
from deepgen.compiler.rules.gpu.threads import MOST_TAPS
from deepgen.compiler.rules.template import Extent, covered, plus, text, times
from deepgen.compiler.schedule import steps as s
from deepgen.operators.expr.nodes import Read, Stage, reads
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

_MOST_THREADS, _USUAL_THREADS = 1024, 128

_CLUSTERS, _PORTABLE = (4, 8, 16), 8  # blocks of a cluster; as many as any chip that has clusters can run
_OF_SERVERS = 200 << 10  # bytes of shared memory of a multiprocessor
_LEAST_OF_CLUSTER, _SHARE = 1 << 14, 32  # elements of a row, and usually of each thread
_MOST_OF_CLUSTER = 1 << 20  # bytes of a row: of more, 16 multiprocessors take longer than further launches for others
_FEW, _LONG = 256, 32  # results: with fewer, threads share a reduction; elements of which a thread alone waits for all
_THREADS = 64  # per multiprocessor, of which each waits on its own
_BLOCKS, _MANY_ROUNDS, _SEVERAL_ROUNDS = 8, 16, 4  # per multiprocessor; of loads
_MANY_THREADS = 1 << 20  # more than any chip has room for
_FEW_ELEMENTS = 512  # per multiprocessor, of all rows
_MOST_KEPT, _BESIDE_KEPT, _USUALLY_KEPT = 88, 24, 40  # registers of threads that keep their elements of a row
_LONG_RUN = 8192  # elements along the last of several axes, of which threads take some at a time several times
_LEAST_HELD, _BESIDE_HELD = 32 << 10, 2048  # bytes of a row in shared memory; for what threads join, and alignment
_SHORTEST_ROW, _SHORT_ROW, _MEDIUM_ROW, _LONG_ROW = 16, 64, 1024, 16384  # elements


class LongRows:
    """With few results, or a long reduction for each, it comes before other rules."""

    name, exclusive, targets = "Long-Rows", False, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        many = "there are many results of short reductions"
        return _why_no_rows(plan) or (None if _is_few(plan.part, plan.target) else many)

    def apply(self, plan: Plan, stage: Stage) -> list[Plan]:
        kept = kept_tensors(plan.part)
        tensors = ([kept] if kept else []) + ([] if plan.part.once else [[]])
        ways = [partial(by_rows, group=plan.part, kept=some, cluster=True) for some in tensors]
        ways = ways if in_clusters(plan.part, plan.target) else []
        ways += [partial(by_rows, group=plan.part, kept=kept)] if kept else []
        ways += [partial(by_rows, group=plan.part, held=held)] if (held := _held(plan)) else []
        return plan.tried(*ways, *([] if plan.part.once else [partial(by_rows, group=plan.part)]))


class ShortRows(LongRows):
    """Otherwise it comes after them."""

    name, exclusive, targets = "Short-Rows", False, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        return _why_no_rows(plan) or ("Long-Rows handles it" if _is_few(plan.part, plan.target) else None)


def _why_no_rows(plan: Plan) -> str | None:
    part = plan.part
    if plan.reads_kept:
        return BORDER
    if part.scan:
        return "it is scanned"
    reductions = part.sums or (part.last,)
    if any(stage.reduce is None or not stage.reduced for stage in reductions):
        return "there is no reduction for threads to share"
    return None if part.last.axes else "there are no rows to start from"


def _is_few(part: StageGroup, gpu: Gpu) -> bool:
    sums = part.reduction or part.last
    return part.rows or (_is_long(sums, gpu) and not (part.reduction and shareable(sums)))


def _is_long(sums: Stage, gpu: Gpu) -> bool:
    """Whether threads share each reduction: it is long, there are few, or a thread alone would wait for one load after
    the other, of elements that lie apart from those of its neighbours."""
    count, elements, read = prod(sums.shape), facts.elements(sums), operands(sums)
    together = all(one.indices and facts.plain(one.indices[-1]) == sums.reduced[-1].name for one in read)
    if count < _FEW:
        return elements > MOST_TAPS
    waits = together or count < gpu.multiprocessors * _THREADS
    return elements >= (_LONG if waits and not any(reused(one, sums) for one in read) else _FEW)


def in_clusters(group: StageGroup, gpu: Gpu) -> bool:
    """Whether its rows are few and long, but not too long for the blocks of a cluster: these reduce a row together in
    one launch, where other blocks would need one launch for their parts and one to join these, for each reduction."""
    reductions = [stage for stage in (*group.sums, group.last) if stage.reduce is not None]
    if not gpu.has("cluster") or not reductions or group.scan:
        return False
    longest, size = max(map(facts.elements, reductions)), _least_size(reductions)
    few = _rows(group.last, group) * min(_CLUSTERS) <= gpu.multiprocessors
    fits = longest >= _LEAST_OF_CLUSTER and longest * size <= _MOST_OF_CLUSTER
    return few and fits and why_no_columns(reductions[0]) is not None


def by_rows(
    plan: Plan, group: StageGroup, kept: Sequence[str] = (), cluster: bool = False, held: Sequence[str] = ()
) -> None:
    """For `kept` tensors, threads load their elements of a row once and keep them in registers; rows of `held` ones are
    in shared memory. In a `cluster`, several blocks share a row."""
    out = group.last
    plan.names += (("cluster_" if cluster else "") + ("kept" if kept else "held" if held else "rows"),)
    reductions = (*group.sums, *((out,) if out.reduce is not None else ()))
    row = (*group.sums, *group.once, out)
    early = _early(plan, group, kept)
    of_rows = _of_rows(plan, group)
    plan.restructure(*(s.CacheRead(t, f"{t}.row", "warp", _readers(row, t)) for t in (*kept, *early)))
    plan.restructure(*(s.CacheRead(tensor, f"{tensor}.own", "warp", (out.name,)) for tensor in of_rows))
    longest = max(facts.elements(stage) for stage in reductions)
    plan.restructure(*(s.CacheRead(t, f"{t}.row", "shared", _readers(row, t)) for t in held))
    team, beside, each = (_cluster if cluster else _threads)(plan, group, reductions, longest, kept, held)
    own = [a.name for a in out.axes]
    rows = [*group.across] or (own if not group.rows else own[: len(group.sums[0].axes)])
    if not rows:
        if out.reduce is not None:
            _shared_out(plan, out, team, each)
        return
    columns = [name for name in own if name not in rows]
    if group.across:
        plan.reorder(out.name, (*rows, *columns))
    block, *_, by_y = plan.deal(out.name, rows, *_several_rows(plan, group, longest), ("thread.y", beside))
    plan.annotate(out.name, "block.x", block)
    if columns:
        plan.deal(out.name, columns, ("thread.x", team), ("vector", each))
    if out.reduce is not None:
        _shared_out(plan, out, team, each)
    place = place_of_rows(group)

    def keep(name: str, along: str, place: int = place, others: int = len(rows)) -> None:
        own_places = (s.LayoutPlace[s.Number](place, 1, text(each)), s.LayoutPlace(place, text(each), text(team)))
        whole = s.whole(*(n for n in range(others + 1) if n != place))
        order = (*whole, s.LayoutPlace(place, text(times([team, each]))), *own_places)
        plan.step(s.SetScope(name, "warp"), s.Layout(name, order), s.ComputeAt(name, out.name, by_y))
        plan.deal(name, [along], ("thread.x", team), ("vector", each))

    for stage in reversed([one for one in plan.expression.stages if one.name in {one.name for one in row[:-1]}]):
        if stage.reduce is None:
            keep(stage.name, stage.axes[-1].name)
            continue
        plan.step(s.SetScope(stage.name, "register"), s.ComputeAt(stage.name, out.name, by_y))
        _shared_out(plan, stage, team, each)
    rounds = covered(longest, times([team, each]))
    if kept:
        numbers, threads = times([rounds, each]), CLUSTERED if cluster else times([team, beside])
        _require_registers(plan, (*kept, *early), numbers, threads)
    for tensor in kept:
        single = len(plan.expression.shape_of(tensor)) == 1
        keep(f"{tensor}.row", *(("a0", 0, 0) if single else (f"a{place}",)))
    for tensor in early:
        keep(f"{tensor}.row", "a0", 0, 0)
    if held:
        plan.require(beside == 1, "a block has a row in its shared memory")
        _hold(plan, group, held, block, team, each)
    for tensor in of_rows:
        plan.compute_at(f"{tensor}.own", out.name, by_y, "register")


def _require_registers(plan: Plan, kept: Sequence[str], numbers: Extent, threads: Extent) -> None:
    words = sum(max(1, dtype(plan.expression.dtype_of(tensor)).bytes // 4) for tensor in kept)
    registers = plus([times([words, numbers]), _BESIDE_KEPT])
    plan.require(times([threads, registers]) <= plan.target.registers_per_sm, "rows fit in registers")
    plan.require(registers <= _MOST_KEPT, "what a thread keeps of a row fits in its registers")


def _hold(plan: Plan, group: StageGroup, held: Sequence[str], block: str, team: Extent, each: Extent) -> None:
    """The threads of a block copy its row of these tensors to shared memory."""
    plan.derive("shared_bytes", _row_bytes(plan, group, held))
    for tensor in held:
        plan.step(s.SetScope(f"{tensor}.row", "shared"), s.ComputeAt(f"{tensor}.row", group.last.name, block))
        axes = [f"a{n}" for n in range(len(plan.expression.shape_of(tensor)))]
        plan.deal(f"{tensor}.row", axes, ("thread.x", team), ("vector", each))


def _held(plan: Plan) -> list[str]:
    """The tensors of long rows of which several stages read the same elements, if a row fits in shared memory, where
    blocks that read theirs again from L2 would move it several times."""
    group = plan.part
    fits = plan.target.shared_per_sm // 2 - _BESIDE_HELD  # for two blocks: one alone would only load, or only reduce
    if not group.rows or group.once or group.last.reduce is not None:
        return []
    names = [axis.name for axis in group.sums[0].axes]
    of_last = {*(group.across or [axis.name for axis in group.last.axes[: len(names)]])}
    rows = [(one, {*names}) for one in group.sums] + [(group.last, of_last)]
    held = []
    for tensor in plan.expression.tensors:
        users = [(one, own) for one, own in rows if facts.reads_of(one, tensor.name)]
        places = [
            ([facts.plain(i) for i in r.indices], own) for one, own in users for r in facts.reads_of(one, tensor.name)
        ]
        if len(users) > 1 and all(None not in place and own <= {*place} for place, own in places):
            held.append(tensor.name)
    many = _rows(group.last, group) >= plan.target.multiprocessors
    return held if held and many and _LEAST_HELD <= _row_bytes(plan, group, held) <= fits else []


def _row_bytes(plan: Plan, group: StageGroup, tensors: Sequence[str]) -> int:
    rows = _rows(group.last, group)
    sizes = (prod(plan.expression.shape_of(t)) // rows * dtype(plan.expression.dtype_of(t)).bytes for t in tensors)
    return sum(sizes)


def _readers(row: Sequence[Stage], tensor: str) -> tuple[str, ...]:
    return tuple(stage.name for stage in row if facts.reads_of(stage, tensor))


def _threads(
    plan: Plan, group: StageGroup, reductions: Sequence[Stage], longest: int, kept: Sequence[str], held: Sequence[str]
) -> tuple[Extent, Extent, Extent]:
    """The threads that reduce a row together, the rows of a block, and the elements that a thread loads at once."""
    count, each_usual = _rows(group.last, group), _usual_each(plan, group, reductions, longest, kept)
    usual = _usual_team(longest, each_usual, kept) if kept or not group.rows or longest <= _LONG_ROW else _MOST_THREADS
    least = 1 if longest <= _SHORTEST_ROW and count >= plan.target.multiprocessors * _USUAL_THREADS else 2
    if least == 1:  # there are rows for all threads: each takes one, in runs that divide it
        usual = 1
    runs = longest // each_usual
    if not kept and longest > _SHORT_ROW and runs < usual == plan.target.warp and count * runs >= _MANY_THREADS:
        usual = 1 << runs.bit_length() - 1  # all have a run, and some two, in place of one and none
    if held and not group.across:
        usual //= 2  # of several blocks some load or store rows while others reduce theirs
    columns = group.rows and place_of_rows(group) < len(group.sums[0].axes)
    if columns:  # neighbouring threads have neighbouring columns, each as much of one as it can keep
        least, usual = 1, powers(-(-longest // _USUALLY_KEPT))[-1]
    rounds = longest // (usual * each_usual)  # of many, each waits: all threads that a multiprocessor has room for
    room = plan.target.multiprocessors * _MOST_THREADS * (2 if rounds >= _MANY_ROUNDS and not kept else 1) // count
    at_once = 2 * each_usual if kept and longest <= _MEDIUM_ROW else each_usual
    while least == 2 and usual * at_once < longest and usual < _MOST_THREADS // 2 and 2 * usual <= room:
        usual *= 2  # there are few rows: with more threads for each, none waits for a second load
    team = plan.knob("team", powers(min(_MOST_THREADS, longest), least), usual)
    several = [n for n in powers(256 if least == 1 else 64) if n <= count]
    most = _USUAL_THREADS // 2 if kept and longest > _MEDIUM_ROW else _USUAL_THREADS * (2 if least == 1 else 1)
    blocks = plan.target.multiprocessors * (_BLOCKS if usual > 1 else 2)  # small blocks take longer to start than rows
    if not kept and usual >= plan.target.warp * 2 and rounds >= _SEVERAL_ROUNDS:
        most = usual  # blocks of one row end sooner
    enough = [n for n in several if n * usual <= (most if count // n >= blocks else plan.target.warp)]
    beside = plan.knob("rows", several, max(enough, default=1))
    each = plan.knob("each", (1,) if columns else (1, 2, 4, 8), each_usual)
    plan.require(times([team, beside]) <= plan.target.threads_per_block, "threads of a block")
    plan.derive("threads", times([team, beside]))
    return team, beside, each


def _several_rows(plan: Plan, group: StageGroup, longest: int) -> list[tuple[str, Extent]]:
    """The loop of a thread over several rows of one load each, if there are very many: none waits for another, and a
    block has enough to do."""
    most = plan.target.multiprocessors * plan.target.threads_per_sm * _MANY_ROUNDS
    if longest > _SHORTEST_ROW // 2 or longest & (longest - 1) or _rows(group.last, group) < most:
        return []
    return [("unroll", plan.knob("turns", (1, 2, 4), 4))]


def _cluster(
    plan: Plan, group: StageGroup, reductions: Sequence[Stage], longest: int, kept: Sequence[str], _: Sequence[str]
) -> tuple[Extent, Extent, Extent]:
    """The same for the blocks of a cluster."""
    server = plan.target.shared_per_sm >= _OF_SERVERS  # only these run more blocks of a cluster
    sizes = [n for n in _CLUSTERS if server or n <= _PORTABLE]
    able = [n for n in sizes if _rows(group.last, group) * n <= plan.target.multiprocessors]
    enough = [n for n in able if longest <= n * CLUSTERED * _SHARE or n == able[-1]]
    usual = max(enough[0], min(able[-1], _PORTABLE))
    team = plan.knob("team", [n * CLUSTERED for n in sizes], usual * CLUSTERED)
    return team, 1, plan.knob("each", (1, 2, 4, 8), _usual_each(plan, group, reductions, longest, kept))


def _early(plan: Plan, group: StageGroup, kept: Sequence[str]) -> list[str]:
    """Tensors of one number a column, such as weights, that short rows load before they are reduced: a wait less."""
    out = group.last
    columns = kept and out.reduce is None and len(out.axes) > len(group.sums[0].axes)
    if not columns or out.axes[-1].extent > _MEDIUM_ROW:
        return []
    alone = [read for read in reads(out.value) if [facts.plain(index) for index in read.indices] == [out.axes[-1].name]]
    inputs = _read_last(plan, group)
    return [*dict.fromkeys(read.tensor for read in alone if read.tensor in inputs)]


def _of_rows(plan: Plan, group: StageGroup) -> list[str]:
    """Tensors of one number a row, such as a channel's weight, which rows load before they are reduced as well."""
    out = group.last
    if not group.rows or out.reduce is not None:
        return []
    inputs, names = _read_last(plan, group), [axis.name for axis in out.axes]
    rows = {*(group.across or names[: len(group.sums[0].axes)])}
    of_rows = {t: [r for r in facts.reads_of(out, t) if all(i.iterators <= rows for i in r.indices)] for t in inputs}
    return [tensor for tensor, some in of_rows.items() if some and len(some) == len(facts.reads_of(out, tensor)) == 1]


def _read_last(plan: Plan, group: StageGroup) -> list[str]:
    """The tensors that a row's reductions do not read."""
    before = {read.tensor for stage in (*group.sums, *group.once) for read in reads(stage.value)}
    return [tensor.name for tensor in plan.expression.tensors if tensor.name not in before]


def _shared_out(plan: Plan, stage: Stage, team: Extent, each: Extent) -> None:
    """The loops of a reduction: each thread takes contiguous elements, then all threads move on to the next ones. Runs
    of an innermost axis that is long enough are one loop after the other: no element needs a division for its place."""
    *_, last = stage.reduced
    dealt = [last] if last.extent >= _LONG_RUN else stage.reduced
    plan.deal(stage.name, [axis.name for axis in dealt], ("thread.x", team), ("vector", each))


def _rows(out: Stage, group: StageGroup) -> int:
    if group.across:
        return prod(axis.extent for axis in out.axes if axis.name in group.across)
    return prod(axis.extent for axis in out.axes[: len(group.sums[0].axes) if group.rows else None])


def _usual_run(reductions: Sequence[Stage], longest: int) -> int:
    """How many contiguous elements a thread loads at once: 16 bytes, but no more than four elements of the shortest
    rows."""
    widest = WIDEST // max(2, _least_size(reductions))
    return min(widest, 4) if longest <= _SHORTEST_ROW else widest


def _usual_each(plan: Plan, group: StageGroup, reductions: Sequence[Stage], longest: int, kept: Sequence[str]) -> int:
    each = _usual_run(reductions, longest)
    several = [stage.reduced[-1].extent for stage in reductions if len(stage.reduced) > 1]
    each = min([each, *(extent & -extent for extent in several)])  # of a run that goes on elsewhere, each is a load
    if _rows(group.last, group) * longest <= plan.target.multiprocessors * _FEW_ELEMENTS:
        each = min(each, longest & -longest)  # short code, without a guard for each, ends sooner than wide loads do
        each = min(each, 4) if longest <= _MEDIUM_ROW or not kept else each
    if _rows(group.last, group) > 1 and (kept or group.rows):  # runs that no row begins in are loaded at once
        each = min(each, *(_aligned(plan, one, read) for one in reductions for read in _streams(one)))
    return each


def _least_size(reductions: Sequence[Stage]) -> int:
    """Of the elements that they read; rows of constants read nothing."""
    return min((dtype(read.dtype).bytes for stage in reductions for read in _streams(stage)), default=WIDEST)


def _streams(stage: Stage) -> list[Read]:
    """The reads along the reduced axes: others are one number per row."""
    over, every = {axis.name for axis in stage.reduced}, reads(stage.value)
    return [read for read in every if any(index.iterators & over for index in read.indices)] or [*every]


def _aligned(plan: Plan, stage: Stage, read: Read) -> int:
    """The longest run of elements, a power of two, that divides all distances but those within a row."""
    apart = [facts.stride(plan.expression, read, a.name) or 0 for a in (*stage.axes, *stage.reduced) if a.extent > 1]
    return min((step & -step for step in map(abs, apart) if step > 1), default=WIDEST)


def _usual_team(longest: int, each: int, kept: Sequence[str] = ()) -> int:
    """Threads with about two loads of 16 bytes each; for short rows as many as cover them. With `kept` tensors, as many
    as have registers for these."""
    if kept and longest > _SHORT_ROW:
        few = _USUALLY_KEPT if longest > _MEDIUM_ROW else _USUALLY_KEPT // 2
        held = {n: len(kept) * -(-longest // (n * each)) * each for n in powers(_MOST_THREADS, 2)}
        team = next((n for n in held if held[n] <= few), _MOST_THREADS // 2)
        half = held.get(team // 2, WIDEST * few)  # some more numbers each, if fewer places are beyond the row's end
        return team // 2 if longest <= _MEDIUM_ROW and half < 2 * held[team] and half <= few * 6 // 5 else team
    if longest <= _SHORT_ROW:
        return max(2, 1 << (-(-longest // each) - 1).bit_length())
    return min(256, max(32, 1 << max(0, (longest // 16).bit_length() - 1)))
