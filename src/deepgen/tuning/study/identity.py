"""Kernel identity: a study is resumed only if its generator still emits the kernels that it measured."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import deepgen
from deepgen.compiler.family import Rules
from deepgen.generators import Families, Generator
from deepgen.tuning.request import Request, StudyPlan
from deepgen.tuning.search import Strategy
from deepgen.tuning.search.portfolio import Portfolio
from deepgen.tuning.study import trust
from deepgen.tuning.study.definition import is_own_kernel, signed_part
from deepgen.tuning.study.journal import Journal
from deepgen.vocabulary import BadInput, DeepgenError, Trial, digest, finding

COMPARED = 1000  # kernels emitted again at most: those of the best trials, and an even selection of the rest
_BEST = 64
_IGNORED = ("__pycache__",)


@contextmanager
def open_journal(request: Request, planned: StudyPlan) -> Iterator[tuple[StudyPlan, Journal]]:
    """The journal of a study, ready for writing; a new study's if the kernels or the judge have changed."""
    text = source_digest(planned.generator)
    with _journal(planned.folder) as journal:
        judged = [] if journal.empty else _judged_otherwise(planned, journal)
        if journal.empty or (not judged and _same(request, planned, journal, text)):
            if journal.empty and planned.anew:
                journal.note(f"{planned.anew}; starting a new study, which ignores the verdicts of the old one")
            _define(planned, journal, text)
            yield planned, journal
            return
    if judged:
        folder = planned.folder.with_name(f"{planned.folder.name}-{digest(planned.definition['judged_by'], 8)}")
        why = (
            f"{' and '.join(judged)} of {request.operator.describe()} changed since {planned.folder.name} was verified"
        )
        with open_journal(request, replace(planned, folder=folder, anew=why)) as opened:
            yield opened
        return
    folder = planned.folder.with_name(f"{planned.folder.name}-{text[:8]}")
    why = f"generator {planned.generator.name} no longer emits the kernels that {planned.folder.name} measured"
    after = replace(planned, folder=folder, after=planned.folder, anew=why)
    with _journal(after.folder) as journal:
        if not journal.empty and not _same(request, after, journal, text):
            raise DeepgenError(
                f"{after.folder}: generator {after.generator.name} is not deterministic: "
                "it emits different kernels in each process"
            )
        if journal.empty:
            journal.note(f"{why}; starting a new study, which learns from the old one")
        _define(after, journal, text)
        yield after, journal


def _judged_otherwise(planned: StudyPlan, journal: Journal) -> list[str]:
    """The parts of a user's operator that decide what is correct and have changed since the study was verified."""
    before = journal.definition().get("judged_by") if journal.defined else None  # damage may have removed it
    now = planned.definition.get("judged_by")
    if not isinstance(before, dict) or not isinstance(now, dict):
        return []  # a study of an earlier version of deepgen
    return [part for part in sorted({*before, *now}) if before.get(part) != now.get(part)]


@contextmanager
def _journal(folder: Path) -> Iterator[Journal]:
    """The journal in this folder. A new one is removed if its first run fails before its first ask."""
    created = [place for place in (folder, *folder.parents) if not place.exists()]
    with Journal(folder, write=True) as journal:
        try:
            yield journal
        except DeepgenError:
            with suppress(DeepgenError, OSError):
                if created and not journal.tally().asks:
                    journal.remove()
                    for place in created[1:]:
                        place.rmdir()
            raise


def _define(planned: StudyPlan, journal: Journal, text: str) -> None:
    journal.define(planned.definition)
    journal.keep_space(planned.space)
    journal.keep_digest(text)
    if planned.sources or is_own_kernel(planned.definition):
        finding.keep(planned.sources, planned.folder)
        if (signature := trust.sign(signed_part(journal.definition()))) is not None:
            journal.keep_signature(signature)


def _same(request: Request, planned: StudyPlan, journal: Journal, text: str) -> bool:
    """Whether today's kernels are the measured ones. If the generator's source is unchanged, no kernel is emitted."""
    if text and journal.digest() == text:
        return True
    try:
        return all(planned.emit(request, trial.config).id == trial.kernel_id for trial in _compared(journal))
    except BadInput:
        return False  # a value that the generator does not know


def _compared(journal: Journal) -> list[Trial]:
    """Trials with an emitted kernel; an even selection if there are many."""
    trials = [trial for trial in journal.trials() if trial.kernel_id]
    if len(trials) <= COMPARED:
        return trials
    step = len(trials) / (COMPARED - _BEST)
    return [*journal.best(_BEST), *(trials[int(i * step)] for i in range(COMPARED - _BEST))]


def source_digest(generator: Generator) -> str:
    """A digest of the source text that determines a generator's kernels."""
    if isinstance(generator, Families):
        texts = dict.fromkeys(source_digest(member) for member in generator.members.values())
        return "" if "" in texts else next(iter(texts)) if len(texts) == 1 else digest([*texts])
    module = sys.modules.get(type(generator).__module__)
    path = Path(getattr(module, "__file__", None) or "")
    ours = Path(deepgen.__file__).parent
    if ours in path.parents:
        # Families share headers and expressions: a change there counts, although most such changes affect no kernel.
        rooms = [_tree(ours / room) for room in ("kernels", "compiler")]
        others = [type(rule) for rule in generator.others()] if isinstance(generator, Rules) else []
        rooms += [_own_text(Path(getattr(sys.modules.get(one.__module__), "__file__", None) or "")) for one in others]
        return "" if "" in rooms else digest(rooms) + _tree(ours / "operators")[:16]
    return _own_text(path)


def strategy_digest(strategy: Strategy) -> str:
    """A digest of the source text that determines a strategy's proposals; empty if it is unknown."""
    if isinstance(strategy, Portfolio):
        strategy = next(iter(strategy.parts.values()))
    module = sys.modules.get(type(strategy).__module__)
    own = _own_text(Path(getattr(module, "__file__", None) or ""))
    ours = Path(deepgen.__file__).parent
    return own and digest([own, _tree(ours / "tuning" / "search"), _tree(ours / "space")])


def _own_text(path: Path) -> str:
    if not path.is_file():
        return ""  # from an interactive session: it cannot be compared
    package = path.parent if (path.parent / "__init__.py").is_file() else None
    return _tree(package) if package else hashlib.sha256(path.read_bytes()).hexdigest()


@lru_cache(maxsize=8)
def _tree(folder: Path) -> str:
    seen = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not set(_IGNORED) & set(path.parts):
            seen.update(f"{path.relative_to(folder).as_posix()}\0".encode())
            seen.update(hashlib.sha256(path.read_bytes()).digest())
    return seen.hexdigest()
