"""State that grows with calls is reported, other state is not; and a library's exit handlers are counted."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from deepgen.run.call.plans import scalar
from deepgen.run.measure import endurance
from deepgen.run.measure.endurance import Held, at_once, exit_handlers, keeps_data, repeated
from deepgen.vocabulary import BadInput, ScalarArg

MIB = 1 << 20
CASES = {
    "nothing": ([Held(10, 4, 50 * MIB)] * 20, None),
    "a pool that starts late": ([Held(10, 4, 50 * MIB), *[Held(13, 8, 80 * MIB)] * 20], None),
    "a file for each call": ([Held(10 + 64 * n, 4, 50 * MIB) for n in range(20)], "leaks files: 64 more"),
    "a thread for each call": ([Held(10, 4 + 64 * n, 50 * MIB) for n in range(20)], "leaks threads"),
    "256 KiB for each call": (
        [Held(10, 4, (50 + 16 * n) * MIB) for n in range(20)],
        "leaks memory: 32,768 KiB",
    ),
    "256 KiB for each call, never touched": (
        [Held(10, 4, 50 * MIB, (900 + 16 * n) * MIB) for n in range(20)],
        "leaks address space: 32,768 KiB",
    ),
    "a file for every thirtieth call": ([Held(10 + 2 * n, 4, 50 * MIB) for n in range(20)], "leaks files: 8 more"),
    "files of a cache that fills": ([Held(10 + min(7, n), 4, 50 * MIB) for n in range(20)], None),
    "address space of a pool that starts late": (
        [Held(10, 4, 50 * MIB, 900 * MIB), *[Held(10, 8, 50 * MIB, 1200 * MIB)] * 20],
        None,
    ),
    "memory that is used once": ([Held(10, 4, 50 * MIB), *[Held(10, 4, 500 * MIB)] * 20], None),
}


@pytest.mark.parametrize("case", CASES)
def test_what_grows_with_calls_is_told(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, says = CASES[case]
    left = iter(counts)
    monkeypatch.setattr(endurance, "held", lambda: next(left))
    grown = repeated(lambda: None, most=64 * len(counts), seconds=100.0)
    assert grown is None if says is None else says in str(grown)


def test_the_first_thread_that_is_wrong_ends_them_all() -> None:
    calls: list[int] = []

    def wrong() -> str | None:
        calls.append(1)
        return "y[0] is 1" if len(calls) > 20 else None

    assert at_once([wrong, lambda: None], 0.5) == "y[0] is 1"
    assert at_once([lambda: None, lambda: None], 0.5) is None
    with pytest.raises(ZeroDivisionError):
        at_once([lambda: str(1 // 0)], 0.5)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_handlers_around_a_fork_are_none_of_the_end() -> None:
    library, disguised, mark = 0x7000, 0xD15, 4
    at_end, around_fork = [mark, disguised, 0, library + 8], [0, 0, library + 16, library + 8, mark]
    assert endurance._records([*at_end, 0], library, library + 64) == 1
    assert endurance._records([*around_fork, *around_fork], library, library + 64) == 0
    assert endurance._records(at_end, library + 64, library + 128) == 0


def test_exit_handlers_of_a_library_are_counted(tmp_path: Path) -> None:
    text = "#include <stdlib.h>\nstatic void bye(void) {}\nvoid go(void) { atexit(bye); }\n"
    (tmp_path / "handler.c").write_text(text)
    library = tmp_path.resolve() / "handler.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "handler.c"], check=True)
    script = (
        "import ctypes, sys\n"
        "from deepgen.run.measure.endurance import exit_handlers\n"
        "loaded = ctypes.CDLL(sys.argv[1]); before = exit_handlers(sys.argv[1]); loaded.go()\n"
        "print(before, exit_handlers(sys.argv[1]), exit_handlers('/nowhere'))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, library], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1", "0"]
    assert exit_handlers(str(library)) == 0


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("static float kept[99]; void run(float x) { kept[7] = x; }", "each call changes its static data"),
        ("static float table[99]; void run(float x) { (void)x; table[7] = 3; }", None),  # initialised by the first call
        ("void run(float x) { volatile float y = x; (void)y; }", None),
    ],
)
def test_static_data_that_calls_change_is_seen_without_any_overlap(
    tmp_path: Path, text: str, wrong: str | None
) -> None:
    library = str(tmp_path.resolve() / "kept.so")
    source = tmp_path / "kept.c"
    source.write_text(text)
    subprocess.run([shutil.which("cc") or "gcc", "-shared", "-fPIC", "-o", library, str(source)], check=True)
    run = ctypes.CDLL(library).run
    run.restype = None
    assert keeps_data(library, [partial(run, ctypes.c_float(x)) for x in (1.0, 2.0)]) == wrong
    assert keeps_data(library, [lambda: "y[0] is 1"]) == "y[0] is 1"


def test_a_number_that_an_integer_does_not_hold_is_refused() -> None:
    assert scalar(ScalarArg("i32", "4 * n"), {"n": 7}).value == 28
    assert scalar(ScalarArg("i64", "4 * n"), {"n": 1 << 30}).value == 1 << 32
    with pytest.raises(BadInput, match=r"4 \* n is 4294967296"):
        scalar(ScalarArg("i32", "4 * n"), {"n": 1 << 30})
