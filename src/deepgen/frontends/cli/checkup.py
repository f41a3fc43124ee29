"""What `deepgen doctor` finds out: this machine, its devices, tools, packages, clocks and settings."""

from __future__ import annotations

import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import deepgen
from deepgen.baselines import BASELINES
from deepgen.compiler.rules.rule import RULES
from deepgen.frontends.cli import clocks
from deepgen.frontends.cli.engines import ENGINES
from deepgen.frontends.cli.main import PLUGGED
from deepgen.generators import FAMILIES
from deepgen.operators import OPERATORS
from deepgen.report.serve.places import RUNS
from deepgen.run.measure import RUNNERS
from deepgen.settings import Settings
from deepgen.targets import KINDS, host
from deepgen.targets.gpu_facts import CUDA_ARCHES, HIP_ARCHES
from deepgen.toolchains import TOOLCHAINS, programs, survey
from deepgen.tuning.search import STRATEGIES
from deepgen.vocabulary.errors import DeepgenError, install_extra
from deepgen.vocabulary.registry import DOORS, LOWERINGS, Registry


@dataclass(frozen=True)
class Package:
    """A Python package that deepgen can use."""

    name: str
    serves: str
    remedy: str


PACKAGES = (
    Package("numpy", "the reference results and the numpy baseline", "pip install numpy"),
    Package("torch", "the torch baseline, which is oneDNN on CPUs", install_extra("torch")),
    Package("ziglang", "building C kernels on a machine without a compiler", install_extra("zig")),
    Package("zstandard", "bundles that end in .tar.zst", f"{install_extra('bundle')} Or name them .tar.gz."),
    Package("ortools", "sampling spaces that are too wide to be counted", install_extra("solver")),
    Package("ray", "tuning on several machines at once", install_extra("cluster")),
    Package("asyncssh", "hosts of a cluster that are reached over SSH", install_extra("cluster")),
)


# Architectures whose kernels have run on a device of theirs. All others are told apart, here as in docs/gpu.md.
EXECUTED = {
    "x86": "executed and measured",
    "arm": "executed and measured on a Neoverse N1",
    "cuda:sm_90a": "executed and measured on an NVIDIA H200",
    "riscv": "executed and counted under qemu, never on a board",
}
NEVER_EXECUTED = "compiled and emulated, never executed here"


def examine(settings: Settings, root: Path = Path("/")) -> dict[str, Any]:
    """Everything, as one JSON object."""
    gpus = clocks.nvidia_gpus(shutil.which("nvidia-smi"))
    held = [clocks.cpu(root), *(clocks.nvidia(gpu) for gpu in gpus), *clocks.amd(root)]
    tools = [{**asdict(tool), "ok": tool.ok} for tool in survey(settings.programs())]
    packages = [_package(package) for package in PACKAGES]
    return {
        "deepgen": deepgen.__version__,
        "python": {"version": platform.python_version(), "path": sys.executable},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "devices": [*_processor(), *({"kind": "cuda", **asdict(gpu)} for gpu in gpus), *_amd_devices(held)],
        "toolchains": tools,
        "targets": _targets(),
        "packages": packages,
        "plugins": _plugins(),
        "missing": _missing(tools, packages),
        "clocks": [c.to_json() for c in held],
        "settings": [
            {"key": key, "value": str(value) if isinstance(value, Path) else value, "from": settings.source(key)}
            for key, value in settings.values().items()
        ],
    }


def _targets() -> list[dict[str, str]]:
    """What deepgen compiles for, and whether such kernels were ever run."""
    cuda = [arch for arch in CUDA_ARCHES if arch != "sm_90a"]
    never = {"cuda": ", ".join(cuda), "hip": ", ".join(HIP_ARCHES), "hip:z100": "the Hygon DCU, a gfx906"}
    return [
        *({"target": target, "evidence": evidence} for target, evidence in EXECUTED.items()),
        *({"target": f"{kind} ({which})", "evidence": NEVER_EXECUTED} for kind, which in never.items()),
    ]


# Those of input files and recipes are not among them: they take numpy, which is not waited for here.
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


def _plugins() -> list[dict[str, Any]]:
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


def _package(package: Package) -> dict[str, Any]:
    try:
        version: str | None = metadata.version(package.name)
    except metadata.PackageNotFoundError:
        version = None
    return {**asdict(package), "version": version}


_HEADERS = {
    "what": "Python.h",
    "why": "Python's headers are not here",
    "blocks": "calls of loaded kernels in C: in Python a call takes the processor some 10 us",
    "remedy": "Install them with `apt-get install python3-dev`.",
}


def _missing(tools: list[dict[str, Any]], packages: list[dict[str, Any]]) -> list[dict[str, str]]:
    """What is not here, what that blocks, and how to get it."""
    compilers = [tool for tool in tools if tool["serves"].startswith("building C kernels")]
    missing = []
    for tool in tools:
        if tool["ok"]:
            continue
        # Any one C compiler is enough, so a second one that is not here blocks nothing.
        spare = tool in compilers and any(c["ok"] for c in compilers)
        blocks = "nothing: another C compiler is here" if spare else tool["serves"]
        missing.append({"what": tool["name"], "why": tool["problem"], "blocks": blocks, "remedy": tool["remedy"]})
    if programs.python_headers() is None:
        missing.append(_HEADERS)
    for package in packages:
        if package["version"] is None:
            spare = package["name"] == "ziglang" and any(c["ok"] for c in compilers)
            blocks = "nothing: a C compiler is here" if spare else package["serves"]
            missing.append(
                {"what": package["name"], "why": "not installed", "blocks": blocks, "remedy": package["remedy"]}
            )
    return missing
