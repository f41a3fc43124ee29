"""Kernel and Artifact: what a generator emits and what a toolchain makes of it. Pure data, JSON both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from deepgen.vocabulary.json import Json, JsonObject, digest

# A size in a launch plan: a number, or an expression over the operator's scalars such as "ceil_div(M, 128)".
Size: TypeAlias = "int | str"


@dataclass(frozen=True)
class Source:
    """One file of a kernel."""

    name: str
    text: str


@dataclass(frozen=True)
class TensorArg:
    """The address of one of the operator's tensors."""

    tensor: str


@dataclass(frozen=True)
class ScalarArg:
    """A number, passed as `ctype` (i32, i64, f32, f64): a literal or an expression over the operator's scalars."""

    ctype: str
    value: int | float | str


@dataclass(frozen=True)
class WorkspaceArg:
    """The address of scratch memory. Steps that name the same workspace share it.

    It is `zeroed` before every run, or, when it is `lasting`, before the first only: a run finds what the last left.
    """

    name: str
    bytes: Size
    zeroed: bool = False
    align: int = 64
    lasting: bool = False


@dataclass(frozen=True)
class TensorMapArg:
    """A descriptor for the bulk tensor copy engine, made from its spec when the kernel is loaded."""

    tensor: str
    spec: Mapping[str, Json] = field(default_factory=dict)


Arg: TypeAlias = "TensorArg | ScalarArg | WorkspaceArg | TensorMapArg"
_ARGS: dict[str, type[Any]] = {
    "tensor": TensorArg,
    "scalar": ScalarArg,
    "workspace": WorkspaceArg,
    "tensor_map": TensorMapArg,
}


@dataclass(frozen=True)
class Step:
    """One call: an entry point with its arguments; grid, block, cluster and shared bytes matter on GPUs only."""

    entry: str
    args: tuple[Arg, ...]
    grid: tuple[Size, ...] = (1, 1, 1)
    block: tuple[Size, ...] = (1, 1, 1)
    cluster: tuple[int, ...] = (1, 1, 1)
    shared_bytes: Size = 0


@dataclass(frozen=True)
class LaunchPlan:
    """The steps of one run of a kernel, in order. `prepare` steps run once, before any timing (prepacking)."""

    steps: tuple[Step, ...]
    prepare: tuple[Step, ...] = ()
    requires: tuple[tuple[str, str], ...] = ()  # what a shape must satisfy, over the operator's scalars, and in words


@dataclass(frozen=True)
class Kernel:
    """Sources, build flags and a launch plan, identified by the hash of its content."""

    name: str
    language: str  # c, cuda, hip, triton, sim
    sources: tuple[Source, ...]  # the first is the one to compile; the others are what it includes
    flags: tuple[str, ...]
    plan: LaunchPlan

    @cached_property
    def id(self) -> str:
        return digest(self.to_json())

    def to_json(self) -> JsonObject:
        return {
            "name": self.name,
            "language": self.language,
            "sources": [{"name": s.name, "text": s.text} for s in self.sources],
            "flags": list(self.flags),
            "plan": _plan_to_json(self.plan),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Kernel:
        return Kernel(
            name=data["name"],
            language=data["language"],
            sources=tuple(Source(s["name"], s["text"]) for s in data["sources"]),
            flags=tuple(data["flags"]),
            plan=_plan_from_json(data["plan"]),
        )


@dataclass(frozen=True)
class Artifact:
    """A built kernel: where its binary lies and what the toolchain told of it."""

    kernel_id: str
    binary: str  # path of the binary in the cache
    format: str  # so, cubin, hsaco, sim
    toolchain: str  # name and version
    facts: Mapping[str, Json]  # registers, spills, shared bytes, code bytes: whatever the toolchain says
    seconds: float  # what the build took when it was made
    log: str = ""

    def to_json(self) -> JsonObject:
        return {
            "kernel_id": self.kernel_id,
            "binary": self.binary,
            "format": self.format,
            "toolchain": self.toolchain,
            "facts": dict(self.facts),
            "seconds": self.seconds,
            "log": self.log,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Artifact:
        return Artifact(**data)


def _plan_to_json(plan: LaunchPlan) -> JsonObject:
    out: JsonObject = {
        "prepare": [_step_to_json(s) for s in plan.prepare],
        "steps": [_step_to_json(s) for s in plan.steps],
    }
    # Left out when empty: a kernel that serves every shape keeps the id that it had before there were requirements.
    if plan.requires:
        out["requires"] = [list(pair) for pair in plan.requires]
    return out


def _plan_from_json(data: Mapping[str, Any]) -> LaunchPlan:
    return LaunchPlan(
        steps=tuple(_step_from_json(s) for s in data["steps"]),
        prepare=tuple(_step_from_json(s) for s in data["prepare"]),
        requires=tuple((expression, words) for expression, words in data.get("requires", ())),
    )


def _step_to_json(step: Step) -> JsonObject:
    kinds = {cls: kind for kind, cls in _ARGS.items()}
    args: list[Json] = []
    for arg in step.args:
        fields = {k: (dict(v) if isinstance(v, Mapping) else v) for k, v in vars(arg).items()}
        if not fields.get("lasting", True):
            del fields["lasting"]  # as with `requires`: older kernels keep their ids
        args.append({"kind": kinds[type(arg)], **fields})
    return {
        "entry": step.entry,
        "args": args,
        "grid": list(step.grid),
        "block": list(step.block),
        "cluster": list(step.cluster),
        "shared_bytes": step.shared_bytes,
    }


def _step_from_json(data: Mapping[str, Any]) -> Step:
    args = []
    for arg in data["args"]:
        fields = dict(arg)
        args.append(_ARGS[fields.pop("kind")](**fields))
    return Step(
        entry=data["entry"],
        args=tuple(args),
        grid=tuple(data["grid"]),
        block=tuple(data["block"]),
        cluster=tuple(data["cluster"]),
        shared_bytes=data["shared_bytes"],
    )
