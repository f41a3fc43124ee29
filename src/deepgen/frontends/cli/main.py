"""The command `deepgen`: its commands, and how errors reach the user.

Every command's file keeps heavy imports inside its function, so that `deepgen --help` answers at once.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import deepgen
from deepgen.frontends.cli import (
    analyze,
    bench,
    build,
    bundle,
    doctor,
    export,
    library,
    replay,
    report,
    serve,
    show,
    space,
    status,
    tune,
)
from deepgen.frontends.cli.completion import OperatorCommand
from deepgen.vocabulary.errors import DeepgenError
from deepgen.vocabulary.registry import Registry

INTERRUPTED = 130  # what shells expect after Ctrl-C

_COMMANDS: Mapping[str, Callable[..., None]] = {
    "tune": tune.tune,
    "resume": tune.resume,
    "top": show.top,
    "show": show.show,
    "retest": tune.retest,
    "report": report.report,
    "analyze": analyze.analyze,
    "count": analyze.count,
    "bench": bench.bench,
    "export": export.export,
    "import": export.import_results,
    "replay": replay.replay,
    "status": status.status,
    "stop": status.stop,
    "serve": serve.serve,
    "space": space.space,
    "build": build.build,
    "doctor": doctor.doctor,
    "clean": status.clean,
}
_OF_OPERATORS = ("tune", "space", "build")
_GROUPS: Mapping[str, typer.Typer] = {"bundle": bundle.app, "library": library.app}
# Those of plug-ins: a group, or a function that is a command. They are looked for only when they may be meant.
PLUGGED: Registry[typer.Typer | Callable[..., None]] = Registry("deepgen.commands", "command", {})


@dataclass
class Invocation:
    """What this call of the command line was given."""

    argv: tuple[str, ...]
    debug: bool = False


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


def _app(names: Collection[str]) -> typer.Typer:
    """The command line with these commands and groups, which inherit the names of the help option."""
    typer_app = typer.Typer(
        name="deepgen",
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    typer_app.callback(invoke_without_command=True)(root)
    for name, command in _COMMANDS.items():
        if name in names:
            typer_app.command(name, cls=OperatorCommand if name in _OF_OPERATORS else None)(command)
    for name, group in _GROUPS.items():
        if name in names:
            typer_app.add_typer(group, name=name)
    return typer_app


def app_for(argv: Sequence[str]) -> typer.Typer:
    """With the command that is named alone: Typer examines every one it is given, which takes longer than an answer.

    Plug-ins are looked for only where their commands may be meant, or are listed.
    """
    named, own = argv[:1], {*_COMMANDS, *_GROUPS}
    if named and (named[0] in own or named[0] == "--version"):
        return _app(named)
    alone = bool(named) and named[0] in PLUGGED
    made = _app(() if alone else own)
    for name in named if alone else PLUGGED.names():
        try:
            plugged = PLUGGED.get(name)
        except DeepgenError:  # the others can be used, and `doctor` says what is wrong
            if alone:
                raise
            continue
        if isinstance(plugged, typer.Typer):
            made.add_typer(plugged, name=name)
        else:
            made.command(name)(plugged)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit code; errors are reported on stderr in one sentence."""
    invocation = Invocation(tuple(sys.argv[1:] if argv is None else argv))
    try:
        command_line = app_for(invocation.argv)
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
    """The command line of this process, to its end."""
    _settle_streams()
    sys.exit(main())


def _settle_streams() -> None:
    """Make the standard streams usable, however the process was started."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # Closed: the next file to be opened would get its number, and with it what others print there.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, open(number, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a locale without our signs, a path that is not UTF-8
            stream.reconfigure(errors="backslashreplace")


def _tell(error: Exception) -> int:
    if isinstance(error, DeepgenError):
        _say(str(error))
        return error.exit_code
    if type(error).__name__ == "NoArgsIsHelpError":  # `deepgen bundle` alone, which shows its commands
        print(getattr(error, "message", error))
        return 0
    # Usage errors: an unknown option, a missing argument. Their class has moved between versions of typer.
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        _say(f"{error.format_message().rstrip('.')} (see: deepgen {_command_of(error)}--help)")
        return int(error.exit_code)
    if isinstance(error, OSError) and error.strerror:
        # Errors of the system that the user can fix: a full disk, a folder without write permission.
        _say(f"{error.filename}: {error.strerror}" if error.filename else _without_a_name(error))
        return 1
    try:
        details = f"details are in {_write_log(error)}"
    except OSError as refused:
        details = f"details cannot be written: {refused.strerror}; see them with deepgen --debug"
    _say(f"unexpected error, a bug in deepgen: {type(error).__name__}: {error} ({details})")
    return 1


def _without_a_name(error: OSError) -> str:
    try:
        Path.cwd()
    except FileNotFoundError:
        return "the current folder was deleted; go to another one"
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
    from deepgen.report.view.text import note

    with suppress(OSError):  # nobody reads the output any more; only the exit code is left
        note(f"deepgen: {sentence}")
