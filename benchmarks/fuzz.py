"""Files that somebody changed on purpose or by accident, given to everything that reads files from outside.

    python benchmarks/fuzz.py [--count 5000] [--seed 0] [--jobs 1] [--kinds ...] [--json benchmarks/results/fuzz.json]

Each kind of file is read by a separate process, in separate folders. What counts: errors for which the command line has
no sentence (tracebacks), cases that took more than 60 s, anything written outside the case's folder or run as a
program, signals, control characters in the output, and the peak memory of the process while it read. The user's key and
the build cache may be written.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fuzz_kinds import KINDS, spoken
from harness import parser, run_main, save

_FORK = multiprocessing.get_context("fork")
SECONDS = 60  # of CPU time for one case
MEGABYTES = 300  # limit for a process that reads one kind
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = ("os.mkdir", "os.rename", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown")
_PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.kill", "socket.connect",
             "ctypes.dlopen"}  # fmt: skip


class Hung(BaseException):
    """A case that takes too long. Not an Exception, so that no reader catches it."""


class Watch:
    """Hears of every file that is written and every program that is started in this process, while it is active."""

    def __init__(self) -> None:
        self.inside: tuple[str, ...] = ()
        self.heard: list[str] = []
        self._on = False
        sys.addaudithook(self._hear)

    @contextmanager
    def over(self, *inside: Path) -> Iterator[None]:
        self.inside, self._on = tuple(f"{folder}/" for folder in inside), True
        try:
            yield
        finally:
            self._on = False

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._on:
            return
        if event in _PROGRAMS and args[0] is not None:  # dlopen of None is this program itself
            self.heard.append(f"{event} {args[:2]!r:.200}")
        elif event in _CHANGES or (event == "open" and args[2] & _WRITES):
            path = args[1] if event in ("os.rename", "os.link", "os.symlink") else args[0]
            if isinstance(path, (str, bytes, os.PathLike)):
                place = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 (a link is not to be followed)
                if not f"{place}/".startswith(self.inside) and place != os.devnull:
                    self.heard.append(f"{event} {place}")


def child(kind: str, count: int, seed: int, home: Path) -> dict[str, Any]:
    """All cases of one kind, in this process."""
    shared, case, temporary = home / "shared", home / "case", home / "tmp"
    shared.mkdir()
    os.chdir(home / "cwd")
    prepared = KINDS[kind].prepare(shared)
    reader = home / "reader"
    reader.mkdir()
    os.environ["XDG_CONFIG_HOME"] = str(reader)  # the prepared files belong to another user
    sys.dont_write_bytecode = True  # a module's first import would write outside the case's folder
    watch = Watch()
    with suppress(OSError):  # preparing may tune, which measures the machine with arrays larger than its caches
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current usage
    for alarm in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(alarm, _hang)
    problems: list[dict[str, Any]] = []
    refused = 0
    before = _listing(home)
    for number in range(count):
        shutil.rmtree(case, ignore_errors=True)
        case.mkdir()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(3 * SECONDS)  # for a case that waits
        try:
            with watch.over(case, temporary, reader, home / "cache"):
                KINDS[kind].attempt(prepared, case, random.Random(f"{seed} {kind} {number}"))
        except Hung:
            problems.append({"case": number, "what": "hung"})
        except Exception as error:
            refused += 1
            if not spoken(error):
                summary = traceback.format_exception(error)
                problems.append({"case": number, "what": "traceback", "error": "".join(summary)[-1500:]})
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
        problems += [{"case": number, "what": "outside", "error": heard} for heard in watch.heard]
        watch.heard.clear()
        for left in temporary.iterdir():
            problems.append({"case": number, "what": "outside", "error": f"left in the temporary folder: {left.name}"})
            shutil.rmtree(left, ignore_errors=True)
    changed = sorted(_listing(home) ^ before)
    problems += [{"case": None, "what": "outside", "error": str(entry)} for entry in changed[:20]]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return {"kind": kind, "cases": count, "refused": refused, "megabytes": peak, "problems": problems}


def _hang(number: int, frame: object) -> None:
    raise Hung


def _listing(home: Path) -> set[tuple[str, int, int]]:
    """Every file that a case must leave unchanged."""
    ours = (home / "case", home / "reader", home / "cache")
    files = [path for path in home.rglob("*") if not any(folder in (path, *path.parents) for folder in ours)]
    return {(str(path), path.lstat().st_size, path.lstat().st_mtime_ns) for path in files if not path.is_dir()}


def fuzz(count: int, seed: int, kinds: Sequence[str], jobs: int = 1) -> list[dict[str, Any]]:
    """`count` cases in total, divided among the kinds; `jobs` kinds run concurrently."""

    def one(place: int) -> dict[str, Any]:
        kind, own = kinds[place], count // len(kinds) + (place < count % len(kinds))
        with tempfile.TemporaryDirectory(prefix="deepgen-fuzz-") as folder:
            home = Path(folder).resolve()
            for name in ("cwd", "tmp", "config", "cache", "data"):
                (home / name).mkdir()
            env = {**os.environ, "HOME": str(home), "TMPDIR": str(home / "tmp"), "COLUMNS": "80"}
            env |= {f"XDG_{name.upper()}_HOME": str(home / name) for name in ("config", "cache", "data")}
            start = time.perf_counter()
            reading, writing = _FORK.Pipe(duplex=False)
            reader = _FORK.Process(target=_forked, args=(writing, env, kind, own, seed, home))
            reader.start()
            writing.close()
            try:
                row = reading.recv()
            except EOFError:
                row = None
            reader.join()
            row = row or _died(kind, own, reader.exitcode)
            return {**row, "seconds": round(time.perf_counter() - start, 1)}

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, range(len(kinds))))


def _forked(answer: Connection, env: dict[str, str], kind: str, count: int, seed: int, home: Path) -> None:
    """A separate process that has already imported everything, since imports take longer than a few cases."""
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    answer.send(child(kind, count, seed, home))


def _died(kind: str, count: int, code: int | None) -> dict[str, Any]:
    problem = {"case": None, "what": "died", "error": f"the process ended with code {code}"}
    return {"kind": kind, "cases": count, "refused": 0, "megabytes": 0, "problems": [problem]}


def bad(row: dict[str, Any]) -> bool:
    return bool(row["problems"]) or row["megabytes"] >= MEGABYTES


def _print(rows: Sequence[dict[str, Any]]) -> None:
    table = Table("kind", *("cases", "refused", "tracebacks", "hung", "outside", "MB", "s"))
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        results = [problem["what"] for problem in row["problems"]]
        counts = (
            row["cases"],
            row["refused"],
            results.count("traceback") + results.count("died"),
            results.count("hung"),
        )
        cells = (*counts, results.count("outside"), row["megabytes"], row["seconds"])
        table.add_row(row["kind"], *map(str, cells))
    Console().print(table)
    for row in rows:
        for problem in row["problems"][:10]:
            print(f"{row['kind']}, case {problem['case']}: {problem['what']}: {problem.get('error', '')}")


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--count", type=int, default=5000, help="cases in all")
    words.add_argument("--jobs", type=int, default=1, help="kinds at a time")
    words.add_argument("--kinds", nargs="+", choices=[*KINDS], default=[*KINDS], metavar="KIND")
    options = words.options()
    rows = fuzz(options.count, options.seed, options.kinds, options.jobs)
    _print(rows)
    save(options.json, rows)
    return 1 if any(map(bad, rows)) else 0


if __name__ == "__main__":
    run_main(main)
