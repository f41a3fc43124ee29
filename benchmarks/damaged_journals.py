"""Journals with random damage: nothing crashes, nothing wrong is told, and every undamaged trial is kept.

Each journal is a copy of one study with random damage to its file: bits flipped, pages zeroed or swapped, the end cut
off, or the write-ahead log of a killed run damaged. It is then read, inspected as by `deepgen status`, and resumed.

    python benchmarks/damaged_journals.py [--count 500] [--seed 0] [--json FILE]
"""

from __future__ import annotations

import random
import shutil
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import deepgen as dg
from deepgen.tuning.study.glance import glance
from deepgen.tuning.study.journal import FILE, Journal
from deepgen.tuning.study.pages import PAGE
from deepgen.vocabulary import DeepgenError, Trial
from harness import parser, run_main, save, table

LOG = f"{FILE}-wal"
TRIALS = 60


@dataclass(frozen=True)
class Original:
    """A study before it is damaged: its trials, and the bytes of each row."""

    folder: Path
    trials: Mapping[int, Trial]
    rows: Mapping[int, bytes]
    engine: dg.LocalEngine


def original(out: Path) -> Original:
    """A study of some trials, stopped before its finals; the last trials are still in the write-ahead log."""
    engine = dg.LocalEngine(jobs=2, cache=out / "cache")
    study = tuned(out / "study", engine, TRIALS)
    with Journal(study.folder, write=True) as journal:
        for number in range(20):
            journal.note(f"note {number}")
        copy = shutil.copytree(study.folder, out / "original" / study.folder.name)  # as a killed process leaves it
    with Journal(copy) as journal:
        trials = {trial.id: trial for trial in journal.trials()}
        rows = {row[0]: _cell(row) for row in journal._table("trials")}
    return Original(copy, trials, rows, engine)


def _cell(row: tuple[Any, ...]) -> bytes:
    """A row in SQLite's encoding: lengths and types, then the values. All rows here fit into a page."""
    kinds, values = b"\0", b""  # the number is not a column: it precedes them
    for value in row[1:]:
        data = value.encode() if isinstance(value, str) else struct.pack(">d", value) if type(value) is float else value
        kind = 0 if value is None else 7 if type(value) is float else 2 * len(data) + (13 if type(value) is str else 12)
        kinds, values = kinds + _varint(kind), values + (data or b"")
    record = _varint(len(kinds) + 1) + kinds + values
    return _varint(len(record)) + _varint(row[0]) + record


def _varint(number: int) -> bytes:
    parts = [number & 127]
    while number := number >> 7:
        parts.append(number & 127 | 128)
    return bytes(reversed(parts))


def tuned(out: Path, engine: dg.LocalEngine, trials: int) -> dg.Study:
    """The study, started or resumed."""
    return dg.tune(dg.gemm(64, 64, 64), target="sim:noise=0.01,faults=0.1", trials=trials, out=out, engine=engine)


# Ways to damage a file


def flip_one(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def flip_some(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(2, 50)):
        flip_one(data, rng)


def zero_page(data: bytearray, rng: random.Random) -> None:
    at = PAGE * rng.randrange(len(data) // PAGE)
    data[at : at + PAGE] = bytes(PAGE)


def swap_pages(data: bytearray, rng: random.Random) -> None:
    one, other = (slice(PAGE * n, PAGE * (n + 1)) for n in rng.sample(range(len(data) // PAGE), 2))
    data[one], data[other] = data[other], data[one]


def cut_off(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


Harm = Callable[[bytearray, random.Random], None]
HARMS: Mapping[str, tuple[str, Harm]] = {
    "one bit": (FILE, flip_one), "2 to 50 bits": (FILE, flip_some), "a zeroed page": (FILE, zero_page),
    "two pages swapped": (FILE, swap_pages), "the end cut off": (FILE, cut_off), "log: one bit": (LOG, flip_one),
    "log: 2 to 50 bits": (LOG, flip_some), "log: the end cut off": (LOG, cut_off),
}  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """The result for one damaged journal."""

    harm: str
    named: bool  # whether damage was reported
    kept: int  # trials
    faults: tuple[str, ...]


def one(original: Original, scratch: Path, harm: str, seed: int, *, go_on: bool = False) -> Seen:
    """Damage a copy, read it, glance at it, and open it for writing; `go_on` also tunes it to its end."""
    rng = random.Random(seed)
    folder = scratch / original.folder.name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original.folder, folder)
    name, damage = HARMS[harm]
    data = bytearray((folder / name).read_bytes())
    damage(data, rng)
    (folder / name).write_bytes(data)
    left = data + (folder / (LOG if name == FILE else FILE)).read_bytes()
    undamaged = {number for number, row in original.rows.items() if row in left and number in original.trials}
    faults: list[str] = []
    named, kept = False, 0
    for write in (False, True):
        try:
            with Journal(folder, write=write) as journal:
                results = {trial.id: trial for trial in journal.trials()}
                journal.check()
                named, kept = bool(journal.damage) or named, len(results)
            if not write and (folder / name).read_bytes() != data:
                faults.append("a reader wrote")
            faults += [f"trial {i} is told otherwise" for i, t in results.items() if t != original.trials[i]]
            faults += [f"trial {i} is lost" for i in sorted(undamaged - results.keys())]
            faults += _glanced(folder, original)
        except DeepgenError as error:
            if undamaged:
                faults.append(f"refused: {error}")
        except Exception as error:  # what this test looks for
            faults.append(f"{type(error).__name__}: {error}")
    if go_on and not faults:
        faults += _gone_on(folder, original)
    return Seen(harm, named, kept, tuple(faults))


def _glanced(folder: Path, original: Original) -> list[str]:
    """Report a time that was never measured."""
    best = glance(folder).get("best")
    times = {trial.seconds for trial in original.trials.values()}
    finals = dg.Study.open(original.folder).finals()
    times |= {row.seconds for row in (finals.finalists if finals is not None else ())}
    return [f"a time of {best['seconds']} s"] if isinstance(best, dict) and best["seconds"] not in times else []


def _gone_on(folder: Path, original: Original) -> list[str]:
    """The same study, tuned to its end once more: its folder is named after what is tuned."""
    try:
        study = tuned(folder.parent, original.engine, TRIALS)
    except DeepgenError as error:
        return [f"going on: {error}"]
    except Exception as error:  # what this test looks for
        return [f"going on: {type(error).__name__}: {error}"]
    trials = study.trials()
    faults = (
        [] if study.folder == folder and len(trials) == TRIALS else [f"{len(trials)} trials in {study.folder.name}"]
    )
    return faults + ([] if study.finals() else ["no finals"])


def run(count: int, seed: int, gone_on: int = 10) -> list[Seen]:
    """One in `gone_on` journals is tuned to its end."""
    with tempfile.TemporaryDirectory() as folder:
        study = original(Path(folder))
        kinds = list(HARMS)
        return [
            one(study, Path(folder) / "damaged", kinds[n % len(kinds)], seed + n, go_on=n % gone_on == 0)
            for n in range(count)
        ]


@dataclass(frozen=True)
class Row:
    """Journals with one kind of damage: how often it was reported, and how many trials were kept."""

    damage: str
    journals: int
    named: int
    kept_least: int
    kept_mean: float
    faults: Counter[str]


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--count", type=int, default=500)
    options = words.options()
    seen = run(options.count, options.seed)
    rows = []
    for harm in HARMS:
        own = [s for s in seen if s.harm == harm]
        if own:
            kept = [s.kept for s in own]
            faults = Counter(fault for s in own for fault in s.faults)
            rows.append(Row(harm, len(own), sum(s.named for s in own), min(kept), mean(kept), faults))
    heads = ("damage", "journals", "named", "least kept", "mean kept", "faults")
    print(table(heads, [(*astuple(row)[:5], sum(row.faults.values())) for row in rows]))
    for s in seen:
        for fault in s.faults:
            print(f"{s.harm}: {fault}")
    save(options.json, {"trials": TRIALS, "rows": rows})
    return int(any(s.faults for s in seen))


if __name__ == "__main__":
    run_main(main)
