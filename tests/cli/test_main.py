"""How the command line answers: help at once, errors in one sentence, the right exit code, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import deepgen as package
from deepgen.cli import main as entry

COMMANDS = (
    "tune", "resume", "top", "show", "retest", "export", "status", "stop", "build", "space", "doctor", "clean",
)  # fmt: skip


def test_help_names_every_command_within_80_columns(deepgen: Callable) -> None:
    said = deepgen("--help")
    assert said.code == 0
    assert all(f"\n  {name} " in said.out for name in COMMANDS)
    assert max(map(len, said.out.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(deepgen: Callable, command: str) -> None:
    said = deepgen(command, "--help")
    assert said.code == 0
    assert said.out.startswith(f"Usage: deepgen {command}")
    assert max(map(len, said.out.splitlines())) <= 80


def test_alone_it_shows_the_help(deepgen: Callable) -> None:
    assert deepgen() == deepgen("--help")


def test_version(deepgen: Callable) -> None:
    assert deepgen("--version").out == f"deepgen {package.__version__}\n"


def test_help_loads_nothing_heavy() -> None:
    # numpy alone takes longer to import than the whole help may take.
    program = "import sys; from deepgen.cli.main import main; main(['--help']); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["tun"], "tun"),
        (["tune"], "OPERATOR"),
        (["tune", "gemm"], "M and N and K"),
        (["tune", "gemm", "MNK=8", "--colour"], "--colour"),
        (["tune", "gemm", "MNK=8", "--trials", "many"], "--trials"),
        (["tune", "gemm", "MNK=8", "--trials", "0"], "--trials"),
        (["tune", "gemm", "MNK=8", "--dtype", "f31"], "f31"),
        (["tune", "gemm", "MNK=8", "--layout", "zz"], "zz"),
        (["tune", "gemm", "MNK=8", "--target", "abacus"], "abacus"),
        (["tune", "gemm", "MNK=8", "--target", "sim", "--strategy", "guess"], "guess"),
        (["tune", "gemm", "MNK=8", "t=3", "--trials", "4", "--target", "sim"], "t=3"),
        (["tune", "none.toml"], "none.toml"),
        (["top", "nowhere"], "nowhere"),
        (["show", "nowhere"], "nowhere"),
        (["stop", "nowhere"], "nowhere"),
        (["status", "nowhere"], "nowhere"),
        (["resume", "nowhere"], "nowhere"),
        (["clean", "nowhere"], "nowhere"),
        (["retest", "nowhere"], "nowhere"),
        (["export", "nowhere", "--as-space", "-o", "x.json"], "nowhere"),
        (["export", "nowhere", "-o", "x.json"], "--as-space"),
        (["build", "gemm", "MNK=8", "--target", "sim", "-o", "b", "--config", "BLOCK_Q=1"], "BLOCK_Q"),
        (["build", "gemm", "MNK=8", "--target", "sim", "-o", "b", "--config", "BLOCK_M=7"], "BLOCK_M"),
        (["build", "gemm", "MNK=8", "--target", "sim", "-o", "b", "--rank", "999999999"], "999999999"),
        (["build", "gemm", "MNK=8", "--target", "sim", "-o", "b", "--rank", "1", "--config", "STAGES=1"], "--rank"),
        (["build", "gemm", "MNK=8", "--target", "sim"], "-o"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(deepgen: Callable, argv: list[str], named: str) -> None:
    said = deepgen(*argv)
    assert said.code == 2
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert said.err.startswith("deepgen: ")
    assert named in said.err


def test_a_broken_settings_file_is_bad_input_for_every_command(deepgen: Callable, project: Path) -> None:
    (project / "deepgen.toml").write_text("colour = 1")
    said = deepgen("doctor", "--json")
    assert (said.code, said.out) == (2, "")
    assert "deepgen.toml: unknown key colour" in said.err


def test_a_bug_of_ours_leaves_a_log_and_no_traceback(deepgen: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(settings: object) -> None:
        raise RuntimeError("the cat is out")

    monkeypatch.setattr("deepgen.cli.checkup.examine", broken)
    said = deepgen("doctor")
    assert (said.code, said.out) == (1, "")
    assert "the cat is out" in said.err
    assert "Traceback" not in said.err
    log = Path(said.err.rstrip().rstrip(")").rpartition(" ")[2])
    assert "test_main.py" in log.read_text()
    with pytest.raises(RuntimeError, match="cat"):
        deepgen("--debug", "doctor")


def test_what_the_system_refuses_is_one_sentence(deepgen: Callable, project: Path) -> None:
    (project / "taken").write_text("a file where a folder should be")
    said = deepgen("tune", "gemm", "MNK=64", "--target", "sim", "t=2", "--out", "taken")
    assert said.code == 1
    assert "taken" in said.err
    assert "bug" not in said.err
    assert len(said.err.splitlines()) == 1


def test_an_interrupt_gives_130(deepgen: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("deepgen.cli.checkup.examine", interrupted)
    said = deepgen("doctor")
    assert said.code == entry.INTERRUPTED == 130
    assert len(said.err.splitlines()) == 1


def test_the_installed_command_gives_the_exit_code(project: Path) -> None:
    program = Path(sys.executable).with_name("deepgen")
    done = subprocess.run([str(program), "tune", "gemm", "MNK=x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
