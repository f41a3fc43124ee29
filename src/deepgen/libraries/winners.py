"""A library of winners: what programs open to get the fastest verified kernel for an operator."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from deepgen import targets
from deepgen.libraries.adding import entry_of, general_of
from deepgen.libraries.choice import Called, Choice, VendorKernel, choose
from deepgen.libraries.entry import Entry, ModelTimes, Times
from deepgen.libraries.store import ENTRIES, LibraryContent, LibraryStore
from deepgen.operators import Operator
from deepgen.run.call.loaded import Loaded, load
from deepgen.targets import Target
from deepgen.tuning import Study
from deepgen.tuning.study.text import counted
from deepgen.vocabulary import Artifact, BadInput, DeepgenError

PREDICT, MEASURE = "predict", "measure"  # how a kernel is chosen for a shape that was never tuned
ADDED, REPLACED, KEPT = "added", "replaced", "kept"  # the outcome for an entry: it is new, faster, or slower
_AS_FAST = 1.02  # kernels within this ratio of times count as equally fast


class VendorFallback(UserWarning):
    """Warns that a vendor's library is used instead of a kernel."""


@dataclass(frozen=True)
class Pruned:
    """What was removed from a library, and why."""

    name: str
    why: str


class Library:
    """The winners of many studies in one folder."""

    def __init__(self, folder: str | Path, *, trust: bool = False, dispatch: str = PREDICT) -> None:
        """`trust` allows binaries that were not written by this user's deepgen; `dispatch`: see `library`."""
        if dispatch not in (PREDICT, MEASURE):
            raise BadInput(f"dispatch is {dispatch!r}", allowed=f"{PREDICT!r} or {MEASURE!r}")
        self.folder, self.trusted, self.dispatch = Path(folder), trust, dispatch
        self.served: Counter[str] = Counter()  # choices so far: exact, neighbour, vendor or none
        self._store = LibraryStore(self.folder)
        self._content = self._store.read()
        self._measured: dict[str, Times] = {}  # by this process; also used if the folder cannot be changed
        self._choices: dict[tuple[Operator, str | Target | None, tuple[str, ...] | None], Choice] = {}
        self._loaded: dict[tuple[str, Operator], Loaded] = {}

    def add(self, study: Study | str | Path, *, general: bool = True, noisy: bool = False) -> str:
        """Add the winner of a study. Returns `added`, or `replaced` or `kept` if there was one for the same conditions.

        Some winners support only their own shape. Then the fastest kernel of the study that supports other shapes is
        added too, after it was verified and timed like a winner, unless `general` is False. A winner whose times a
        busy machine distorted is refused, unless `noisy`.
        """
        study = study if isinstance(study, Study) else Study.open(study, trust=self.trusted)
        winner = entry_of(study, noisy=noisy)
        twin = general_of(study) if general else None
        with self._store.changing():
            content = self._store.read()
            became = self._became(winner[0], content)
            for entry, kernel, artifact in filter(None, (winner, twin)):
                if self._became(entry, content) != KEPT:
                    self._store.write(entry, kernel, artifact)
        self.reload()
        return became

    def merge(self, other: Library | str | Path) -> dict[str, str]:
        """Add all entries of another library, each as `add` does; returns the outcome of each.

        Binaries that were not written by this user's deepgen still need trust, unless the other library was opened with
        it.
        """
        other = other if isinstance(other, Library) else library(other, trust=self.trusted)
        content = other.content()
        if content.damaged:
            name, why = next(iter(content.damaged.items()))
            raise DeepgenError(f"{other.folder} contains a damaged file, {name}: {why}. Prune it first")
        out = {}
        with self._store.changing():
            for name, entry in content.entries.items():
                stored = other._store.stored(entry, trusted=True)
                out[name] = self._became(entry, self._store.read())
                if out[name] == KEPT:
                    continue
                if other.trusted and not stored.own and stored.binary is not None:
                    binary = stored.binary
                    form = binary.suffix.removeprefix(".")
                    artifact = Artifact(stored.kernel.id, str(binary), form, "", {}, 0.0, plan=stored.plan)
                    self._store.write(entry, stored.kernel, artifact)
                else:
                    self._store.copy(name, other._store)
            self._store.add_times(content)
        self.reload()
        return out

    def add_model(self, times: ModelTimes) -> None:
        """Keep what serves a recorded model in one form. It replaces what an earlier run decided."""
        with self._store.changing():
            self._store.write_times(times)
        self.reload()

    def by_models(self, operator: Operator, kernel: str, form: str, device: str, threads: int | None) -> bool | None:
        """Whether recorded models are faster with a kernel of this id, in a form, on such devices. None: they differ in
        this, or none has such a call.
        """
        answers = {
            one.serves
            for model in self._content.models
            if (model.form, model.device, model.threads) == (form, device, threads)
            for one in model.kernels
            if (one.operator, one.kernel_id) == (operator, kernel)
        }
        return answers.pop() if len(answers) == 1 else None

    def list(self) -> tuple[Entry, ...]:
        """All entries that can be read."""
        return tuple(self._content.entries.values())

    def damaged(self) -> Mapping[str, str]:
        """Files that cannot be used, and why."""
        return self._content.damaged

    def content(self) -> LibraryContent:
        return self._content

    def prune(self, names: tuple[str, ...] = (), *, dry_run: bool = False) -> tuple[Pruned, ...]:
        """Remove the named entries; without names, damaged ones and those another entry replaces at equal speed."""
        content = self._content
        unknown = [name for name in names if name not in content.entries and name not in content.damaged]
        if unknown:
            raise BadInput(f"{self.folder} has no entry {unknown[0]!r}", allowed=", ".join(content.entries) or "none")
        pruned = tuple(Pruned(name, "named") for name in names) or (
            *(Pruned(name, f"damaged: {why}") for name, why in self._all_damaged().items()),
            *self._dominated(),
        )
        if not dry_run and pruned:
            with self._store.changing():
                for one in pruned:
                    self._store.remove(one.name)
            self.reload()
        return pruned

    def choose(
        self, operator: Operator, target: str | Target | None = None, among: tuple[str, ...] | None = None
    ) -> Choice:
        """Choose a kernel for an operator on a target (default: the best local device). `served` counts choices.

        `among`: the baselines that may be used instead of a kernel; None: all available.
        """
        choice = self._choices.get((operator, target, among))
        if choice is None:
            where = target if isinstance(target, Target) else targets.resolve(target)
            choice = choose(self._content, operator, where, among)
            if self.dispatch == MEASURE and not choice.measured and self.measure(operator, where):
                choice = choose(self._content, operator, where, among)
            choice = replace(choice, loading=self._load)
            self._choices[operator, target, among] = choice
        self.served[choice.how] += 1
        return choice

    def measure(self, operator: Operator, target: str | Target | None = None) -> bool:
        """Time the most promising kernels at a shape alongside the baselines, and store the times.

        This includes kernels generated for the shape; the fastest becomes an entry if it is faster than all others.
        False if the library has no kernel for this operator that runs here, or if a busy machine would distort the
        times. Kernels that fail or are wrong are not used.
        """
        from deepgen.libraries.first_use import time_chosen

        where = target if isinstance(target, Target) else targets.resolve(target)
        raced = time_chosen(self, choose(self._content, operator, where))
        if raced is None or raced.noisy is not None:
            return False
        self._measured[raced.times.name] = raced.times
        try:
            with self._store.changing(wait=0.0):
                if raced.fastest is not None and self._became(raced.fastest[0], self._store.read()) != KEPT:
                    self._store.write(*raced.fastest)
                self._store.write_times(raced.times)
        except (OSError, DeepgenError):  # read-only, or being changed by another process: this one keeps the times
            pass
        self.reload()
        return True

    def why(self, operator: Operator, target: str | Target | None = None) -> str:
        """The choice in words."""
        choice = self.choose(operator, target)
        chosen = choice.entry.name if choice.entry is not None else choice.vendor or "nothing"
        return f"{operator.describe()} on {choice.target.name}: {chosen}; {choice.reason}"

    def load(self, entry: Entry) -> Loaded:
        """The kernel of an entry, after its binary was checked."""
        targets.device_for(entry.target)  # raises if there is no such device
        stored = self._store.stored(entry, trusted=self.trusted)
        return load(stored.kernel, entry.operator, entry.target, stored.binary, stored.plan)

    def path_of(self, entry: Entry) -> Path:
        return self.folder / ENTRIES / entry.name

    @property
    def store(self) -> LibraryStore:
        return self._store

    def reload(self) -> None:
        """Read the folder again."""
        content = self._store.read()
        existing = {times.name for times in content.times}
        more = (times for name, times in self._measured.items() if name not in existing)
        self._content = replace(content, times=(*content.times, *more))
        self._choices.clear()

    def __repr__(self) -> str:
        served = ", ".join(f"{count} {how}" for how, count in self.served.items()) or "no requests yet"
        held = counted(len(self._content.entries), "kernel")
        damaged = f", {counted(len(self._content.damaged), 'damaged file')}" if self._content.damaged else ""
        return f"<deepgen library {self.folder}: {held}{damaged}; {served}>"

    def _load(self, chosen: Choice) -> Called:
        if chosen.entry is not None:
            key = (chosen.entry.name, chosen.entry.operator)
            if key not in self._loaded:
                self._loaded[key] = self.load(chosen.entry)
            return self._loaded[key]
        assert chosen.vendor is not None, "where nothing is usable, `load` of the choice has already raised"
        text = f"{chosen.vendor} is used for {chosen.operator.describe()}: {chosen.reason}"
        warnings.warn(text, VendorFallback, stacklevel=3)
        return VendorKernel(chosen.vendor, chosen.operator, chosen.target)

    @staticmethod
    def _became(entry: Entry, content: LibraryContent) -> str:
        existing = content.entries.get(entry.name)
        if existing is None:
            return ADDED
        return REPLACED if entry.seconds < existing.seconds else KEPT

    def _all_damaged(self) -> dict[str, str]:
        """All damage, including changed binaries, which are only detected by reading every binary."""
        out = dict(self._content.damaged)
        for name, entry in self._content.entries.items():
            try:
                self._store.stored(entry, trusted=True)
            except DeepgenError as error:
                out[name] = str(error)
        return out

    def _dominated(self) -> tuple[Pruned, ...]:
        """Entries for whose every shape another kernel of the library is as fast, when timed side by side."""
        gone: dict[str, Pruned] = {}
        for entry in self._content.entries.values():
            rows = {t.operator.slug(): t for t in self._content.times if entry.kernel_id in t.kernels}
            for other in self._content.entries.values():
                if other is entry or other.name in gone or any(t.operator.slug() not in rows for t in entry.timed):
                    continue
                pairs = [(rows[t.operator.slug()].kernels, t) for t in entry.timed]
                if all(
                    other.kernel_id in kernels and kernels[other.kernel_id] <= _AS_FAST * kernels[entry.kernel_id]
                    for kernels, _ in pairs
                ):
                    gone[entry.name] = Pruned(entry.name, f"{other.name} is as fast at its shape")
                    break
        return tuple(gone.values())


def library(folder: str | Path, *, create: bool = False, trust: bool = False, dispatch: str = PREDICT) -> Library:
    """The library in a folder, which must be there: a wrong name must not look like a library without kernels. With
    `create` it may not exist yet: its folder is made when the first winner is added.

    `trust` allows binaries that were not written by this user's deepgen. `dispatch` says how a kernel is chosen for a
    shape that was never tuned: "predict" from the tuned shapes, or "measure" on first use, together with kernels that
    are generated for it.
    """
    if not create and not Path(folder).is_dir():
        raise BadInput(f"there is no library '{folder}'", allowed="dg.library(path, create=True) creates one")
    return Library(folder, trust=trust, dispatch=dispatch)
