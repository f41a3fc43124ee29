"""Options are declared once: Python calls, requests, files and the user guide agree on them."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path

import pytest
import typer

import deepgen as dg
from deepgen.frontends.cli import main, tune
from deepgen.frontends.cli.options import IN_FILES, OF_A_RUN, OF_OPERATOR, OPTIONS, OptionSpec, seconds_of
from deepgen.frontends.formats import TuningFile
from deepgen.tuning import Request

GUIDE = Path(__file__).parents[3] / "docs" / "user-guide.md"
REQUEST = {f.name: f.default_factory() if f.default is MISSING and f.default_factory is not MISSING else f.default
           for f in fields(Request)}  # fmt: skip
# Only for the command line and files: words, another machine, files of the older tool, session behaviour.
NOT_IN_PYTHON = {
    *OF_OPERATOR, "also", "host", "one_kernel", "jobs", "address", "space_strategy", "library", "noisy", "warm",
}  # fmt: skip
# Only in Python, where they are objects.
NOT_DECLARED = {"operator", "generator", "rules", "policy", "settings", "progress", "watch", "stop", "engine"}


def python_name(option: OptionSpec) -> str:
    return option.field or option.name


def test_python_takes_what_is_declared() -> None:
    declared = {python_name(option) for option in OPTIONS.values() if option.name not in NOT_IN_PYTHON}
    assert set(inspect.signature(dg.tune).parameters) - NOT_DECLARED == declared - NOT_DECLARED


@pytest.mark.parametrize("name", OF_A_RUN)
def test_defaults_are_those_of_a_request(name: str) -> None:
    python = inspect.signature(dg.tune).parameters[name].default
    default = REQUEST[name]
    assert python == default or (python is None and (default == {} or name == "out"))
    option = next(one for one in OPTIONS.values() if python_name(one) == name)
    stated = re.search(r"\[(.*)\]$", option.help)
    if stated and default is not None and name != "options":
        assert stated[1] == str(default)


def test_python_says_what_each_is() -> None:
    told = inspect.getdoc(dg.tune) or ""
    for name in (
        "target",
        "family",
        "threads",
        "knobs",
        "generator",
        "strategy",
        "baselines",
        "counters",
        "learn_from",
    ):
        assert f"`{name}`" in told


def test_files_have_a_place_for_every_key() -> None:
    assert {option.name for option in IN_FILES} <= {field.name for field in fields(TuningFile)}


def test_a_command_takes_each_as_declared() -> None:
    taken = inspect.signature(tune.tune).parameters
    for option in OPTIONS.values():
        if option.help and option is not OPTIONS["one_family"]:
            assert taken[option.name] == option.parameter()


def test_the_user_guide_knows_its_options() -> None:
    rows = re.findall(r"^\| `(--[\w-]+)[^|]*\|[^|]*\| (.*) \|$", GUIDE.read_text(), re.M)
    flags = {option.long: option for option in OPTIONS.values()}
    listed = [(flag, default.strip("`")) for flag, default in rows if flag in flags]
    assert len(listed) > 20
    for flag, default in listed:
        stated = re.search(r"\[(\d+)\]$", flags[flag].help)
        assert stated is None or stated[1] == default, flag


def test_the_list_of_commands_says_what_each_says() -> None:
    for place, text in main._COMMANDS.values():
        module, _, name = place.partition(":")
        command = getattr(import_module(f"deepgen.frontends.cli.{module}"), name)
        about = command.info.help if name == "app" else inspect.getdoc(command)
        assert " ".join(str(about).split("\n\n")[0].split()) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20", 20.0), ("20s", 20.0), ("1.5", 1.5), (".5s", 0.5), ("5m", 300.0), ("1h30m", 5400.0), ("1m30", 90.0)],
)
def test_times_have_units(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "s", "1d", "1e9", "nan", "inf", "5m1h", "0m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="such as 20, 20s, 5m or 1h30m"):
        seconds_of(text)
