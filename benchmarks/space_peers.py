"""How each peer builds and counts a space. A peer that is not installed is reported and skipped."""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from deepgen.space import Space, parse
from deepgen.vocabulary.errors import install_extra
from space_cases import FUNCTIONS, Case

Builder = Callable[[Case], int]
_MOST_FOR_CP_SAT = 100_000


def space_of(case: Case) -> Space:
    space = Space(case.name)
    for name, values in case.domains.items():
        space.knob(name, values)
    for text in case.conditions:
        space.require(parse(text), text)
    return space


def numpy_mask(case: Case) -> int:
    """The product as columns, and a mask: the remaining rows are the configs."""
    sizes = [len(v) for v in case.domains.values()]
    columns = dict(zip(case.domains, np.unravel_index(np.arange(int(np.prod(sizes))), sizes), strict=True))
    columns = {name: np.asarray(case.domains[name])[places] for name, places in columns.items()}
    return int(_masked(case, columns, np.ones(int(np.prod(sizes)), dtype=bool)).sum())


def numpy_open_grid(case: Case) -> int:
    """A mask over open grids: counts only, without materialising a config."""
    grids = np.meshgrid(*(np.asarray(v) for v in case.domains.values()), indexing="ij", sparse=True)
    mask = np.ones([len(v) for v in case.domains.values()], dtype=bool)
    return int(_masked(case, dict(zip(case.domains, grids, strict=True)), mask).sum())


def _masked(case: Case, columns: dict[str, Any], mask: Any) -> Any:
    for text in case.conditions:
        function = FUNCTIONS[text]
        mask &= function(**{name: columns[name] for name in inspect.signature(function).parameters})
    return mask


def kernel_tuner(case: Case) -> int:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from kernel_tuner.searchspace import Searchspace

        return int(Searchspace(dict(case.domains), list(case.conditions), 1 << 30).size)


def pyatf(case: Case) -> int:
    from pyatf import TP
    from pyatf import Set as Values
    from pyatf.search_space import SearchSpace

    # A parameter's constraint may only refer to earlier ones: each condition is attached to the last of its parameters.
    order = list(case.domains)
    tuned = []
    for place, (name, values) in enumerate(case.domains.items()):
        own = [FUNCTIONS[t] for t in case.conditions if _last(FUNCTIONS[t], order) == place]
        tuned.append(TP(name, Values(*values), _joined(own, name) if own else None))
    return int(SearchSpace(*tuned, verbosity=0).constrained_size)


def _last(function: Callable[..., Any], order: list[str]) -> int:
    return max(order.index(name) for name in inspect.signature(function).parameters)


def _joined(functions: list[Callable[..., Any]], own: str) -> Callable[..., bool]:
    """All conditions as one function whose signature has every parameter that they read."""
    if len(functions) == 1:
        return functions[0]
    names = list(dict.fromkeys([n for f in functions for n in inspect.signature(f).parameters] + [own]))
    wanted = [(f, tuple(inspect.signature(f).parameters)) for f in functions]

    def joined(**values: Any) -> bool:
        return all(f(*[values[n] for n in parameters]) for f, parameters in wanted)

    kind = inspect.Parameter.KEYWORD_ONLY
    joined.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])  # type: ignore[attr-defined]
    return joined


def cp_sat(case: Case) -> int:
    from deepgen.space.solver import SolverEngine

    space = space_of(case)
    return len(SolverEngine(case.name, space.knobs, space.requirements, "benchmark").all_rows())


def builders() -> tuple[dict[str, Builder], list[str]]:
    """The builders that can run here, and a sentence for each that cannot."""
    wanted: dict[str, tuple[str | None, Builder]] = {
        "deepgen": (None, lambda case: space_of(case).count()),
        "Kernel Tuner": ("kernel_tuner", kernel_tuner),
        "pyATF": ("pyatf", pyatf),
        "numpy mask": (None, numpy_mask),
        "numpy open grid": (None, numpy_open_grid),
        "CP-SAT": ("ortools", cp_sat),
    }
    here = {name: build for name, (module, build) in wanted.items() if module is None or find_spec(module)}
    remedy = install_extra("peers")
    missing = [f"{name} is not installed and is left out. {remedy}" for name in wanted if name not in here]
    return here, missing


def runs(name: str, case: Case, product: int) -> bool:
    return name != "CP-SAT" or product <= _MOST_FOR_CP_SAT
