"""Everything that is known of a folder at one moment, and the look that finds out what has changed since."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deepgen.report.serve import looks, places
from deepgen.report.serve.looks import Seen
from deepgen.report.serve.places import Mark, Places, Runs


@dataclass(frozen=True)
class State:
    """Everything that is known at one moment. Rows are JSON texts by the ids that addresses use."""

    studies: Mapping[str, Seen] = field(default_factory=dict)
    runs: Mapping[str, str] = field(default_factory=dict)
    bundles: Mapping[str, str] = field(default_factory=dict)
    run_folders: Mapping[str, Path] = field(default_factory=dict)
    marks: Mapping[str, Mark] = field(default_factory=dict, compare=False)  # of runs and bundles, by their paths


def look(root: Path, runs: Runs, before: State, followed: frozenset[str]) -> State:
    """The state now; only what has changed is read. Where nothing has, one more study is looked at as a whole."""
    found = places.find(root, runs)
    studies = {
        id: _study(Seen(id, str(path.relative_to(found.top)), path), before, followed)
        for id, path in found.studies.items()
    }
    idle = all(before.studies.get(name) == seen for name, seen in studies.items())
    unchecked = [seen for seen in studies.values() if not (seen.checked or seen.running or places.is_fresh(seen.mark))]
    if idle and unchecked:
        seen = unchecked[0]
        studies[seen.id] = looks.look(seen, seen.mark, whole=True, follow=seen.followed)
    marks = _marks(found, runs)
    return State(
        studies,
        _others(found.runs, before.runs, before.marks, marks, lambda path, n: looks.run_row(path, n, runs.row)),
        _others(found.bundles, before.bundles, before.marks, marks, looks.bundle_row),
        found.runs,
        marks,
    )


def _study(new: Seen, before: State, followed: frozenset[str]) -> Seen:
    known = before.studies.get(new.id, new)
    mark = places.study_mark(new.folder)  # before it is read: what is written meanwhile is read next time
    follow = new.id in followed
    if (follow and not known.followed) or places.changed(known.mark, mark):
        # Damage that is known must not be forgotten for a moment; a study that runs was not checked.
        return looks.look(known, mark, whole=known.checked, follow=follow)
    return known


def _marks(found: Places, runs: Runs) -> dict[str, Mark]:
    return {
        **{str(path): runs.mark(path) for path in found.runs.values()},
        **{str(path): places.file_mark(path) for path in found.bundles.values()},
    }


def _others(
    found: Mapping[str, Path],
    rows: Mapping[str, str],
    before: Mapping[str, Mark],
    now: Mapping[str, Mark],
    read: Callable[[Path, str], str | None],
) -> dict[str, str]:
    out = {}
    for name, path in found.items():
        same = name in rows and not places.changed(before.get(str(path)), now[str(path)])
        row = rows[name] if same else read(path, name)
        if row is not None:
            out[name] = row
    return out
