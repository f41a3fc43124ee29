"""Study: everything known about one operator on one target in one space, read from its journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepgen import operators, targets
from deepgen.operators import Operator
from deepgen.targets import Target
from deepgen.tuning.speed import speed
from deepgen.tuning.study import journal as journals
from deepgen.tuning.study import trust
from deepgen.tuning.study.definition import (
    STRANGE,
    check,
    check_config,
    check_generator,
    check_trial,
    is_own_kernel,
    signed_part,
)
from deepgen.tuning.study.finals import Finals
from deepgen.tuning.study.glance import described, known_shapes
from deepgen.tuning.study.journal import Journal
from deepgen.tuning.study.text import Row, as_frame, bound_text, rate_text, seconds_text
from deepgen.tuning.study.winner import WINNER, Stored, read_winner
from deepgen.vocabulary import BadInput, DeepgenError, JsonObject, Kernel, Trial, finding, foreign
from deepgen.vocabulary.measurement import ONE
from deepgen.vocabulary.registry import Registry

# Modules that only tuning, emitting and loading need are imported where they are used, so that reading is fast.
if TYPE_CHECKING:
    from deepgen.generators import Generator
    from deepgen.run.measure.base import Task
    from deepgen.space import Space
    from deepgen.tuning.search import StrategyKind
    from deepgen.tuning.study.best import Best
    from deepgen.tuning.study.reading import Reading

_WHAT = ("operator", "target")
# Views that draw a study, by attribute name; packages above this one register them.
VIEWS: Registry[Callable[[Study], Any]] = Registry("deepgen.views", "view of a study", {})


class Study:
    """A study in its current state. Reading it does not disturb a writer, and imports none of the tuned code."""

    def __init__(
        self,
        folder: Path,
        definition: Mapping[str, Any],
        *,
        signature: str | None = None,
        operator: Operator | None = None,
        generator: Generator | None = None,
        trust: bool = False,
    ) -> None:
        self.folder = folder
        self.definition = definition
        self.trusted = trust
        with foreign.shaped(str(folder), "is not a deepgen study: its target"):
            self.target: Target = targets.from_json(definition["target"])
        self._signature = signature
        self._own_operator, self._own_generator = operator, generator

    @staticmethod
    def open(
        folder: str | Path,
        *,
        operator: Operator | None = None,
        generator: Generator | None = None,
        trust: bool = False,
    ) -> Study:
        """The study in a folder.

        `operator` and `generator` are needed if it was tuned with objects that no file or module defines. `trust`
        allows code and binaries that were not written by this user's deepgen to run.
        """
        path = Path(folder)
        with foreign.shaped(str(path), STRANGE), Journal(path) as journal:
            definition, signature = journal.definition(), journal.signature()
        check(definition, str(path))
        if generator is not None:
            check_generator(definition, generator, str(path))
        return Study(path, definition, signature=signature, operator=operator, generator=generator, trust=trust)

    def opened_by(self) -> tuple[Path, Operator | None, Generator | None]:
        """The arguments with which another process opens the study. Trust is not included: each reader decides it."""
        return self.folder.absolute(), self._own_operator, self._own_generator

    def __repr__(self) -> str:
        facts = self._shown()
        rest = {"trials": "{} trials", "best": "best {}"}
        rest_text = ", ".join(rest.get(name, "{}").format(text) for name, text in facts.items() if name not in _WHAT)
        return f"<deepgen study of {facts['operator']} on {facts['target']}: {rest_text}>"

    def _repr_html_(self) -> str:
        return foreign.html_table("deepgen study", self._shown())

    def _shown(self) -> dict[str, str]:
        """A short summary for people. Never fails, because debuggers call it too."""
        facts = {"operator": self.describe(), "target": self.target.shown}
        try:
            summary: dict[str, Any] = self.summary()
        except (DeepgenError, OSError) as error:
            return {**facts, "state": f"cannot be read: {error}", "folder": str(self.folder)}
        facts["trials"] = str(sum(summary["trials"].values()))
        best = summary["winner"]
        if best is not None:
            facts["best"] = f"{rate_text(best)} ({seconds_text(best['seconds'])}{bound_text(best)})"
        return {**facts, "folder": str(self.folder)}

    @contextmanager
    def _journal(self) -> Iterator[Journal]:
        with foreign.shaped(str(self.folder), STRANGE), Journal(self.folder) as journal:
            yield journal

    @cached_property
    def about(self) -> Operator:
        """The operator as recorded, without its code: its name, sizes, work and tensors."""
        return self.shapes[0]

    @cached_property
    def shapes(self) -> tuple[Operator, ...]:
        """The recorded operators of all shapes at which kernels were timed."""
        with foreign.shaped(str(self.folder), "is not a deepgen study: its operator"):
            return known_shapes(self.definition)

    def describe(self) -> str:
        """What was tuned, in one line."""
        return described(self.shapes)

    @cached_property
    def operator(self) -> Operator:
        """The operator itself, with its code loaded."""
        return self._operator(self.definition["operator"])

    @cached_property
    def also(self) -> tuple[Operator, ...]:
        """The operators of its other shapes."""
        return tuple(self._operator(data) for data in self.definition.get("also", ()))

    def task(self) -> Task:
        """The task for a runner that is to measure its kernels again."""
        from deepgen.operators.neighbours import multiples
        from deepgen.run.measure.base import Policy, Task
        from deepgen.tuning.request import own_baselines

        definition, operator = self.definition, self.operator
        policy = Policy(**definition["policy"])
        own = own_baselines(self.own_baselines)
        around = self.also, operator.neighbours(), own, (), multiples(operator), operator.variants()
        return Task(operator, self.target, definition["seed"], policy, *around)

    def _operator(self, data: Mapping[str, Any]) -> Operator:
        if self._own_operator is not None and data == self.definition["operator"]:
            return self._own_operator
        if self._own_operator is not None:
            return type(self._own_operator).from_json(data)
        ref = self._code("operator")
        if ref is None and self.about.judge() is not None:  # a user's own kernel, which needs no code
            from deepgen.kernels.own.own import from_recipe

            with foreign.shaped(str(self.folder), STRANGE):
                return from_recipe(self.definition["recipe"]).from_json(data)
        if ref is None or ref.by == finding.NAME:
            try:
                with foreign.shaped(str(self.folder), STRANGE):
                    return operators.from_json(data)
            except BadInput as error:
                what = f"{self.folder} is of {self.about.describe()}, whose code is not available: {error.what}"
                raise BadInput(what, allowed="from Python: dg.Study.open(folder, operator=...)") from error
        operator: Operator = self._loaded(ref, "operator").from_json(data)
        return operator

    @cached_property
    def generator(self) -> Generator:
        from deepgen import generators

        if self._own_generator is not None:
            return self._own_generator
        ref = self._code("generator")
        if ref is not None and ref.by != finding.NAME:
            generator: Generator = self._loaded(ref, "generator")()
            return generator
        name = self.definition["generator"]
        if is_own_kernel(self.definition):
            self._require("a kernel's source")
        if self.definition.get("rules"):
            return generators.ruled(name, self._classes(generators.RULE), self.definition["rules"], str(self.folder))
        try:
            return generators.by_name(name, self.definition.get("recipe"))
        except BadInput as error:
            what = f"{self.folder} was tuned with {name!r}, which is not one of deepgen's generators"
            raise BadInput(what, allowed="from Python: dg.Study.open(folder, generator=...)") from error

    @cached_property
    def strategy(self) -> str | StrategyKind:
        """The name of the strategy, or the user's own strategy, with its code loaded."""
        ref = self._code("strategy")
        name: str = self.definition["strategy"]
        if ref is None or ref.by == finding.NAME:
            return name
        strategy: StrategyKind = self._loaded(ref, "strategy")
        return strategy

    @cached_property
    def own_baselines(self) -> tuple[type, ...]:
        """The user's own baselines, with their code loaded."""
        from deepgen.tuning.request import BASELINE

        return self._classes(BASELINE)

    def _classes(self, kind: str) -> tuple[type, ...]:
        parts = [part for part in self.definition.get("code", {}) if part.startswith(kind)]
        refs = {part: ref for part in parts if (ref := self._code(part)) is not None}
        return tuple(self._loaded(ref, part) for part, ref in refs.items())

    def _code(self, part: str) -> finding.CodeRef | None:
        ref = self.definition.get("code", {}).get(part)
        return None if ref is None else finding.CodeRef.from_json(ref)

    def _loaded(self, ref: finding.CodeRef, part: str) -> Any:
        """A class of the user's, loaded after its origin was checked."""
        self._require(f"the {part} {ref.ref}")
        return finding.load(ref, self.folder)

    def _require(self, holds: str) -> None:
        """Raises Untrusted unless the user's own deepgen wrote the study's code or the caller trusts it."""
        code = signed_part(self.definition)
        trust.require(code, self._signature, trust=self.trusted, origin=self.folder, holds=holds)

    def kept_space(self) -> Space | None:
        """The space stored in the journal, which needs no generator code; None if it was lost to damage."""
        with self._journal() as journal:
            return journal.space()

    @cached_property
    def space(self) -> Space:
        if (kept := self.kept_space()) is not None:
            return kept
        from deepgen.tuning.request import narrow

        return narrow(self.generator.space(self.operator, self.target), self.definition["domains"])

    def trials(self) -> list[Trial]:
        with self._journal() as journal:
            return [check_trial(trial) for trial in journal.trials()]

    def rows(self) -> list[Row]:
        """One flat row per trial: its verdict and times, `knob.NAME`, `fact.NAME` and `event.NAME`."""
        return self.read().rows()

    def table(self) -> Any:
        """The rows as a pandas DataFrame."""
        return as_frame(self.rows())

    def trial(self, number: int) -> Trial:
        with self._journal() as journal:
            trial = journal.trial(number)
            trial = trial and check_trial(trial)
            ended = journal.tally().ended
        if trial is None:
            raise BadInput(f"{self.folder} has no finished trial {number}", allowed=f"{ended} trials have finished")
        return trial

    def top(self, count: int = 10) -> list[Trial]:
        """The fastest correct trials. The winner of the finals comes first."""
        with self._journal() as journal:
            best = journal.best(count)
            winner = self._winner_id(journal)
            if winner is not None and all(t.id != winner for t in best):
                best = [*filter(None, [journal.trial(winner)]), *best][:count]
            best = [check_trial(trial) for trial in best if trial.measurement.samples]
        return sorted(best, key=lambda t: (t.id != winner, t.seconds))

    def best(self) -> Best:
        """The winner of the finals, or the fastest trial so far before any finals. Raises if the finals are damaged."""
        from deepgen.tuning.study.best import Best

        with self._journal() as journal:
            winner = self._winner_id(journal)
            finals = journal.finals()
            if finals is None and journal.finals_lost:
                what = "its finals are damaged, so it is not known which kernels they rejected"
                raise DeepgenError(f"{self.folder}: {what}; run them again with: deepgen retest {self.folder}")
            trial = journal.trial(winner) if winner is not None else None
            best = [check_trial(one) for one in ([trial] if trial else journal.best(1))]
        if finals is not None and winner is None:
            reasons = [*finals.dropped_reasons(), "none was recorded"]
            raise DeepgenError(f"{self.folder}: every finalist failed the final checks; the fastest one: {reasons[0]}")
        if not best:
            raise DeepgenError(f"{self.folder} has no correct kernel yet")
        seconds = best[0].seconds or 0.0
        if finals is not None and finals.best is not None:
            seconds = finals.best.seconds
        return Best(self, best[0], seconds, judged=finals is not None)

    def kernel(self, trial: Trial) -> Kernel:
        """The kernel of a trial: the stored winner if it may be used, otherwise emitted again."""
        stored = self.stored(trial)
        return self.emitted(trial) if stored is None else stored.kernel

    def stored(self, trial: Trial) -> Stored | None:
        """The stored winner, if it is this trial's and either the user's own or trusted."""
        winner = read_winner(self.folder / WINNER)
        usable = winner is not None and winner.kernel.id == trial.kernel_id and (winner.own or self.trusted)
        return winner if usable else None

    def emit(self, config: Mapping[str, Any]) -> Kernel:
        """The kernel that this generator emits for a config from the journal."""
        check_config(self._emits, config, str(self.folder))
        return self.generator.emit(self.operator, self.target, config)

    @cached_property
    def _emits(self) -> Space:
        """The generator's own space, regardless of what the journal recorded."""
        return self.generator.space(self.operator, self.target)

    def emitted(self, trial: Trial) -> Kernel:
        """The kernel of a trial, emitted again; only its config comes from the study's folder."""
        kernel = self.emit(trial.config)
        if kernel.id == trial.kernel_id:
            return kernel
        winner = read_winner(self.folder / WINNER)
        if winner is not None and winner.kernel.id == trial.kernel_id:
            trust.require(None, None, trust=self.trusted or winner.own, origin=self.folder, holds="a winner")
        raise DeepgenError(
            f"{self.folder}: generator {self.generator.name} has changed since trial {trial.id} was measured, "
            "so its source cannot be shown; tune again"
        )

    def serves_only(self, finals: Finals | None = None) -> tuple[tuple[str, str], ...]:
        """What a shape must satisfy beyond the winner's own requirements, and why, such as a wrong result at another
        shape.

        `finals`, if the caller has read them, are those that the kernel won.
        """
        held = self.finals() if finals is None else finals
        serves = held.serves if held is not None else None
        return serves.requirements(self.about.signature()) if serves is not None else ()

    def exclusive(self, finals: Finals | None = None) -> bool:
        """Whether calls of the winner must not run concurrently."""
        held = self.finals() if finals is None else finals
        return held is not None and held.properties is not None and held.properties.threads == ONE

    def finals(self) -> Finals | None:
        """The newest finals."""
        with self._journal() as journal:
            return journal.finals()

    def notes(self) -> list[tuple[float, str]]:
        with self._journal() as journal:
            return journal.notes()

    def budget(self) -> dict[str, Any]:
        """The trials, time and finalists allowed in the newest run."""
        with self._journal() as journal:
            return journal.run()

    def damage(self) -> str:
        """What is damaged in the journal, in one sentence; empty if every row is intact."""
        with self._journal() as journal:
            journal.check()
            return journal.damage_text()

    def running(self) -> int | None:
        """The process that is tuning this study, if any."""
        return journals.holder(self.folder)

    def summary(self) -> JsonObject:
        """What `deepgen tune --json` prints."""
        with foreign.shaped(str(self.folder), STRANGE):
            return self.read().summary()

    def read(self) -> Reading:
        """Everything in the journal, read once: the source of rows, the summary and reports."""
        from deepgen.tuning.study.reading import read

        with self._journal() as journal:
            return read(self, journal)

    @property
    def plot(self) -> Any:
        """Charts of the study, such as `study.plot.history()`."""
        return VIEWS.get("plot")(self)

    def speed(self, seconds: float, finals: Finals | None = None) -> JsonObject:
        """The speed of a run that takes this many seconds. Rates come from `finals`, if the caller has read them."""
        held = (self.finals() if finals is None else finals) or Finals(None)
        return speed(self.shapes, seconds, held.peak_gflops, held.bandwidth or self.target.bandwidth)

    def _winner_id(self, journal: Journal) -> int | None:
        finals = journal.finals()
        return None if finals is None else finals.winner
