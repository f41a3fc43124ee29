"""Emits some 3,900 kernels of all families and compares each with the committed lists in `expected`.

    python tests/emissions/replay.py                    compare; exits with 1 and the first differences if any
    python tests/emissions/replay.py --only rules       one family
    python tests/emissions/replay.py --show NAME        print one emission, to compare two checkouts
    python tests/emissions/replay.py --update           rewrite the lists: only if kernels are meant to change

A refactoring leaves every hash unchanged. A family's list has, for each operator and target, a hash of the space's
definition, and a line for each config with the hash of its kernel, which covers everything in it: name, language,
sources with their names, flags and launch plan. The default config has its own hash; a drawn config is given by the
index of each knob's value among the knob's values. So changes of spaces, of defaults and of kernels can be
distinguished.

A rename is an entry in `renames.json`, and the list stays unchanged:

    "families":  {"old name": "new name"}       a family of generators; the list and the cases keep the old name
    "operators": {"old name": "new name"}       an operator of the cases
    "texts": [{"old": "...", "new": "...", "why": "..."}]
                                                a word in kernels, spaces or configs: before hashing, the new one is
                                                replaced by the old one, where it is a whole word

With `--update` all three can be emptied, once the cases use the new names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]  # this checkout's own code, not an installed one

import emission_cases  # noqa: E402
from emission_cases import RENAMES, Case, Emission  # noqa: E402

LISTS = HERE / "expected"  # one file per family, so that changes to different families do not conflict
SPACE, DEFAULT = "space", "default"
_SHOWN = 20  # differences that are printed
_NO_CASE: Mapping[str, str] = {}


def hashed(value: object, length: int = 16) -> str:
    """The start of the SHA-256 of a value's canonical JSON, with old names in place of renamed ones."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    for rename in RENAMES["texts"]:
        text = rename["old"].join(re.split(rf"(?:(?<!\w)|(?<=\\n)){re.escape(rename['new'])}(?!\w)", text))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def line_of(emission: Emission) -> tuple[str, str]:
    """The line of one emission in the list: its config, and its hash."""
    place = emission.place
    return f"{place} {hashed(dict(emission.config), 8)}" if place == DEFAULT else place, hashed(emission.content)


def lines_of(case: Case, listed: Iterable[str] = ()) -> Mapping[str, str]:
    """The lines of a case, for the listed configs or for new ones; none if its family does not support it."""
    drawn = [line for line in listed if line != SPACE and not line.startswith(DEFAULT)]
    emitted = emission_cases.emissions(case, drawn)
    return _NO_CASE if emitted is None else {SPACE: hashed(emitted[0]), **dict(map(line_of, emitted[1]))}


@cache
def read() -> dict[str, dict[str, dict[str, str]]]:
    """The committed lists: hashes by family, case and config."""
    return {path.stem.replace("-", " "): json.loads(path.read_text()) for path in sorted(LISTS.glob("*.json"))}


def differences(case: Case, old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """The differences between the lines of a case, in words; `new` may be partial only if it has no space."""
    name = f"{case.family}: {case.name}"
    if old and not new:
        return [f"{name}: no longer served"]
    if new and not old:
        return [f"{name}: not in the list"]
    out = []
    if SPACE in new:
        if old[SPACE] != new[SPACE]:
            out.append(f"{name}: another space")
        out += [f"{name}: {line}: this config is gone" for line in old if line not in new]
    out += [f"{name}: {line}: this config is new" for line in new if line not in old]
    both = [line for line in new if line in old and line != SPACE]
    return out + [f"{name}: {line}: another kernel" for line in both if old[line] != new[line]]


def show(name: str) -> None:
    """Print one emission. Its name is as in a difference; without a config it is the default."""
    for case in emission_cases.cases():
        prefix = f"{case.family}: {case.name}"
        if name != prefix and not name.startswith(f"{prefix}: "):
            continue
        listed = read().get(case.family, {}).get(case.name, _NO_CASE)
        emitted = emission_cases.emissions(case, [line for line in listed if line.startswith("drawn ")])
        if emitted is None:
            sys.exit(f"{prefix} is refused")
        wanted = name[len(prefix) + 2 :] or DEFAULT
        for emission in emitted[1]:
            if wanted in (emission.place, line_of(emission)[0]):
                print(text_of(emission))
                return
        sys.exit(f"{prefix} has no {wanted!r}, but {', '.join(line_of(emission)[0] for emission in emitted[1])}")
    sys.exit(f"no case is named {name!r}; a name is FAMILY: OPERATOR on TARGET: CONFIG, as in a difference")


def text_of(emission: Emission) -> str:
    """Readable text, also for diff."""
    content = dict(emission.content)
    sources: list[Mapping[str, str]] = content.pop("sources")
    parts = [json.dumps({"config": dict(emission.config), **content}, indent=1)]
    parts += [f"===== {source['name']}\n{source['text']}" for source in sources]
    return "\n".join(parts)


def _timed(anew: bool, case: Case) -> tuple[Case, Mapping[str, str] | str, float]:
    """The lines of a case, or its error: one that fails must not hide differences in the others.

    `anew`: draw new configs if some no longer exist.
    """
    start = time.process_time()
    lines: Mapping[str, str] | str
    try:
        listed = read().get(case.family, {}).get(case.name, _NO_CASE)
        lines = lines_of(case, listed)
        if anew and any(line not in lines for line in listed):
            lines = lines_of(case)
    except Exception as error:
        lines = f"{type(error).__name__}: {error}"
    return case, lines, time.process_time() - start


def _run(cases: list[Case], jobs: int, anew: bool) -> Iterable[tuple[Case, Mapping[str, str] | str, float]]:
    if jobs == 1:
        yield from map(partial(_timed, anew), cases)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(partial(_timed, anew), cases, chunksize=8)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write the list anew")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", metavar="FAMILY", help="only this family")
    parser.add_argument("--show", metavar="NAME", help="print one emission")
    options = parser.parse_args()
    if options.show:
        show(options.show)
        return 0
    names = list(dict.fromkeys(case.family for case in emission_cases.cases()))
    if options.only not in (None, *names):
        parser.error(f"--only {options.only}: one of {', '.join(names)}")
    wanted = [case for case in emission_cases.cases() if options.only in (None, case.family)]
    left_out = {case: reason for case in wanted if (reason := emission_cases.lacks(case))}
    for reason in sorted(set(left_out.values())):
        print(f"{sum(one == reason for one in left_out.values())} cases are left out: {reason}")

    listed = read()
    emitted: dict[str, dict[str, Mapping[str, str]]] = {}
    seconds: dict[str, float] = {}
    differing: list[str] = []
    failed: list[str] = []
    for case, lines, took in _run([case for case in wanted if case not in left_out], options.jobs, options.update):
        seconds[case.family] = seconds.get(case.family, 0.0) + took
        if isinstance(lines, str):
            failed.append(f"{case.family}: {case.name}: {lines}")
            continue
        if lines:
            emitted.setdefault(case.family, {})[case.name] = lines
        differing += differences(case, listed.get(case.family, {}).get(case.name, _NO_CASE), lines)
    differing = failed + differing
    all_cases = {(case.family, case.name) for case in emission_cases.cases()}
    differing += [
        f"{family}: {name}: in the list, and no case"
        for family in listed if options.only in (None, family)
        for name in listed[family] if (family, name) not in all_cases
    ]  # fmt: skip
    for family, took in seconds.items():
        count, triples = _counted(emitted.get(family, {}))
        bad = sum(text.startswith(f"{family}: ") for text in differing)
        verdict = f"{bad} differences" if bad else "all as in the list"
        print(f"{family:24} {count:4} cases {triples:5} kernels {took:6.1f} s  {verdict}")
    count, triples = (sum(numbers) for numbers in zip(*map(_counted, emitted.values()), strict=True))
    print(
        f"{'all':24} {count:4} cases {triples:5} kernels {sum(seconds.values()):6.1f} s  {len(differing)} differences"
    )
    if options.update and not failed:
        _write(listed, emitted, [*left_out], options.only)
        return 0
    for text in differing[:_SHOWN]:
        print(text)
    if len(differing) > _SHOWN:
        print(f"and {len(differing) - _SHOWN} more")
    return 1 if differing else 0


def _counted(lines: Mapping[str, Mapping[str, str]]) -> tuple[int, int]:
    """The number of cases, and of kernels in them."""
    return len(lines), sum(len(one) - 1 for one in lines.values())


def _write(
    listed: Mapping[str, Any], emitted: Mapping[str, Mapping[str, Any]], left_out: list[Case], only: str | None
) -> None:
    """Write the lists; cases that were not emitted this time keep their lines."""
    kept = {} if only is None else {family: lines for family, lines in listed.items() if family != only}
    for case in left_out:
        if lines := listed.get(case.family, {}).get(case.name):
            kept.setdefault(case.family, {})[case.name] = lines
    names = {case.family for case in emission_cases.cases()}
    every = {family: lines for family, lines in {**kept, **emitted}.items() if family in names}
    for path in LISTS.glob("*.json"):
        path.unlink()
    for family, lines in every.items():
        (LISTS / f"{family.replace(' ', '-')}.json").write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
