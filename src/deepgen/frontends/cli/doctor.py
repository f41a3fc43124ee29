"""`deepgen doctor`: what is installed, what is missing, and how to get it. Changes nothing."""

from __future__ import annotations

import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

import deepgen
from deepgen import settings
from deepgen.baselines import BASELINES
from deepgen.compiler.rules.rule import RULES
from deepgen.frontends.cli import clocks, options
from deepgen.frontends.cli.clocks import amd_commands, nvidia_commands
from deepgen.frontends.cli.engines import ENGINES
from deepgen.frontends.cli.main import PLUGGED
from deepgen.frontends.cli.output import labelled, paragraph, print_json, shown
from deepgen.generators import FAMILIES
from deepgen.operators import OPERATORS
from deepgen.report.serve.places import RUNS
from deepgen.report.view import printable
from deepgen.run.measure import RUNNERS
from deepgen.settings import Settings
from deepgen.targets import KINDS, host
from deepgen.targets.gpu_facts import CUDA_ARCHES, HIP_ARCHES
from deepgen.toolchains import TOOLCHAINS, programs, survey
from deepgen.tuning.search import STRATEGIES
from deepgen.tuning.study.text import bytes_text
from deepgen.vocabulary.errors import BadInput, DeepgenError, install_extra
from deepgen.vocabulary.registry import DOORS, LOWERINGS, Registry


def doctor(as_json: options.AsJson = False) -> None:
    """Show what this machine has, what is missing, and how to get it."""
    report = examine(settings.load())
    if as_json:
        print_json(report)
        return
    paragraph(f"deepgen {report['deepgen']}, Python {report['python']['version']}, {report['system']}")
    _devices(report["devices"])
    _tools(report["toolchains"], report["packages"])
    _extras(report["extras"])
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


def _extras(extras: list[dict[str, Any]]) -> None:
    print("\nextras")
    for extra in extras:
        held = ", ".join(f"{name} {version or 'missing'}" for name, version in extra["packages"].items())
        _line(f"  {extra['name']}", f"{extra['serves']}: {held}")


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
    return f"{tool['path']}, but it does not work" if tool["path"] else "missing"


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
    # The commands for GPUs are also useful if the GPU is in another machine, with placeholders to fill in.
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


Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Project folder. [the current folder]")]
Revoke = Annotated[bool, typer.Option("--revoke", help="Revoke the permission.")]


def allow(folder: Folder = Path(), revoke: Revoke = False, as_json: options.AsJson = False) -> None:
    """Allow a project's deepgen.toml to name programs that are run.

    That holds until the file changes.
    """
    path = settings.project_file(folder)
    if path is None:
        raise BadInput(f"{shown(folder)} has no {settings.FILE_NAME}", allowed="the folder of a project that has one")
    keys = settings.allow(path, allowed=not revoke)
    values = {key: str(value) for key, value in settings.read(path).values().items() if key in keys}
    if as_json:
        print_json({"file": str(path), "allowed": not revoke, "values": values})
        return
    print(f"{shown(path)}: {'no longer allowed' if revoke else 'allowed until the file changes'}")
    for key, value in values.items():
        print(printable(f"  {key} = {value}"))


@dataclass(frozen=True)
class Package:
    """A Python package that deepgen can use."""

    name: str
    serves: str
    remedy: str


PACKAGES = (
    Package("numpy", "the reference results and the numpy baseline", "pip install numpy"),
    Package("torch", "the torch baseline, which is oneDNN on CPUs", install_extra("torch")),
)


@dataclass(frozen=True)
class Extra:
    """What `pip install 'deepgen-kernels[name]'` installs."""

    name: str
    serves: str
    packages: tuple[str, ...]
    spare: str = ""  # an equivalent alternative


EXTRAS = (
    Extra(
        "view", "reports, plots and the live view", ("altair", "vl-convert-python", "jinja2", "starlette", "uvicorn")
    ),
    Extra("torch", "the torch baseline, models, and torch's tensors", ("torch",)),
    Extra("triton", "kernels in Triton", ("triton",)),
    Extra("jax", "a library's kernels as functions of JAX's", ("jax",)),
    Extra(
        "cuda",
        "compiling CUDA without a toolkit",
        ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvdisasm"),
    ),
    Extra("zig", "building C kernels on a machine without a compiler", ("ziglang",)),
    Extra("bundle", "bundles that end in .tar.zst", ("zstandard",), "Or name them .tar.gz."),
    Extra("model", "trees beside the search's own model", ("lightgbm", "scikit-learn")),
    Extra("analysis", "trials as a DataFrame", ("pandas",)),
    Extra("solver", "sampling spaces that are too large to count", ("ortools",)),
    Extra("cluster", "tuning on several machines in parallel", ("ray", "asyncssh")),
    Extra("tvm", "the TVM baseline", ("apache-tvm",)),
    Extra("site", "building the documentation's site", ("mkdocs-material", "mkdocs")),
    Extra("peers", "what the benchmarks compare with", ("kernel-tuner", "pyatf", "ortools", "matplotlib")),
)
# Architectures whose kernels have run on matching hardware. All others are listed separately, as in docs/gpu.md.
EXECUTED = {
    "x86": "run and measured",
    "arm": "run and measured on a Neoverse N1",
    "cuda:sm_90a": "run and measured on an NVIDIA H200",
    "riscv": "run under qemu with instruction counts, never on a board",
}
NEVER_EXECUTED = "compiled and emulated, never run on hardware"


def examine(settings: Settings, root: Path = Path("/")) -> dict[str, Any]:
    """Everything, as one JSON object."""
    gpus = clocks.nvidia_gpus(shutil.which("nvidia-smi"))
    held = [clocks.cpu(root), *(clocks.nvidia(gpu) for gpu in gpus), *clocks.amd(root)]
    tools = [{**asdict(tool), "ok": tool.ok} for tool in survey(settings.programs())]
    packages = [{**asdict(package), "version": _version(package.name)} for package in PACKAGES]
    extras = [
        {**asdict(extra), "packages": {name: _version(name) for name in extra.packages}, "remedy": _remedy(extra)}
        for extra in EXTRAS
    ]
    return {
        "deepgen": deepgen.__version__,
        "python": {"version": platform.python_version(), "path": sys.executable},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "devices": [*_processor(), *({"kind": "cuda", **asdict(gpu)} for gpu in gpus), *_amd_devices(held)],
        "toolchains": tools,
        "targets": _target_facts(),
        "packages": packages,
        "extras": extras,
        "plugins": _plugin_facts(),
        "missing": _missing_facts(tools, packages, extras),
        "clocks": [c.to_json() for c in held],
        "settings": [
            {"key": key, "value": str(value) if isinstance(value, Path) else value, "from": settings.source(key)}
            for key, value in settings.values().items()
        ],
    }


def _target_facts() -> list[dict[str, str]]:
    """What deepgen compiles for, and whether such kernels have ever run."""
    cuda = [arch for arch in CUDA_ARCHES if arch != "sm_90a"]
    never = {"cuda": ", ".join(cuda), "hip": ", ".join(HIP_ARCHES), "hip:z100": "the Hygon DCU, a gfx906"}
    return [
        *({"target": target, "evidence": evidence} for target, evidence in EXECUTED.items()),
        *({"target": f"{kind} ({which})", "evidence": NEVER_EXECUTED} for kind, which in never.items()),
    ]


# Without those of input files and recipes: they import numpy, which is slow.
_REGISTRIES: tuple[Registry[Any], ...] = (
    OPERATORS,
    FAMILIES,
    RULES,
    KINDS,
    RUNNERS,
    TOOLCHAINS,
    LOWERINGS,
    BASELINES,
    STRATEGIES,
    ENGINES,
    RUNS,
    DOORS,
    PLUGGED,
)


def _plugin_facts() -> list[dict[str, Any]]:
    """What installed packages add to deepgen, and why some of it cannot be used."""
    out = []
    for registry in _REGISTRIES:
        why = {broken.name: broken for broken in registry.broken()}
        names = [name for name in registry.names() if name not in registry.own]
        for name in dict.fromkeys((*names, *why)):
            broken = why.get(name)
            out.append({"kind": registry.what, "name": name, "problem": broken.why if broken else None})
    return out


def _processor() -> list[dict[str, Any]]:
    try:
        target = host.processor()
    except DeepgenError as error:
        return [{"kind": "cpu", "name": platform.machine(), "problem": str(error)}]
    return [
        {
            "kind": target.kind,
            "target": target.name,
            "name": target.model,
            "cores": target.cores,
            "isa": list(target.isa),
            "l1d_bytes": target.l1d_bytes,
            "l2_bytes": target.l2_bytes,
            "l3_bytes": target.l3_bytes,
        }
    ]


def _amd_devices(held: list[clocks.Clocks]) -> list[dict[str, Any]]:
    return [{"kind": "hip", "name": c.device.partition(":")[2]} for c in held if c.device.startswith("amd:")]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _remedy(extra: Extra) -> str:
    return " ".join(filter(None, (install_extra(extra.name), extra.spare)))


_HEADERS = {
    "what": "Python.h",
    "why": "Python's headers are not installed",
    "blocks": "the C path for calling loaded kernels: a call from Python costs about 10 us of CPU time",
    "remedy": "Install them with `apt-get install python3-dev`.",
}


def _missing_facts(
    tools: list[dict[str, Any]], packages: list[dict[str, Any]], extras: list[dict[str, Any]]
) -> list[dict[str, str]]:
    """What is missing, what that blocks, and how to get it."""
    compilers = [tool for tool in tools if tool["serves"].startswith("building C kernels")]
    missing = []
    for tool in tools:
        if tool["ok"]:
            continue
        # One C compiler is enough, so a missing second one blocks nothing.
        spare = tool in compilers and any(c["ok"] for c in compilers)
        blocks = "nothing: another C compiler is installed" if spare else tool["serves"]
        missing.append({"what": tool["name"], "why": tool["problem"], "blocks": blocks, "remedy": tool["remedy"]})
    if programs.python_headers() is None:
        missing.append(_HEADERS)
    for package in packages:
        if package["version"] is None and package["name"] == "numpy":
            missing.append(
                {"what": "numpy", "why": "not installed", "blocks": package["serves"], "remedy": package["remedy"]}
            )
    for extra in extras:
        lacking = [name for name, version in extra["packages"].items() if version is None]
        if lacking and extra["name"] not in ("peers", "site"):  # these are not needed for tuning
            spare = extra["name"] == "zig" and any(c["ok"] for c in compilers)
            blocks = "nothing: a C compiler is installed" if spare else extra["serves"]
            why = f"{', '.join(lacking)} not installed"
            missing.append({"what": f"extra {extra['name']}", "why": why, "blocks": blocks, "remedy": extra["remedy"]})
    return missing
