"""Imports that commands with a quick answer must avoid: libraries that take longer to import than
the answer may take.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from deepgen.__main__ import start_ahead
from deepgen.run.measure import spawn

HEAVY = {"numpy", "scipy", "torch", "ray", "sklearn", "lightgbm", "ortools"}
TO_TUNE = {f"deepgen.{room}" for room in ("build", "runtime", "baselines", "engines", "search", "generators")}
BLAS = "OPENBLAS_NUM_THREADS"
THREADS = f"""
import os, sys
from deepgen.frontends.cli.main import main
main(["space", "gemm", "MNK=64", "--target", "sim", "--json"])
print(len(os.listdir("/proc/self/task")), os.environ.get("{BLAS}"), file=sys.stderr)
"""
LOADED = (
    "from deepgen.frontends.cli.main import main; code = main({!r})\n"
    "import sys; print(code, *sys.modules, file=sys.stderr)"
)


@pytest.fixture
def loaded(project: Path) -> Callable[..., set[str]]:
    """The modules that a command line imports in a fresh process."""

    def run(*argv: str) -> set[str]:
        program = [sys.executable, "-c", LOADED.format(argv)]
        done = subprocess.run(program, capture_output=True, text=True, check=True, cwd=project)
        code, *modules = done.stderr.split()
        assert code == "0", done.stderr
        return set(modules)

    return run


@pytest.fixture
def heavy() -> set[str]:
    """pydantic too, unless this version of typer parses every command line with it."""
    needed = metadata.requires("typer") or []
    return HEAVY if any(one.startswith("pydantic") for one in needed) else {*HEAVY, "pydantic"}


@pytest.mark.parametrize("argv", [["--version"], ["--help"]], ids=" ".join)
def test_what_is_said_without_a_study(loaded: Callable[..., set[str]], heavy: set[str], argv: list[str]) -> None:
    assert not loaded(*argv) & {*heavy, *TO_TUNE, "rich", "deepgen.operators", "deepgen.tuning"}


def test_reading_studies(deepgen: Callable, loaded: Callable[..., set[str]], heavy: set[str]) -> None:
    study = deepgen("tune", "gemm", "MNK=64", "--target", "sim", "t=3", "--json").json()["study"]
    assert not loaded("status") & {*heavy, *TO_TUNE, "rich"}
    assert not loaded("status", study) & {*heavy, *TO_TUNE, "rich"}
    assert not loaded("top", study) & {*heavy, *TO_TUNE}


def test_a_run_imports_nothing_that_makes_other_kernels(loaded: Callable[..., set[str]]) -> None:
    found = loaded("tune", "gemm", "MNK=64", "--target", "sim", "t=3", "--json")
    assert "deepgen.compiler.family" in found, "it is asked whether it serves"
    assert not found & {"deepgen.compiler.making", "deepgen_triton_cpu.lowering", "rich"}
    others = (
        "libraries",
        "tuning.bundles",
        "kernels.own",
        "run.measure.worker",
        "run.counters.profiler",
        "frontends.api",
    )
    assert not found & {f"deepgen.{room}" for room in others}


def test_a_look_at_this_machine(loaded: Callable[..., set[str]], heavy: set[str]) -> None:
    assert not loaded("doctor") & heavy


def test_a_worker_imports_what_measures_and_nothing_that_makes_kernels() -> None:
    """Many are started, each while a user waits."""
    program = "import sys; from deepgen.run.measure import worker; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    others = {
        "compiler",
        "generators",
        "frontends",
        "kernels",
        "libraries",
        "report",
        "toolchains",
        "tuning",
        "settings",
    }
    modules = set(done.stdout.split())
    assert "numpy" in modules
    assert not modules & {*HEAVY - {"numpy"}, "typer", "rich", *(f"deepgen.{room}" for room in others)}


def test_what_starts_a_worker_ahead_of_all_else_imports_nothing_large() -> None:
    program = "import sys; from deepgen.run.measure import spawn; import deepgen.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert not modules & {*HEAVY, "typer", "rich", "hashlib", "deepgen.operators", "deepgen.targets"}


ALL = len(os.sched_getaffinity(0))
STARTS = [
    (["tune", "gemm", "MNK=64", "--target", "cpu"], ALL, None),
    (["tune", "gemm", "--target=cuda:native"], ALL, "cuda"),
    (["tune", "gemm", "--threads", "3", "--target", "x86:avx2"], 3, None),
    (["resume", "a-study", "--target", "x86:avx2"], ALL, None),
]


@pytest.mark.parametrize(("argv", "threads", "meets"), STARTS)
def test_a_run_starts_its_worker_before_all_else(
    argv: list[str], threads: int, meets: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr("deepgen.run.measure.spawn.start_ahead", lambda *words: started.append(words))
    start_ahead(argv)
    assert started == [(threads, meets)]


@pytest.mark.parametrize(
    "words",
    [[], ["status"], ["tune", "--help"], ["tune", "gemm", "--target", "sim"], ["tune", "gemm", "--engine=ray"],
     ["tune", "gemm", "O=0"], ["tune", "gemm", "--detach"], ["resume", "a-study", "--target"]],
)  # fmt: skip
def test_other_commands_start_none(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepgen.run.measure.spawn.start_ahead", lambda threads, meets: pytest.fail("started"))
    start_ahead(words)


def test_nothing_is_opened_in_place_of_a_closed_stream() -> None:
    program = (
        "import os; os.close(0)\nfrom deepgen.__main__ import start_ahead\nfrom deepgen.run.measure import spawn\n"
        "start_ahead(['tune', 'gemm', 'MNK=64', '--target', 'cpu']); print(len(spawn._waiting))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_a_worker_that_was_started_ahead_is_taken_only_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn, "_waiting", [])
    spawn.start_ahead(2, None)
    [ahead] = spawn._waiting
    taken = spawn.take(2, None)
    assert taken is ahead
    spawn._waiting.append(taken)
    other = spawn.take(3, None)  # the number of threads is part of its environment
    assert other is not ahead and ahead.keeper.wait(60) == 0, "nobody has a use for it"
    other.end()
    assert other.keeper.poll() == 0


def test_counting_a_space_starts_no_threads(project: Path) -> None:
    """The threads of numpy's BLAS, one for each core, take longer to start than the answer. Only this command avoids
    them: the setting for that must not reach processes that measure.
    """
    for before in (None, "3"):
        plain = {name: value for name, value in os.environ.items() if name != BLAS}
        env = plain if before is None else {**plain, BLAS: before}
        done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, env=env)
        assert done.stderr == f"1 {before}\n"
