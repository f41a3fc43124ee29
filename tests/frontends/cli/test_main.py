"""How the command line responds: help at once, errors in one sentence, correct exit codes, never a traceback."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import deepgen as package
from deepgen import settings
from deepgen.frontends.cli import main as entry
from deepgen.frontends.cli.output import write_text
from deepgen.vocabulary import BadInput

COMMANDS = (
    "tune", "resume", "top", "show", "retest", "judge", "analyze", "export", "status", "stop", "build", "space",
    "doctor", "clean",
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


@pytest.mark.parametrize("group", ["bundle", "cluster"])
def test_a_group_alone_shows_its_commands(deepgen: Callable, group: str) -> None:
    assert deepgen(group) == deepgen(group, "--help")


def test_version(deepgen: Callable) -> None:
    assert deepgen("--version").out == f"deepgen {package.__version__}\n"


def test_help_loads_nothing_heavy() -> None:
    # Importing numpy alone takes longer than the whole help may take.
    program = "import sys; from deepgen.frontends.cli.main import main; main(['--help']); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


IMPATIENT = """
import sys
class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, CtrlC())
from deepgen.__main__ import run
run()
"""


def test_ctrl_c_while_it_is_still_being_imported() -> None:
    done = subprocess.run([sys.executable, "-c", IMPATIENT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["tun"], "tun"),
        (["tune"], "OPERATOR"),
        (["tune", "gemm"], "M, N and K"),
        (["tune", "gemm", "MNK=8", "--colour"], "--colour"),
        (["tune", "gemm", "MNK=8", "--trials", "many"], "'many' is not an integer"),
        (["tune", "gemm", "MNK=8", "--trials", "0"], "0 is not at least 1"),
        (["tune", "gemm", "MNK=8", "--target", "sim", "--time-budget", "inf"], "'inf' is not a positive time"),
        (["tune", "gemm", "MNK=8", "--dtype", "f31"], "f31"),
        (["tune", "gemm", "MNK=8", "--layout", "zz"], "zz"),
        (["tune", "gemm", "MNK=8", "--target", "abacus"], "abacus"),
        (["tune", "gemm", "MNK=8", "--target", "sim", "--strategy", "guess"], "guess"),
        (["tune", "gemm", "MNK=8", "t=3", "--trials", "4", "--target", "sim"], "t=3"),
        (["tune", "none.toml"], "none.toml"),
        (["tune", "scale.c"], "scale.c is a source file"),
        (["serve", "--port", "99999"], "99999 is not from 0 to 65535"),
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

    monkeypatch.setattr("deepgen.frontends.cli.doctor.examine", broken)
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


def test_a_full_disk_is_not_taken_for_a_missing_folder() -> None:
    with pytest.raises(BadInput, match=r"^/dev/full cannot be written: No space left on device$"):
        write_text(Path("/dev/full"), "text")


def test_an_interrupt_gives_130(deepgen: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("deepgen.frontends.cli.doctor.examine", interrupted)
    said = deepgen("doctor")
    assert said.code == entry.INTERRUPTED == 130
    assert len(said.err.splitlines()) == 1


def test_the_installed_command_gives_the_exit_code(project: Path) -> None:
    program = Path(sys.executable).with_name("deepgen")
    done = subprocess.run([str(program), "tune", "gemm", "MNK=x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def _run(script: str, project: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the installed command in a shell, as `deepgen`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    surroundings = {**os.environ, "PATH": path, **environment}
    return subprocess.run(["bash", "-c", script], cwd=project, env=surroundings, capture_output=True, check=False)


TUNE = "deepgen tune gemm MNK=64 --target sim --trials 2"


def test_closed_streams_cost_a_run_nothing(project: Path) -> None:
    """Otherwise the journal would be given their file descriptors, and with them other programs' output."""
    assert _run(f"{TUNE} <&- 2>&- >&-", project).returncode == 0
    assert _run("deepgen status", project).stdout.count(b"finished") == 1


def test_paths_that_are_no_text_are_told_all_the_same(project: Path) -> None:
    strict = {"PYTHONIOENCODING": "utf-8:strict"}
    done = _run(f"{TUNE} --out $'odd\\xff'", project, **strict)
    assert done.returncode == 0, done.stderr
    told = json.loads(_run("deepgen top $'odd\\xff' --json", project, **strict).stdout)
    assert os.fsencode(told["study"]).startswith(b"odd\xff/gemm")


def test_the_exit_code_is_right_when_nobody_listens(project: Path) -> None:
    done = _run("deepgen top nonsense 2>&1 | true; exit ${PIPESTATUS[0]}", project)
    assert (done.returncode, done.stderr) == (2, b"")


def test_a_bug_is_told_when_its_log_cannot_be_written(deepgen: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(settings: object) -> None:
        raise RuntimeError("the cat is out")

    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("deepgen.frontends.cli.doctor.examine", broken)
    monkeypatch.setattr("tempfile.mkstemp", full)
    said = deepgen("doctor")
    assert said.code == 1 and "the cat is out" in said.err and "No space left" in said.err


def test_what_is_missing_around_us_is_told_or_done_without(project: Path) -> None:
    gone = _run("mkdir gone && cd gone && rmdir ../gone && deepgen status", project)
    assert gone.returncode == 1 and b"the current folder was deleted" in gone.stderr


def test_a_user_without_a_home_has_no_settings_there(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert settings.user_file() is None
    assert settings.load().target is None
    monkeypatch.delenv("XDG_CACHE_HOME")
    with pytest.raises(BadInput, match="XDG_CACHE_HOME"):
        settings.load()


def test_an_empty_target_is_not_taken_for_none(deepgen: Callable) -> None:
    said = deepgen("tune", "gemm", "MNK=64", "--target", "")
    assert said.code == 2 and "--target is empty" in said.err
