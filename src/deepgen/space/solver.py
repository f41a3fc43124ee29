"""The fallback for spaces that are too large to compile: OR-tools' CP-SAT finds configs one at a time, not uniformly.

Requirements on few knobs become tables of allowed values; larger ones are translated operation by operation, which
works for integers and booleans. Global properties (count, ranks) are not available.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from deepgen.space.arrays import evaluate_arrays
from deepgen.space.definition import Knob
from deepgen.space.engine import Size, TooWideToCount
from deepgen.space.estimate import sharp_combinations
from deepgen.space.evaluate import holds
from deepgen.space.expr import Expr, Requirement
from deepgen.space.nodes import Nodes, condition_parts
from deepgen.space.rows import Rows, variable
from deepgen.vocabulary import DeepgenError, Missing
from deepgen.vocabulary.errors import install_extra

_TABLE_CELLS = 1 << 16
_LARGEST = 1 << 60
_SECONDS = 30.0


class SolverEngine:
    """Answers the queries that a search can answer. Samples are not uniform, but reproducible from the seed."""

    uniform = False
    orders: tuple[tuple[str, ...], ...] = ()

    def __init__(self, name: str, knobs: Sequence[Knob], requirements: Sequence[Requirement], reason: str) -> None:
        try:
            from ortools.sat.python import cp_model
        except ImportError as error:
            raise Missing(
                "OR-tools",
                blocks=f"space {name!r} is too large to compile ({reason}), and there is no solver to use instead",
                remedy=f"{install_extra('solver')} Or raise the space's memory limit.",
            ) from error
        self.cp, self.name, self.reason = cp_model, name, reason
        self.knobs, self.requirements, self.rows_of = knobs, requirements, Rows(knobs)

    # Queries that need all configs ------------------------------------------------------------------------------------

    def _out_of_reach(self, what: str) -> NoReturn:
        raise TooWideToCount(
            f"space {self.name!r} has no {what}: {self.reason}. Samples, neighbors and explanations work; "
            "for the rest, restrict it or raise its memory limit"
        )

    def count(self) -> int:
        self._out_of_reach("exact count")

    def size(self) -> Size:
        self._out_of_reach("count")

    @property
    def ranks(self) -> int:
        self._out_of_reach("ranks")

    def valid(self, ranks: Sequence[int]) -> list[bool]:
        self._out_of_reach("ranks")

    def row(self, rank: int) -> list[int]:
        self._out_of_reach("ranks")

    def rank(self, row: Sequence[int]) -> int | None:
        self._out_of_reach("ranks")

    def rows(self, ranks: Sequence[int]) -> npt.NDArray[Any]:
        self._out_of_reach("ranks")

    def drawn_ranks(self, n: int, rng: np.random.Generator) -> list[int]:
        self._out_of_reach("ranks")

    # Queries about single configs -------------------------------------------------------------------------------------

    def contains(self, row: Sequence[int]) -> bool:
        config = self.rows_of.config(row)
        exists = all(k.when is None or holds_surely(k.when, config) == (k.name in config) for k in self.knobs)
        return exists and all(holds(r.expr, config) for r in self.requirements)

    def empty(self) -> bool:
        return self._solve(_SolverModel(self), seed=0) is None

    def drawn_rows(self, n: int, rng: np.random.Generator) -> npt.NDArray[Any]:
        model = _SolverModel(self)
        drawn = []
        for _ in range(n):
            model.aim(rng)
            drawn.append(self._solve(model, seed=int(rng.integers(1 << 30))))
        return np.array(drawn, dtype=np.int32).reshape(n, len(self.knobs))

    def chunks(self, start: int) -> Iterator[npt.NDArray[Any]]:
        """All rows, in the order in which the solver finds them; each one found is excluded from then on."""
        model = _SolverModel(self)
        count = 0
        while (row := self._solve(model, seed=0)) is not None:
            model.forbid(row)
            count += 1
            if count > start:
                yield np.array([row], dtype=np.int32)

    def one_knob_away(self, row: Sequence[int], absent: Sequence[int]) -> list[list[int]]:
        changed = (
            [*row[:i], place, *row[i + 1 :]]
            for i, knob in enumerate(self.knobs)
            for place in range(len(knob.values))
            if row[i] not in (place, absent[i])
        )
        return [r for r in changed if self.contains(r)]

    def repaired(self, row: Sequence[int], absent: Sequence[int]) -> list[list[int]]:
        results = []
        for i, knob in enumerate(self.knobs):
            for place in range(len(knob.values)):
                if place != row[i]:
                    model = _SolverModel(self)
                    model.fix(i, place)
                    model.stay_near(row)
                    nearest = self._solve(model, seed=0)
                    results += [] if nearest is None else [nearest]
        return results

    def _solve(self, model: _SolverModel, seed: int) -> list[int] | None:
        solver = self.cp.CpSolver()
        solver.parameters.num_workers = 1  # several would race, and the same seed would give different configs
        solver.parameters.random_seed = seed
        solver.parameters.randomize_search = True
        solver.parameters.max_deterministic_time = _SECONDS
        status = solver.Solve(model.model)
        if status in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return [solver.Value(v) for v in model.places]
        if status == self.cp.INFEASIBLE:
            return None
        raise TooWideToCount(f"the solver ran out of time on space {self.name!r}")


def holds_surely(condition: Expr, config: dict[str, Any]) -> bool:
    from deepgen.space.evaluate import ABSENT, UNDEFINED, evaluate

    truth = evaluate(condition, config)
    return truth is not ABSENT and truth is not UNDEFINED and bool(truth)


class _SolverModel:
    """The space as a CP-SAT model: an integer for each knob's place, and constraints."""

    def __init__(self, of: SolverEngine) -> None:
        self.model = of.cp.CpModel()
        self.knobs = of.knobs
        self.places = [self.model.NewIntVar(0, k.places - 1, k.name) for k in of.knobs]
        self.by_name = {k.name: p for k, p in zip(of.knobs, self.places, strict=True)}
        fixed = {k.name: k.values[0] for k in of.knobs if k.places == 1}
        self.nodes = Nodes({k.name: variable(k) for k in of.knobs if k.places > 1}, fixed)
        self._translated: dict[int, Any] = {}
        parts = condition_parts(self.nodes, of.knobs, of.requirements)
        # A product of factors that multiply to an extent cannot exceed it: without this, bounds would be too large.
        sharp_combinations(self.nodes, {n: np.arange(v.size) for n, v in self.nodes.variables.items()}, parts)
        for part in parts:
            self._require(part)

    def aim(self, rng: np.random.Generator) -> None:
        """Start the next search from a random assignment."""
        self.model.ClearHints()
        self.model.clear_objective()
        for knob, place in zip(self.knobs, self.places, strict=True):
            self.model.AddHint(place, int(rng.integers(knob.places)))

    def fix(self, knob: int, place: int) -> None:
        self.model.Add(self.places[knob] == place)

    def forbid(self, row: Sequence[int]) -> None:
        self.model.AddForbiddenAssignments(self.places, [tuple(row)])

    def stay_near(self, row: Sequence[int]) -> None:
        changes = []
        for place, here in zip(self.places, row, strict=True):
            changed = self.model.NewBoolVar("")
            self.model.Add(place != here).OnlyEnforceIf(changed)
            self.model.Add(place == here).OnlyEnforceIf(changed.Not())
            changes.append(changed)
        self.model.Minimize(sum(changes))

    def _require(self, expr: Expr) -> None:
        names = sorted(self.nodes.scope(expr))
        sizes = [self.nodes.variables[n].size for n in names]
        if not names:
            if not bool(evaluate_arrays(self.nodes, expr, {})):
                self.model.AddBoolOr([])
        elif expr.op == "points":
            self._points(expr)
        elif prod(sizes) <= _TABLE_CELLS:
            self.model.AddAllowedAssignments([self.by_name[n] for n in names], self._rows(expr, names, sizes))
        else:
            self.model.Add(self._number(expr) == 1)

    def _rows(self, expr: Expr, names: list[str], sizes: list[int]) -> list[list[int]]:
        grid = {
            n: np.arange(s).reshape([-1 if a == b else 1 for b in range(len(names))])
            for a, (n, s) in enumerate(zip(names, sizes, strict=True))
        }
        met = np.nonzero(np.broadcast_to(evaluate_arrays(self.nodes, expr, grid), sizes))
        return np.stack(met, axis=1).tolist()  # type: ignore[no-any-return]

    def _points(self, expr: Expr) -> None:
        names, rows = expr.data
        knobs = {k.name: k for k in self.knobs}
        places = [{**{v: i for i, v in enumerate(knobs[n].values)}, None: len(knobs[n].values)} for n in names]
        listed = [[p.get(v, -1) for p, v in zip(places, row, strict=True)] for row in rows]
        self.model.AddAllowedAssignments([self.by_name[n] for n in names], [r for r in listed if min(r) >= 0])

    # Larger expressions, one integer variable per node ----------------------------------------------------------

    def _number(self, node: Expr) -> Any:
        if id(node) not in self._translated:
            self._translated[id(node)] = self._translate(node)
        return self._translated[id(node)]

    def _translate(self, node: Expr) -> Any:
        kind, bounds = self.nodes.facts(node)
        if node.op == "const" and kind in ("int", "bool"):
            return int(node.data)
        names = sorted(self.nodes.scope(node))
        sizes = [self.nodes.variables[n].size for n in names]
        if kind not in ("int", "bool") or bounds is None or max(abs(bounds[0]), abs(bounds[1])) >= _LARGEST:
            raise DeepgenError(
                f"'{node}' is neither a boolean nor an integer of moderate size: the solver cannot use it"
            )
        result = self.model.NewIntVar(int(bounds[0]), int(bounds[1]), "")
        if len(names) == 1 or (names and prod(sizes) <= _TABLE_CELLS >> 6):
            self._tabulated(node, names, sizes, result)
            return result
        args = [self._number(a) for a in node.args]
        self._relate(node, result, args)
        return result

    def _tabulated(self, node: Expr, names: list[str], sizes: list[int], result: Any) -> None:
        grid = np.stack(np.meshgrid(*(np.arange(s) for s in sizes), indexing="ij"), axis=-1).reshape(-1, len(names))
        values = evaluate_arrays(self.nodes, node, {n: grid[:, i] for i, n in enumerate(names)}).astype(np.int64)
        rows = np.column_stack([grid, np.broadcast_to(values, (len(grid),))]).tolist()
        self.model.AddAllowedAssignments([*(self.by_name[n] for n in names), result], rows)

    def _relate(self, node: Expr, result: Any, args: list[Any]) -> None:
        m, op = self.model, node.op
        if op in ("+", "-", "neg"):
            m.Add(result == (args[0] + args[1] if op == "+" else args[0] - args[1] if op == "-" else -args[0]))
        elif op == "*":
            m.AddMultiplicationEquality(result, args)
        elif op in ("//", "%") and self._positive(node):
            (m.AddDivisionEquality if op == "//" else m.AddModuloEquality)(result, args[0], args[1])
        elif op == "ceil_div" and self._positive(node):
            m.AddDivisionEquality(result, args[0] + args[1] - 1, args[1])
        elif op == "divides" and self._positive(node):
            rest = m.NewIntVar(0, int(self.nodes.bounds(node.args[0])[1]), "")  # type: ignore[index]
            m.AddModuloEquality(rest, args[1], args[0])
            self._when(result, rest == 0, rest != 0)
        elif op in ("min", "max"):
            (m.AddMinEquality if op == "min" else m.AddMaxEquality)(result, args)
        elif op in ("and", "or"):
            (m.AddMinEquality if op == "and" else m.AddMaxEquality)(result, args)
        elif op == "not":
            m.Add(result == 1 - args[0])
        elif op == "where":
            m.Add(result == args[1]).OnlyEnforceIf(self._literal(args[0]))
            m.Add(result == args[2]).OnlyEnforceIf(self._literal(args[0]).Not())
        elif op in ("==", "!=", "<", "<=", ">", ">="):
            a, b = args
            yes, no = {"==": (a == b, a != b), "!=": (a != b, a == b), "<": (a < b, a >= b)}.get(op) or {
                "<=": (a <= b, a > b),
                ">": (a > b, a <= b),
                ">=": (a >= b, a < b),
            }[op]
            self._when(result, yes, no)
        else:
            raise DeepgenError(f"'{node}' depends on too many knobs for the solver")

    def _positive(self, node: Expr) -> bool:
        number, divisor = node.args if node.op != "divides" else node.args[::-1]
        a, b = self.nodes.bounds(number), self.nodes.bounds(divisor)
        return a is not None and b is not None and a[0] >= 0 and b[0] > 0

    def _literal(self, truth: Any) -> Any:
        literal = self.model.NewBoolVar("")
        self.model.Add(truth == literal)
        return literal

    def _when(self, result: Any, yes: Any, no: Any) -> None:
        literal = self._literal(result)
        self.model.Add(yes).OnlyEnforceIf(literal)
        self.model.Add(no).OnlyEnforceIf(literal.Not())
