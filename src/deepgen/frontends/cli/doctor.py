"""`deepgen doctor`: what is here, what is missing, and how to get it. Changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from deepgen import settings
from deepgen.frontends.cli import checkup, options
from deepgen.frontends.cli.clocks import amd_commands, nvidia_commands
from deepgen.frontends.cli.output import bytes_text, labelled, paragraph, print_json, shown
from deepgen.report.view.text import printable
from deepgen.vocabulary.errors import BadInput


def doctor(as_json: options.AsJson = False) -> None:
    """Show what this machine has, what is missing, and how to get it."""
    report = checkup.examine(settings.load())
    if as_json:
        print_json(report)
        return
    paragraph(f"deepgen {report['deepgen']}, Python {report['python']['version']}, {report['system']}")
    _devices(report["devices"])
    _tools(report["toolchains"], report["packages"])
    _targets(report["targets"])
    _plugins(report["plugins"])
    _missing(report["missing"])
    _clocks(report["clocks"])
    _settings(report["settings"])


def _line(label: str, text: str) -> None:
    labelled(label, text, indent=12)


def _devices(devices: list[dict[str, Any]]) -> None:
    print("\ndevices")
    for device in devices:
        _line(f"  {device['kind']}", device["name"])
        if "cores" in device:
            caches = ", ".join(f"{level} {bytes_text(device[key])}" for level, key in _CACHES)
            _line("", f"{device['cores']} cores, {caches}")
            _line("", " ".join(device["isa"]))
        elif "compute_capability" in device:
            _line(
                "",
                f"GPU {device['index']}, compute capability {device['compute_capability']}, "
                f"{device['memory_mib']} MiB, driver {device['driver']}",
            )
        elif "problem" in device:
            _line("", device["problem"])


_CACHES = (("L1d", "l1d_bytes"), ("L2", "l2_bytes"), ("L3", "l3_bytes"))


def _tools(tools: list[dict[str, Any]], packages: list[dict[str, Any]]) -> None:
    print("\ntoolchains")
    for tool in tools:
        _line(f"  {tool['name']}", _tool(tool))
    print("\nPython packages")
    for package in packages:
        _line(f"  {package['name']}", package["version"] or "missing")


def _targets(targets: list[dict[str, str]]) -> None:
    print("\ntargets")
    for row in targets:
        labelled("", f"{row['target']}: {row['evidence']}", indent=2)


def _plugins(plugins: list[dict[str, Any]]) -> None:
    if plugins:
        print("\nplug-ins")
    for row in plugins:
        _line(f"  {row['name']}", f"{row['kind']}: {row['problem'] or 'ready'}")


def _tool(tool: dict[str, Any]) -> str:
    if tool["ok"]:
        return f"{tool['version']}, {tool['path']}"
    return f"{tool['path']}, which cannot be used" if tool["path"] else "missing"


def _missing(missing: list[dict[str, str]]) -> None:
    print("\nmissing" if missing else "\nnothing is missing")
    for item in missing:
        _line(f"  {item['what']}", f"{item['why']}; blocks {item['blocks']}")
        _line("", item["remedy"])


def _clocks(clocks: list[dict[str, Any]]) -> None:
    print("\nclocks")
    for device in clocks:
        _line(f"  {device['device']}", f"{device['state']}: {device['why']}")
    print()
    paragraph("To lock clocks while measuring, run these yourself (deepgen never does):")
    for device in clocks:
        _commands(device["device"], device["lock"], device["undo"])
    # The commands for GPUs are worth knowing where the GPU is elsewhere, with words to be filled in.
    for kind, commands, words in (("nvidia", nvidia_commands, "N MHZ"), ("amd", amd_commands, "cardN LEVEL")):
        if not any(device["device"].startswith(kind) for device in clocks):
            _commands(f"{kind}, none here", *commands(*words.split()))


def _commands(title: str, lock: list[str] | tuple[str, ...], undo: list[str] | tuple[str, ...]) -> None:
    print(f"  {title}")
    for command in lock:
        print(f"    {command}")
    print("    # and to undo it:")
    for command in undo:
        print(f"    {command}")


def _settings(rows: list[dict[str, Any]]) -> None:
    print("\nsettings")
    for row in rows:
        value = "not set" if row["value"] is None else row["value"]
        origin = row["from"] if row["from"] == "default" else shown(row["from"])
        labelled("", f"{row['key']} = {value} ({origin})", indent=2)


Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The project. [the current folder]")]
Revoke = Annotated[bool, typer.Option("--revoke", help="Take it back.")]


def allow(folder: Folder = Path(), revoke: Revoke = False, as_json: options.AsJson = False) -> None:
    """Let the programs run that a project's deepgen.toml names, until the file changes."""
    path = settings.project_file(folder)
    if path is None:
        raise BadInput(f"{shown(folder)} has no {settings.FILE_NAME}", allowed="the folder of a project that has one")
    keys = settings.allow(path, allowed=not revoke)
    values = {key: str(value) for key, value in settings.read(path).values().items() if key in keys}
    if as_json:
        print_json({"file": str(path), "allowed": not revoke, "values": values})
        return
    print(f"{shown(path)}: {'not allowed any more' if revoke else 'allowed until it changes'}")
    for key, value in values.items():
        print(printable(f"  {key} = {value}"))
