"""The command `deepgen`: its commands, and how errors are reported.

The file of a command is imported only when that command runs, so that `deepgen --help` is fast.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import deepgen
from deepgen.frontends.cli.completion import OperatorCommand, with_plain_values
from deepgen.vocabulary.errors import DeepgenError
from deepgen.vocabulary.registry import Registry

_NUMBERS = {"int": "an integer", "integer": "an integer", "float": "a number"}
INTERRUPTED = 130  # what shells expect after Ctrl-C

# Grouped by purpose; each with its location in this package, and its text in the list of commands.
_GROUPS = {
    "Tune": {
        "tune": ("tune:tune", "Find the fastest kernel. Run the same command again to resume."),
        "resume": ("tune:resume", "Resume a study."),
        "retest": ("tune:retest", "Repeat the final comparison of a study's best kernels."),
        "judge": ("judge:judge", "Verify one kernel as thoroughly as a winner."),
        "build": ("build:build", "Build one kernel without measuring it. Needs no device."),
        "space": ("space:space", "Count and describe a search space."),
    },
    "Look at results": {
        "status": ("status:status", "Show the state of studies: running or not, trials, best so far."),
        "top": ("show:top", "Show the fastest configs of a study."),
        "show": ("show:show", "Show a study's result, or one trial: source, assembly, loops."),
        "report": ("report:report", "Write a report: one self-contained HTML page."),
        "serve": ("serve:serve", "Watch studies in the browser while they run."),
        "analyze": ("analyze:analyze", "Find what explains the time: knobs, counters, build statistics."),
        "count": ("analyze:count", "Count hardware events of a study's best kernels."),
        "stop": ("status:stop", "Stop a running study and every process it started."),
    },
    "Use and ship": {
        "library": ("library:app", "Keep winners in a library, and ship them."),
        "bundle": ("bundle:app", "Measure a study on another machine, without network or deepgen."),
        "bench": ("bench:bench", "Time a torch model with and without a library's kernels."),
        "export": ("export:export", "Write the best configs or all trials in another format."),
        "import": ("export:import_results", "Read another tuner's results, or make a study of a recording."),
        "replay": ("replay:replay", "Score a search strategy on a recorded space, without hardware."),
    },
    "This machine": {
        "doctor": ("doctor:doctor", "Show what this machine has, what is missing, and how to get it."),
        "allow": ("doctor:allow", "Allow a project's deepgen.toml to name programs that are run."),
        "clean": ("status:clean", "Free disk space: build cache, leftovers of killed runs, studies."),
    },
}
_COMMANDS = {name: command for commands in _GROUPS.values() for name, command in commands.items()}
_OF_OPERATORS = ("tune", "space", "build", "judge")
# Commands of plug-ins: a group or a single function. They are looked up only if they may be needed.
PLUGGED: Registry[typer.Typer | Callable[..., None]] = Registry("deepgen.commands", "command", {})


@dataclass
class Invocation:
    """The arguments of this call of the command line."""

    argv: tuple[str, ...]
    debug: bool = False
    started: float | None = None  # on the clock of `time.monotonic`; None: at process start


def _version(wanted: bool) -> None:
    if wanted:
        print(f"deepgen {deepgen.__version__}")
        raise typer.Exit()


def root(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an unexpected error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Find the fastest verified kernel for an operator on your own hardware."""
    if isinstance(context.obj, Invocation):
        context.obj.debug = debug
    if context.invoked_subcommand is None:
        print(context.get_help())


class _InGroups(TyperGroup):
    """Lists commands grouped by purpose, those of plug-ins last. Contexts and formatters are typer's."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        return command if command is None else with_plain_values(command)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        every = self.list_commands(ctx)
        groups = {title: list(commands) for title, commands in _GROUPS.items()}
        groups["From plug-ins"] = [name for name in every if name not in _COMMANDS]
        width = max(map(len, every), default=0)
        for title, names in groups.items():
            commands = [(name, command) for name in names if (command := self.get_command(ctx, name)) is not None]
            if commands:
                with formatter.section(title):
                    room = formatter.width - 4 - width
                    formatter.write_dl([(f"{name:{width}}", one.get_short_help_str(room)) for name, one in commands])


def _app() -> typer.Typer:
    """The app without commands; commands inherit the names of the help option."""
    app = typer.Typer(
        name="deepgen",
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        cls=_InGroups,
    )
    app.callback(invoke_without_command=True)(root)
    return app


def app_for(argv: Sequence[str]) -> typer.Typer:
    """The app with only the requested command: others are not imported, and Typer need not inspect them.

    Without a command, all are listed. Plug-ins are looked up only if the command may be theirs, or for the list.
    """
    app = _app()
    named = next((word for word in argv if not word.startswith("-")), None)
    if named in _COMMANDS:
        module, _, attribute = _COMMANDS[named][0].partition(":")
        _add(app, named, getattr(import_module(f"deepgen.frontends.cli.{module}"), attribute))
    elif named is not None and named in PLUGGED:
        _add(app, named, PLUGGED.get(named))
    elif "--version" not in argv:
        for name, (place, text) in _COMMANDS.items():
            if not place.endswith(":app"):
                app.command(name, help=text)(_listed)
        for name, (place, text) in _COMMANDS.items():
            if place.endswith(":app"):
                app.add_typer(typer.Typer(callback=_listed, invoke_without_command=True), name=name, help=text)
        for name in PLUGGED.names():
            with suppress(DeepgenError):  # the others remain usable, and `doctor` reports what is wrong
                _add(app, name, PLUGGED.get(name))
    return app


def _listed() -> None:
    """A placeholder for a command that is only listed."""


def _add(app: typer.Typer, name: str, command: typer.Typer | Callable[..., None]) -> None:
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name, cls=OperatorCommand if name in _OF_OPERATORS else None)(command)


def _words() -> tuple[str, ...]:
    """The words of this process's command line, or of the one that a shell completes."""
    typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS")
    return tuple(typed.split()[1:]) if "_DEEPGEN_COMPLETE" in os.environ and typed else tuple(sys.argv[1:])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; errors are reported on stderr in one sentence."""
    started = None if argv is None else time.monotonic()
    invocation = Invocation(tuple(sys.argv[1:] if argv is None else argv), started=started)
    try:
        command_line = app_for(_words() if argv is None else argv)
        code = command_line(list(invocation.argv), prog_name="deepgen", standalone_mode=False, obj=invocation)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        if invocation.debug:
            raise
        return _tell(error)
    if code == INTERRUPTED:
        _say("stopped by Ctrl-C; run the same command again to resume")
    return code if isinstance(code, int) else 0


def run() -> NoReturn:
    """Run this process's command line and exit."""
    _settle_streams()
    sys.exit(main())


def _settle_streams() -> None:
    """Make the standard streams usable, however the process was started."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # Closed: the next opened file would get its number, and receive what is printed there.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, open(number, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # for a locale without our characters, or a path that is not UTF-8
            stream.reconfigure(errors="backslashreplace")


def _tell(error: Exception) -> int:
    if isinstance(error, DeepgenError):
        _say(str(error))
        return error.exit_code
    if type(error).__name__ == "NoArgsIsHelpError":  # `deepgen bundle` without a command shows its commands
        print(getattr(error, "message", error))
        return 0
    # Usage errors: an unknown option, a missing argument. The class has moved between typer versions.
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        _say(f"{_in_words(error.format_message().rstrip('.'))} (see: deepgen {_command_of(error)}--help)")
        return int(error.exit_code)
    if isinstance(error, OSError) and error.strerror:
        # System errors that the user can fix: a full disk, a folder without write permission.
        _say(f"{error.filename}: {error.strerror}" if error.filename else _without_a_name(error))
        return 1
    try:
        details = f"details are in {_write_log(error)}"
    except OSError as refused:
        details = f"no details could be written: {refused.strerror}; see them with deepgen --debug"
    _say(f"unexpected error, a bug in deepgen: {type(error).__name__}: {error} ({details})")
    return 1


def _in_words(usage: str) -> str:
    """What is wrong with a number, in a sentence."""
    usage = re.sub(r"is not a valid (int|integer|float)( range)?\b", lambda m: f"is not {_NUMBERS[m[1]]}", usage)
    return usage.replace("is not in the range ", "is not ")


def _without_a_name(error: OSError) -> str:
    try:
        Path.cwd()
    except FileNotFoundError:
        return "the current folder was deleted; change to another one"
    return str(error.strerror)


def _command_of(error: Exception) -> str:
    path = getattr(getattr(error, "ctx", None), "command_path", "deepgen")
    words = str(path).split()[1:]
    return "".join(f"{word} " for word in words)


def _write_log(error: Exception) -> Path:
    from deepgen.vocabulary.folders import default_cache_folder

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        folder = default_cache_folder() / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        name = tempfile.mkstemp(prefix="error-", suffix=".txt", dir=folder)[1]
    except (OSError, DeepgenError):
        name = tempfile.mkstemp(prefix="deepgen-error-", suffix=".txt")[1]
    Path(name).write_text(text, encoding="utf-8", errors="backslashreplace")
    return Path(name)


def _say(sentence: str) -> None:
    from deepgen.report.view import note

    with suppress(OSError):  # the output is closed; only the exit code remains
        note(f"deepgen: {sentence}")
