"""Endurance tests: many calls of a kernel, also from several threads, find faults that a short trial does not.

Each result is compared, and resources that may grow with the calls are counted: open files, threads, memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Most calls. A policy's `calls_seconds` limits them too, in CPU time of this thread, so that load matters less.
CALLS = 2000
FEWEST = 8
LANES, LANE_CALLS = 4, 2000  # concurrent threads; calls of each
_SWITCH_SECONDS = 2e-4  # how long another thread of Python keeps one waiting
_STATIC = 64 << 20  # bytes of a library's data that are compared
WORN_CALLS, WORN_SHARE = 1000, 0.25  # of each contender before it is timed in a race; share of `calls_seconds`
_PATIENCE = 4.0  # factor on the seconds for the limit in wall-clock time
_EVERY = 64  # calls between counts, and before the first
_FEW = 8  # files or threads that may be opened in the course of calls
_A_CALL = 8  # one more per this many calls is a leak
_STEADY = 4  # counts in a row that each find more: a slower leak
_LEAK, _LEAST_LEAK = 2 << 10, 2 << 20  # bytes per call, and in total
_RESERVED = 16 << 10  # bytes of address space per call, most of which is never touched
_ZEROS = 1 << 16  # bytes of zero-initialised memory of the C library; memory beyond may belong to others
_ON_EXIT = 4  # the C library's mark of an exit handler with an argument


@dataclass(frozen=True)
class Held:
    """The resources that this process holds now."""

    files: int
    threads: int
    memory: int
    reserved: int = 0  # address space


def held() -> Held:
    reserved, memory = (int(pages) * resource.getpagesize() for pages in _statm()[:2])
    files, threads = (len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task"))  # noqa: PTH208
    return Held(files, threads, memory, reserved)


def _statm() -> list[str]:
    return Path("/proc/self/statm").read_text().split()


@dataclass
class Growth:
    """Counts of resources between calls."""

    counts: list[Held] = field(default_factory=list)

    def count(self) -> str | None:
        """What has grown with the calls since the first count, in words."""
        self.counts.append(held())
        calls = _EVERY * (len(self.counts) - 1)
        for what in ("files", "threads"):
            grown, steps = self._grown(what)
            steady = len(steps) >= _STEADY and min(steps[-_STEADY:]) > 0
            if grown >= _FEW and (steady or grown >= calls // _A_CALL):
                return f"leaks {what}: {grown} more after {calls} calls"
        for what, least in (("memory", _LEAK), ("reserved", _RESERVED)):
            grown, steps = self._grown(what)
            if grown >= max(_LEAST_LEAK, least * calls) and len(steps) >= 2 and min(steps[-2:]) >= least * _EVERY // 2:
                kind = "memory" if what == "memory" else "address space"
                return f"leaks {kind}: {grown >> 10:,} KiB more after {calls} calls"
        return None

    def _grown(self, what: str) -> tuple[int, list[int]]:
        """The growth since the first count, and from each count to the next."""
        counts = [getattr(one, what) for one in self.counts]
        return counts[-1] - counts[0], [counts[i] - counts[i - 1] for i in range(1, len(counts))]


def repeated(call: Callable[[], object], seconds: float, most: int = CALLS) -> str | None:
    """Call it repeatedly. Returns which resource grows, in words; None if there is none."""
    growth = Growth()
    ends, latest = time.thread_time() + seconds, time.monotonic() + _PATIENCE * seconds
    for number in range(1, most + 1):
        call()
        if number % _EVERY == 0 and (grown := growth.count()) is not None:
            return grown
        if number >= FEWEST and (time.thread_time() > ends or time.monotonic() > latest):
            break
    return None


def keeps_data(library: str, calls: Sequence[Callable[[], str | None]]) -> str | None:
    """What is wrong if calls on different inputs change the library's static data, in words.

    Short calls of threads seldom overlap where cores are few or busy, so this is looked for by itself.
    """
    for call in (*calls, calls[0]):  # whatever the first calls initialise is not counted
        if (wrong := call()) is not None:
            return wrong
    seen = set()
    for call in calls:
        if (wrong := call()) is not None:
            return wrong
        seen.add(_static_data(library))
    return "each call changes its static data" if len(seen) > 1 else None


def _static_data(library: str) -> bytes:
    """A digest of a loaded library's writable data."""
    digest = hashlib.blake2b(digest_size=16)
    after = ""
    for low, high, rights, path in map(_mapped, Path("/proc/self/maps").read_text().splitlines()):
        own = path == library or (not path and after == library)  # the zero-initialised data follow
        if own and rights.startswith("rw"):
            digest.update((ctypes.c_char * min(high - low, _STATIC)).from_address(low))
        after = library if own else ""
    return digest.digest()


def at_once(lanes: Sequence[Callable[[], str | None]], seconds: float) -> str | None:
    """Call from separate threads, each as often as time allows. Returns the first error, in words."""
    wrong: list[str] = []
    errors: list[BaseException] = []
    start = threading.Barrier(len(lanes))
    latest = time.monotonic() + _PATIENCE * seconds

    def work(call: Callable[[], str | None]) -> None:
        try:
            start.wait()
            ends = time.thread_time() + seconds / len(lanes)
            for number in range(LANE_CALLS):
                if (what := call()) is not None:
                    wrong.append(what)
                late = time.thread_time() > ends or time.monotonic() > latest
                if wrong or errors or (number >= FEWEST and late):
                    return
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(lane,)) for lane in lanes]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)  # else a thread that is ready to call waits for 5 ms
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    if errors:
        raise errors[0]
    return wrong[0] if wrong else None


def exit_handlers(library: str) -> int:
    """The number of a loaded library's functions in the C library's first list of exit handlers.

    A record in that list is a mark, the mangled function pointer, its argument and an address in the registering
    library. Destructors of C++ have an argument; `atexit` has none.
    """
    places = [_mapped(line) for line in Path("/proc/self/maps").read_text().splitlines()]
    own = [(low, high) for low, high, _, path in places if path == library]
    if not own:
        return 0
    lowest, highest = min(own)[0], max(high for _, high in own)
    count = 0
    for place, (low, high, rights, path) in enumerate(places):
        if not rights.startswith("rw") or "/libc" not in path:
            continue
        after = places[place + 1] if place + 1 < len(places) else (0, 0, "", "")
        follows = after[0] == high and not after[3] and after[2].startswith("rw")  # the zero-initialised data
        end = min(after[1], high + _ZEROS) if follows else high
        words = (ctypes.c_uint64 * ((end - low) // 8)).from_address(low)
        count += _records(words, lowest, highest)
    return count


def _records(words: Sequence[int] | ctypes.Array[ctypes.c_uint64], lowest: int, highest: int) -> int:
    """Count the matching records. A mangled pointer is never zero, so a list of fork handlers does not match."""
    return sum(
        lowest <= words[i + 3] < highest and words[i + 2] == 0 and words[i + 1] != 0
        for i in range(len(words) - 3)
        if words[i] == _ON_EXIT
    )


def _mapped(line: str) -> tuple[int, int, str, str]:
    """One line of the process's memory map: start, end, access rights, file."""
    around, rights, _, _, _, *path = line.split(maxsplit=5)
    low, high = (int(end, 16) for end in around.split("-"))
    return low, high, rights, path[0] if path else ""
