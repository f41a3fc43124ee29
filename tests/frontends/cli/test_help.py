"""Help and shell completion: every name that an option accepts can be found without the documentation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from deepgen.generators import FAMILIES
from deepgen.targets import KINDS
from deepgen.tuning.search import STRATEGIES
from deepgen.vocabulary.dtypes import DTYPES


@pytest.mark.parametrize(
    "command", [[], ["tune"], ["doctor"], ["bundle"], ["bundle", "pack"], ["cluster"], ["cluster", "run"]]
)
def test_short_help_is_the_long_one(deepgen: Callable, command: list[str]) -> None:
    said = deepgen(*command, "-h")
    assert said.code == 0
    assert said == deepgen(*command, "--help")


def test_commands_are_in_four_groups_and_those_of_plug_ins_follow(deepgen: Callable) -> None:
    titles = re.findall(r"^[A-Z][\w -]+:$", deepgen("-h").out, re.MULTILINE)
    assert titles == ["Options:", "Tune:", "Look at results:", "Use and ship:", "This machine:", "From plug-ins:"]


def test_the_list_of_commands_is_whole_in_80_columns(deepgen: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = "".join(deepgen(*command, "-h").out.partition("\n\n")[2] for command in ([], ["library"], ["bundle"]))
    assert "..." not in listed


def test_values_have_plain_names(deepgen: Callable) -> None:
    tune, show = deepgen("tune", "-h").out, deepgen("show", "-h").out
    assert "--trials NUMBER " in tune and "[at least 1]" in tune
    assert "Usage: deepgen show [OPTIONS] STUDY\n" in show and "--trial NUMBER " in show
    assert not re.search(r"[<{]|x>=", tune + show)


def test_the_help_of_tune_names_all_values(deepgen: Callable) -> None:
    values = deepgen("tune", "-h").out.partition("Values of options:")[2]
    words = set(values.replace(",", " ").split())
    assert {*DTYPES, *STRATEGIES.own, *FAMILIES.own, *KINDS.own, "cpu", "all"} <= words


def test_help_names_only_the_options_of_its_command(deepgen: Callable) -> None:
    values = deepgen("build", "-h").out.partition("Values of options:")[2]
    assert "--target" in values
    assert "--strategy" not in values


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("deepgen ret", ["retest"]),
        ("deepgen tune soft", ["softmax"]),
        ("deepgen tune gemm --dtype b", ["bf16"]),
        ("deepgen tune gemm --strategy mod", ["model"]),
        ("deepgen tune gemm --family c_ge", ["c_gemm"]),
        ("deepgen tune gemm --target cp", ["cpu:native"]),
    ],
)
def test_bash_completes(line: str, completed: list[str]) -> None:
    asked = {"_DEEPGEN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "deepgen"], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == completed, done.stderr


def test_the_script_for_a_shell_can_be_shown() -> None:
    show = [sys.executable, "-m", "deepgen", "--show-completion", "bash"]
    # Typer's own tests use this variable to disable shell detection.
    env = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(show, env=env, capture_output=True, text=True, check=True)
    assert "complete -o default -F _deepgen_completion deepgen" in done.stdout
