"""Everything that defines a tuning run, and the name of the study it belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

from deepgen import __version__, baselines, generators
from deepgen.generators import Families, Generator
from deepgen.kernels import least_bytes
from deepgen.operators import OPERATORS, Operator, is_built_in, record
from deepgen.operators.neighbours import multiples
from deepgen.run import counters as counter_names
from deepgen.run.measure import limits
from deepgen.run.measure.base import Policy, Task
from deepgen.settings import Settings
from deepgen.space import Space
from deepgen.targets import Target, host
from deepgen.tuning import search
from deepgen.tuning.progress import Goals
from deepgen.tuning.study.definition import check_config
from deepgen.vocabulary import BadInput, DeepgenError, JsonObject, Kernel, digest
from deepgen.vocabulary.code_digest import code_digest
from deepgen.vocabulary.finding import NAME, CodeRef, CodeSource, source_of

STUDIES = Path("deepgen-studies")
OwnBaseline: TypeAlias = Any  # a class, a function, or the operator of a kernel that has its own baseline
BASELINE = "baseline "  # prefix of a baseline's key in the study's record of code


@dataclass(frozen=True)
class Request:
    """What to tune, where, how, and how long. The defaults are those of the command line."""

    operator: Operator
    target: Target
    also: tuple[Operator, ...] = ()  # other shapes that the kernel is tuned for: the geometric mean of the times counts
    trials: int = 200
    time_budget: float | None = None  # seconds for this run, including finals; None: until the trials are done
    seed: int = 0
    strategy: str | search.StrategyKind = search.DEFAULT  # a name, or a strategy of your own
    options: Mapping[str, Any] = field(default_factory=dict)  # of the strategy
    transfer: bool = True  # learn from earlier studies of the same generator in the same folder
    learn_from: tuple[Path, ...] = ()  # recordings of the same kernel: T4 files, caches of Kernel Tuner
    second_look: bool = True  # skip kernels whose build statistics predict that they are clearly slow
    target_speedup: float | None = None  # stop once this many times faster than the fastest baseline
    patience: int | None = None  # stop after this many trials without a better one
    keep_top: int = 8
    domains: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # knob values that narrow the space
    policy: Policy = field(default_factory=Policy)
    # True: all that can run. Otherwise names, classes or functions.
    baselines: bool | Sequence[str | OwnBaseline] = True
    generator: Generator | None = None  # None: the best of deepgen's generators
    counters: str | Sequence[str] | None = None  # events to count for correct kernels, besides measuring time
    out: Path = STUDIES
    study: Path | None = None  # the folder of an existing study to resume; None: named after the other fields

    def __post_init__(self) -> None:
        if not isinstance(self.operator, Operator):
            raise BadInput(f"{self.operator!r} is not an operator", allowed="such as deepgen.gemm(1024, 1024, 1024)")
        for other in self.also:
            _check_shape(self.operator, other)
        for name, least in (("trials", 1), ("keep_top", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise BadInput(f"{name} is {value!r}", allowed=f"must be an integer of at least {least}")
        if self.time_budget is not None and not 0 < self.time_budget < inf:
            raise BadInput(f"time budget is {self.time_budget:g} s", allowed="must be positive, or None")
        search.settle(self.strategy, self.options)
        if self.baselines is True and getattr(self.operator, "baseline", None):  # the kernel's own baseline
            object.__setattr__(self, "baselines", (type(self.operator),))
        self.goals()
        counter_names.requested(self.counters)
        own_baselines(self.own_baselines)
        for one in [] if isinstance(self.baselines, bool) else self.baselines:
            if isinstance(one, str):
                baselines.by_name(one)  # raises if there is none

    @property
    def uses_second_look(self) -> bool:
        """Whether some built kernels may be skipped; an exhaustive search needs every time."""
        return self.second_look and search.name_of(self.strategy) != "exhaustive"

    @property
    def raced(self) -> bool | list[str]:
        """The names of the baselines that finals race; True: all that can run."""
        if isinstance(self.baselines, bool):
            return self.baselines
        own = iter(own_baselines(self.own_baselines))
        return [one if isinstance(one, str) else next(own) for one in self.baselines]

    @property
    def own_baselines(self) -> tuple[OwnBaseline, ...]:
        """The baselines that are given as classes or functions, not by name."""
        requested = () if isinstance(self.baselines, bool) else self.baselines
        return tuple(one for one in requested if not isinstance(one, str))

    def goals(self) -> Goals:
        return Goals(self.target_speedup, self.patience)

    def budget(self) -> JsonObject:
        """The settings that may differ between runs of one study."""
        values: JsonObject = {
            "trials": self.trials,
            "time_budget": self.time_budget,
            "keep_top": self.keep_top,
            "target_speedup": self.target_speedup,
            "patience": self.patience,
        }
        if not isinstance(self.raced, bool):
            values["baselines"] = [*self.raced]
        elif not self.raced:
            values["baselines"] = False
        if counters := counter_names.requested(self.counters):
            values["counters"] = [*counters]
        return values


@dataclass(frozen=True)
class StudyPlan:
    """A resolved request: its generator, its space, and the definition stored in the journal."""

    generator: Generator
    space: Space
    starts: tuple[Mapping[str, Any], ...]  # every default, the best family's first; then other guesses
    definition: JsonObject
    folder: Path
    sources: Mapping[str, CodeSource] = field(default_factory=dict)  # code from outside deepgen
    members: Mapping[str, Space] = field(default_factory=dict)  # if families compete: the space of each
    after: Path | None = None  # the earlier study whose kernels have changed since; this one learns from it
    anew: str = ""  # why an earlier study of the same definition was not resumed

    def emit(self, request: Request, config: Mapping[str, Any]) -> Kernel:
        """The kernel of a config, which may come from the journal."""
        check_config(self.space, config, str(self.folder))
        return self.generator.emit(request.operator, request.target, config)

    @cached_property
    def first(self) -> int | None:
        """The rank of the config that the search begins with: the default, unless the space lacks it."""
        return self.space.rank(dict(self.starts[0])) if self.starts else None


def task_of(request: Request) -> Task:
    """The task that runners are opened for."""
    operator = request.operator
    own = own_baselines(request.own_baselines)
    counters = counter_names.requested(request.counters)
    around = request.also, operator.neighbours(), own, counters, multiples(operator), operator.variants()
    return Task(operator, request.target, request.seed, request.policy, *around)


def own_baselines(things: Sequence[OwnBaseline]) -> dict[str, CodeSource]:
    """The user's own baselines by name, and how a worker finds their code."""
    sources: dict[str, CodeSource] = {}
    for one in things:
        baseline = baselines.baseline_of(one)
        if baseline is None:
            what = "a name, a function, or a class with `name`, `missing` and `prepare`"
            raise BadInput(f"{one!r} is not a baseline", allowed=what)
        name = baseline.name
        source = source_of(getattr(one, "kind", one))  # a kernel read from a file is found the way operators are
        findable = source is not None and source.ref.attribute.isidentifier()
        if source is None or not findable or name in baselines.BASELINES or name in sources:
            reason = "another baseline has that name" if findable else "its code is in no file or module"
            allowed = "a function or class with a name of its own, at the top of a file or module"
            raise BadInput(f"baseline {name} cannot be used: {reason}", allowed=allowed)
        sources[name] = source
    return sources


def _check_shape(first: Operator, other: Operator) -> None:
    """Check that another shape belongs to the same operator, differing only in its sizes."""
    if not isinstance(other, Operator):
        raise BadInput(f"{other!r} is not an operator", allowed="the same operator with other sizes")
    alike = type(other) is type(first) and first.resized(other.sizes(), {}, {}) == other
    if not alike or other == first:
        what = f"{other.describe()} is not another shape of {first.describe()}"
        raise BadInput(what, allowed="the same operator with other sizes, each once")


def plan(request: Request) -> StudyPlan:
    """Choose the generator, narrow its space, and name the study. Errors are raised before any work is done."""
    generator = generator_of(request)
    space = narrow(generator.space(request.operator, request.target), request.domains)
    definition = _definition(request, generator, space)
    # The version is in the journal but not in the name: a bug-fix release resumes the same study.
    name = f"{request.operator.slug()}-{_safe(request.target.name)}-{digest(definition, 8)}"
    folder = request.study or request.out / name
    space.arrange(_known_orders(folder))
    if space.empty():
        reasons = ", ".join(f"'{name}'" for name in space.why_empty()) or "the given domains"
        raise BadInput(f"the space of {request.operator.describe()} is empty", allowed=f"unsatisfiable: {reasons}")
    starts = first_configs(generator, request.operator, request.target, space, request.domains, request.policy)
    members = generator.spaces(request.operator, request.target) if isinstance(generator, Families) else {}
    members = {name: narrow(own, request.domains) for name, own in members.items()}
    if not request.domains:
        members = {name: own.within(space, name) for name, own in members.items()}
    sources = code_of(request, generator)
    recorded: JsonObject = {**definition, "deepgen": __version__, "facts": _facts(request.operator)}
    if not is_built_in(request.operator):
        judging = request.operator.judged_by()
        recorded["judged_by"] = {part: code_digest(value, type(request.operator)) for part, value in judging.items()}
    if request.also:
        recorded["also_facts"] = [_facts(operator) for operator in request.also]
    if sources:
        recorded["code"] = {part: source.ref.to_json() for part, source in sources.items()}
    return StudyPlan(generator, space, starts, recorded, folder, sources, members)


def _definition(request: Request, generator: Generator, space: Space) -> JsonObject:
    """The study's definition: a request with another definition is another study."""
    definition: JsonObject = {
        "operator": request.operator.to_json(),
        "target": request.target.to_json(),
        "generator": generator.name,
        "space": space.fingerprint(),
        "domains": {name: list(values) for name, values in request.domains.items()},
        "strategy": search.name_of(request.strategy),
        "options": search.settle(request.strategy, request.options),
        "seed": request.seed,
        "policy": request.policy.identity(),
    }
    if request.also:
        definition["also"] = [operator.to_json() for operator in request.also]
    if not request.transfer:
        definition["transfer"] = False
    if not request.second_look:
        definition["second_look"] = False
    if asks := getattr(generator, "asks", None):
        definition["rules"] = asks
    recipe = getattr(generator, "recipe", None)
    if recipe is not None:  # a generator made from data: stored so that it can be rebuilt when the study is read
        definition["recipe"] = recipe
    return definition


def _known_orders(folder: Path) -> list[list[str]]:
    """The knob orders found when the study began, so that this run need not search for them."""
    from deepgen.tuning.study.journal import FILE, Journal  # imported here, while the first kernel is built

    if not (folder / FILE).exists():
        return []
    try:
        with Journal(folder) as journal:
            return journal.orders()
    except DeepgenError:
        return []  # opening the journal for writing will report what is wrong with it


def _facts(operator: Operator) -> JsonObject:
    return {key: value for key, value in record(operator).data.items() if key != "operator"}


def code_of(request: Request, generator: Generator) -> dict[str, CodeSource]:
    """Where to find code that is not part of deepgen."""
    operator = request.operator
    out: dict[str, CodeSource] = {BASELINE + name: one for name, one in own_baselines(request.own_baselines).items()}
    for rule in getattr(generator, "rules", ()):
        source = source_of(type(rule))
        out |= {} if source is None else {generators.RULE + rule.name: source}
    if isinstance(request.strategy, type):
        source = source_of(request.strategy)
        out |= {} if source is None else {"strategy": source}
    if not is_built_in(operator):
        named = operator.name in OPERATORS and OPERATORS.get(operator.name) is type(operator)
        source = CodeSource(CodeRef(NAME, operator.name)) if named else source_of(type(operator))
        out |= {} if source is None else {"operator": source}
    own = generator.name in generators.FAMILIES.own and generators.FAMILIES.get(generator.name) is type(generator)
    own = own or isinstance(generator, Families)  # found by its members' names
    if not own and getattr(generator, "recipe", None) is None:
        named = generator.name in generators.FAMILIES and type(generators.by_name(generator.name)) is type(generator)
        source = CodeSource(CodeRef(NAME, generator.name)) if named else source_of(type(generator))
        out |= {} if source is None else {"generator": source}
    return out


def first_configs(
    generator: Generator,
    operator: Operator,
    target: Target,
    space: Space,
    domains: Mapping[str, Sequence[Any]],
    policy: Policy,
) -> tuple[Mapping[str, Any], ...]:
    """The configs that the search begins with. The first is the default."""
    return tuple(first for first in guesses(generator, operator, target, domains, policy) if space.contains(first))


def guesses(
    generator: Generator, operator: Operator, target: Target, domains: Mapping[str, Sequence[Any]], policy: Policy
) -> Iterator[Mapping[str, Any]]:
    """The families' best guesses, within the allowed number of threads and the given knob values."""
    for guess in generators.best_guesses(generator, operator, target.limited_to(policy.threads)):
        narrowed = {name: v[0] for name, v in _values(domains).items() if name in guess and guess[name] not in v}
        yield {**guess, **narrowed}


def generator_of(request: Request) -> Generator:
    """The requested generator, or the competing families; raises with the reason if none supports the operator."""
    if request.generator is None:
        return generators.competing(request.operator, request.target, request.domains)
    return generators.serves(request.generator, request.operator, request.target)


def check_memory(request: Request) -> None:
    """Refuse tensors that exceed this machine's memory, before building. GPU inputs are prepared in host memory too."""
    if request.target.runner == "sim":
        return
    here, there = host.memory_bytes(), host.gpu_memory_bytes(request.target)
    for operator in (request.operator, *request.also):
        needed = least_bytes(operator)
        if here is not None and needed > here:
            what = f"{operator.describe()} needs {_bytes_text(needed)} for its tensors"
            raise BadInput(what, allowed=f"at most {_bytes_text(here)}, the memory of this machine")
        needed = limits.device_bytes(operator)
        if there is not None and needed > there:
            what = f"{operator.describe()} needs {_bytes_text(needed)} for its tensors, their copies and references"
            raise BadInput(what, allowed=f"at most {_bytes_text(there)}, the memory of the GPU")


def _bytes_text(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"


def on_threads(request: Request, threads: int) -> Request:
    """The request, limited to kernels that use at most this many threads and baselines that use exactly as many."""
    family = generator_of(request)
    fitting = generators.on_threads(family, family.space(request.operator, request.target), threads)
    domains = {**fitting, **request.domains}
    return replace(request, domains=domains, policy=replace(request.policy, threads=threads))


def narrow(space: Space, domains: Mapping[str, Sequence[Any]]) -> Space:
    """The space with some knobs restricted to the values given."""
    existing = {knob.name: knob.values for knob in space.knobs}
    for name, values in domains.items():
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise BadInput(f"knob {name} is {values!r}", allowed=f"a list of values, such as [{values!r}]")
    domains = _values(domains)
    for name, values in domains.items():
        if name not in existing:
            raise BadInput(f"knob {name!r} is not in the space", allowed="one of " + ", ".join(existing))
        strange = [v for v in values if v not in existing[name]]
        if strange or not values:
            what = f"knob {name} cannot be {strange[0]!r}" if strange else f"knob {name} has no values"
            raise BadInput(what, allowed="one of " + ", ".join(map(str, existing[name])))
    return space.restrict(domains) if domains else space


def _values(domains: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Convert lists to tuples: JSON has no tuples, so a permutation read from a file is a list."""
    return {name: [tuple(v) if isinstance(v, list) else v for v in values] for name, values in domains.items()}


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=-]+", "_", name)


def begin_first_build(request: Request, settings: Settings) -> None:
    """Build the family's best guess in the background, and our own helper code that runs beside it. If the study begins
    with another kernel, or has this one built already, little is lost. Errors are left to planning to report."""
    if request.target.runner not in ("cpu", "gpu") or not isinstance(request.strategy, str):
        return
    with suppress(Exception):
        operator, target = request.operator, request.target
        # With several families the best one begins: building all spaces would take as long as its kernel's build.
        alone = request.generator is None and not request.domains
        family = generators.find(operator, target) if alone else generator_of(request)
        kernel = family.emit(operator, target, next(guesses(family, operator, target, request.domains, request.policy)))
        from deepgen.toolchains import pool

        how = target, settings.cache, settings.programs(), settings.build_limits()
        pool.begin(kernel, *how)
        from deepgen.run.measure.helpers import helpers_for  # imported here, while the kernel is built

        for one in helpers_for(task_of(request)).values():
            pool.begin(one, *how)
