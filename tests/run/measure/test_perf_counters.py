"""Counting on CPUs: real software events of kernels with threads, and hardware events of a simulated system."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulty_kernels import TARGET, build, kernel

from deepgen.operators import gemm
from deepgen.run import counters
from deepgen.run.counters import Counted, perf
from deepgen.run.counters.perf import Event, NoEvent, find
from deepgen.run.measure.base import Task
from deepgen.run.measure.supervisor import Supervisor
from deepgen.vocabulary import BadInput, Measurement, Verdict

PAGES = 200
_TOUCH = f"""
#include <sys/mman.h>
static void touch(void) {{
    long page = sysconf(_SC_PAGESIZE);
    volatile char *p = mmap(0, {PAGES} * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long i = 0; i < {PAGES}; i++) p[i * page] = 1;
    munmap((void *)p, {PAGES} * page);
}}
static void *once(void *unused) {{ touch(); return 0; }}
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int wanted, done;
static void *forever(void *unused) {{
    pthread_mutex_lock(&lock);
    for (;;) {{
        while (done == wanted) pthread_cond_wait(&changed, &lock);
        touch();
        done++;
        pthread_cond_broadcast(&changed);
    }}
}}
static void in_the_pool(void) {{
    static pthread_t pool;
    if (!pool) pthread_create(&pool, 0, forever, 0);
    pthread_mutex_lock(&lock);
    wanted++;
    pthread_cond_broadcast(&changed);
    while (done != wanted) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}}
"""
_RIGHT = "multiply(A, B, C, M, N, K);"


@pytest.fixture(scope="module")
def runner() -> Iterator[Supervisor]:
    made = Supervisor(Task(gemm(37, 29, 23), TARGET))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        ("", 0),
        ("touch();", PAGES),
        ("pthread_t t; pthread_create(&t, 0, once, 0); pthread_join(t, 0);", PAGES),
        ("in_the_pool();", PAGES),
    ],
    ids=["nothing", "caller", "thread of its own", "thread of an earlier call"],
)
def test_what_a_kernel_and_its_threads_do_is_counted(runner: Supervisor, body: str, faults: int) -> None:
    made = kernel(_RIGHT + body, before=_TOUCH)
    counted = runner.count(made, build(made), ["page-faults", "task-clock", "no-such-event"])
    if "page-faults" in counted.missing:
        pytest.skip(counted.missing["page-faults"])
    assert faults <= counted.values["page-faults"] < faults + PAGES / 2
    assert counted.values["task-clock"] > 0
    assert counted.missing == {"no-such-event": "no such event; `perf list` shows the names"}
    assert runner.measure(made, build(made)).ok, "the worker goes on"


def test_a_kernel_that_crashes_while_it_is_counted_has_no_counters(runner: Supervisor) -> None:
    made = kernel(_RIGHT + "if (calls > 1) *(volatile int *)16 = 1;")
    counted = runner.count(made, build(made), ["task-clock"])
    assert not counted.values
    assert "crashed" in counted.missing["task-clock"]


class Made:
    """A system with this many hardware counters; each run lasts 1000 ns and adds 10 times an event's number."""

    def __init__(self, counters: int, refuse: Callable[[int, int], int | None] = lambda kind, config: None) -> None:
        self.counters, self.refuse = counters, refuse
        self.files: dict[int, list[int]] = {}
        self.most = self.runs = self.opened = 0

    def threads(self) -> list[int]:
        return [1, 2]

    def open(self, attribute: bytes, thread: int) -> int:
        kind, size, config = struct.unpack_from("=IIQ", attribute)
        assert size == len(attribute)
        if (code := self.refuse(kind, config)) is not None:
            raise OSError(code, "refused")
        self.opened += 1
        self.files[self.opened] = [config, 0, 0, 0]
        self.most = max(self.most, len(self.files))
        return self.opened

    def enable(self) -> None:
        self.runs += 1

    def disable(self) -> None:
        share = min(1.0, 2 * self.counters / len(self.files))
        for row in self.files.values():
            row[1] += int(10 * row[0] * share)
            row[2] += 1000
            row[3] += int(1000 * share)

    def read(self, file: int) -> bytes:
        return struct.pack("=QQQ", *self.files[file][1:])

    def close(self, file: int) -> None:
        del self.files[file]


def counted(system: Made, *events: str) -> Counted:
    def run(begin: Callable[[], object], end: Callable[[], object]) -> None:
        begin()
        end()

    return perf.count(events, run, system)


def test_both_threads_count_and_no_file_stays_open() -> None:
    system = Made(counters=4)
    found = counted(system, "instructions", "branch-misses")
    assert found == Counted({"instructions": 20.0, "branch-misses": 100.0})
    assert not system.files


def test_events_that_do_not_fit_are_counted_in_several_runs() -> None:
    events = ["instructions", "cache-references", "cache-misses", "branches", "branch-misses", "r20"]
    few = Made(counters=2)
    found = counted(few, *events)
    assert not found.scaled
    assert found.values == counted(Made(counters=8), *events).values
    assert list(found.values) == events
    assert few.most <= 2 * perf.AT_ONCE


def test_an_event_that_shares_its_counter_with_others_is_scaled_and_told() -> None:
    class Shared(Made):
        def disable(self) -> None:
            for row in self.files.values():
                row[1], row[2], row[3] = row[1] + 5 * row[0], row[2] + 1000, row[3] + 500

    found = counted(Shared(4), "instructions", "branches")
    assert found.values == {"instructions": 20.0, "branches": 80.0}
    assert set(found.scaled) == {"instructions", "branches"}


def test_an_event_that_never_got_a_counter_is_missing_and_not_zero() -> None:
    class Taken(Made):
        def disable(self) -> None:
            for row in self.files.values():
                row[2] += 1000

    found = counted(Taken(4), "cycles", "branches")
    assert not found.values and not found.scaled
    assert set(found.missing.values()) == {"no hardware counter was free for it"}


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.EACCES, "perf_event_paranoid"),
        (errno.ENOENT, "virtual machines often have none"),
        (errno.EINVAL, "for a single process"),
        (errno.ENOSYS, "no perf events"),
        (errno.EMFILE, os.strerror(errno.EMFILE)),
    ],
)
def test_what_the_system_refuses_is_missing_with_the_reason(code: int, says: str) -> None:
    system = Made(4, lambda kind, config: code if (kind, config) == (0, 3) else None)
    found = counted(system, "instructions", "cache-misses")
    assert found.values == {"instructions": 20.0}
    assert says in found.missing["cache-misses"]


def test_names_are_those_of_perf(tmp_path: Path) -> None:
    assert find("cycles") == Event("cycles", 0, 0)
    assert find("L1-dcache-load-misses:u") == Event("L1-dcache-load-misses:u", 3, 0x10000)
    assert find("LLC-stores").config == 2 | 1 << 8
    assert find("r1b0") == Event("r1b0", 4, 0x1B0)
    assert find("context-switches").in_the_system and not find("page-faults").in_the_system
    device = tmp_path / "armv8_pmuv3_0"
    for folder in ("events", "format"):
        (device / folder).mkdir(parents=True)
    (device / "type").write_text("10\n")
    (device / "events" / "l2d_cache_refill").write_text("event=0x17\n")
    (device / "format" / "event").write_text("config:0-7,32-35\n")
    (device / "format" / "threshold").write_text("config1:0-3\n")
    assert find("l2d_cache_refill", tmp_path) == Event("l2d_cache_refill", 10, 0x17)
    name = "armv8_pmuv3_0/event=0x117,threshold=3/"
    assert find(name, tmp_path) == Event(name, 10, 0x17 | 1 << 32, 3)
    for wrong, says in (
        ("armv8_pmuv3_0/nothing/", "lists no event"),
        ("armv8_pmuv3_0/umask=1/", "no field"),
        ("armv8_pmuv3_0/event=x/", "needs a number"),
        ("armv8_pmuv3_0/threshold=16/", "too large"),
        ("gpu/l2d_cache_refill/", "there is no PMU"),
        ("cylces", "perf list"),
    ):
        with pytest.raises(NoEvent, match=says):
            find(wrong, tmp_path)


def test_what_a_user_asks_for_is_split_and_checked() -> None:
    assert counters.requested("cycles, cpu/event=0x3c,umask=0x1/,cycles") == ("cycles", "cpu/event=0x3c,umask=0x1/")
    assert counters.requested(None) == ()
    assert set(counters.MIX_NAMES) < set(counters.events_of(("default",), TARGET))
    assert counters.events_of(("mix", "r11"), TARGET) == (*counters.MIX_NAMES, "r11")
    for wrong in ("", "--import=x", "a b", [], ["cycles", 3], {"cycles"}):
        with pytest.raises(BadInput, match="counters"):
            counters.requested(wrong)  # type: ignore[arg-type]


def test_a_measurement_keeps_counters_and_reasons_beside_those_it_had() -> None:
    measured = Measurement(Verdict.CORRECT, samples=(1.0,), conditions={"cold": True})
    first = Counted({"cycles": 5.0}, {"r11": "no counter", "r12": "no counter"}, ("cycles",)).kept_in(measured)
    assert first.conditions == {"cold": True, "not_counted": {"no counter": ["r11", "r12"]}, "scaled": ["cycles"]}
    again = Counted({"cycles": 6.0, "r11": 7.0}).kept_in(first)
    assert again.counters == {"cycles": 6.0, "r11": 7.0}
    assert again.conditions == {"cold": True, "not_counted": {"no counter": ["r12"]}}
    assert Measurement.from_json(again.to_json()) == again
