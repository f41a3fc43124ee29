"""Winners on disk: a folder with the kernel's sources, its definition and its binary."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepgen.tuning.study import trust
from deepgen.vocabulary import Artifact, BadInput, DeepgenError, JsonObject, Kernel, LaunchPlan, foreign
from deepgen.vocabulary.folders import remove_tree

WINNER = "winner"  # the folder in a study
ABOUT = "about.json"
_KERNEL, _PLAN, _HASH, _SIGNATURE = "kernel.json", "plan.json", "binary.sha256", "signature"
_MOST_LINE = 4096  # size limit of the small files, in bytes
_MOST_VALUES = 200_000  # JSON values of a kernel, each of its sources being one
_MOST_BINARY = 1 << 30


@dataclass(frozen=True)
class Stored:
    """A kernel read from a folder. Without a binary it must be rebuilt."""

    kernel: Kernel
    binary: Path | None
    plan: LaunchPlan | None  # as the build completed it
    own: bool  # whether this user's deepgen wrote kernel and binary
    sha256: str  # the expected hash of the binary


def keep_winner(
    study: Path, operator: JsonObject, target: str, config: Mapping[str, Any], kernel: Kernel, artifact: Artifact
) -> None:
    """Copy the winner's source and binary into its study, where they outlive the cache and changes of the generator."""
    about = {"operator": operator, "config": dict(config), "target": target, "toolchain": artifact.toolchain}
    write_winner(study / WINNER, kernel, artifact, json.dumps(about, indent=2))


def write_winner(folder: Path, kernel: Kernel, artifact: Artifact, about: str) -> None:
    """Write all files to a new folder, then swap it in, so that readers never see half a winner."""
    from deepgen.toolchains.compilers.judge import write_sources  # imported late: reading a study builds nothing

    # A fixed name: only the holder of the study's lock writes, and it removes leftovers of a killed writer.
    fresh = folder.with_name(f"{folder.name}.new")
    remove_tree(fresh)
    fresh.mkdir(parents=True)
    write_sources(kernel, fresh)
    binary = fresh / f"kernel.{artifact.format}"
    shutil.copyfile(artifact.binary, binary)
    (fresh / _HASH).write_text(f"{sha256(binary)}  {binary.name}\n")
    if (signature := trust.sign(_signed(kernel, sha256(binary), artifact.plan))) is not None:
        (fresh / _SIGNATURE).write_text(signature)
    (fresh / _KERNEL).write_text(json.dumps(kernel.to_json()))
    if artifact.plan is not None:
        (fresh / _PLAN).write_text(json.dumps(artifact.plan.to_json()))
    (fresh / ABOUT).write_text(about)
    remove_tree(folder)
    fresh.replace(folder)


def built_by(study: Path) -> str | None:
    """The toolchain that built the winner, as its study's folder says; None without a winner, or if it is damaged."""
    try:
        about = foreign.read_json(study / WINNER / ABOUT, most=1 << 20, plain=True)
    except (DeepgenError, OSError):
        return None
    return str(about["toolchain"]) if isinstance(about, dict) and "toolchain" in about else None


def read_winner(folder: Path) -> Stored | None:
    """The stored winner; None if there is none or it is damaged. A modified binary is not used."""
    try:
        return stored_winner(folder)
    except (DeepgenError, OSError):
        return None  # the caller emits and rebuilds it, and compares its hash


def stored_winner(folder: Path) -> Stored:
    """The stored winner. Raises BadInput if it is damaged; a modified binary is left out."""
    kernel, plan = _kernel(folder)
    with foreign.shaped(str(folder / _HASH), "is not a checksum"):
        expected, name = foreign.read_bytes(folder / _HASH, most=_MOST_LINE, plain=True).decode().split()
    binary = folder / Path(name).name
    good = binary.is_file() and binary.stat().st_size <= _MOST_BINARY and sha256(binary) == expected
    own = trust.is_own(_signed(kernel, expected, plan), _signature(folder))
    return Stored(kernel, binary if good else None, plan, own, expected)


def _kernel(folder: Path) -> tuple[Kernel, LaunchPlan | None]:
    data = foreign.read_json(folder / _KERNEL, plain=True, values=_MOST_VALUES)
    planned = (folder / _PLAN).exists()
    completed = foreign.read_json(folder / _PLAN, plain=True, values=_MOST_VALUES) if planned else None
    with foreign.shaped(str(folder), "holds no winner"):
        return Kernel.from_json(data), None if completed is None else LaunchPlan.from_json(completed)


def _signed(kernel: Kernel, binary: str, plan: LaunchPlan | None) -> JsonObject:
    signed: JsonObject = {"winner": kernel.id, "binary": binary}
    return signed if plan is None else {**signed, "plan": plan.to_json()}


def _signature(folder: Path) -> str | None:
    try:
        return foreign.read_bytes(folder / _SIGNATURE, most=_MOST_LINE, plain=True).decode().strip()
    except (BadInput, UnicodeDecodeError):
        return None


def sha256(path: Path) -> str:
    """The hash of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
