"""Kernel and Artifact: what a generator emits and what a toolchain makes of it. Pure data, JSON both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeAlias

from deepgen.vocabulary.errors import BadInput
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
class TensorMapSpec:
    """A tensor map: how the bulk tensor copy engine of NVIDIA's GPUs finds the tiles of a tensor.

    `box` is the tile in elements, innermost dimension first; `swizzle` is none, 32, 64 or 128 bytes; `l2`, how many
    bytes are fetched into that cache at a time, is none, 64, 128 or 256. `sizes` (innermost first) and `strides`
    (bytes, of all dimensions but the innermost) are those of the tensor unless they are given.
    """

    box: tuple[Size, ...]
    swizzle: str | None = None  # as if "none"
    l2: str | None = None  # as if "128"
    sizes: tuple[Size, ...] | None = None
    strides: tuple[Size, ...] | None = None

    def to_json(self) -> JsonObject:
        """What is given, in this order: kernels keep the ids that they had before specs were typed."""
        told = {name: value for name, value in vars(self).items() if value is not None}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TensorMapSpec:
        known = [f.name for f in fields(TensorMapSpec)]
        if "box" not in data or set(data) - set(known):
            raise BadInput(f"a tensor map's spec has {', '.join(data) or 'nothing'}", allowed=", ".join(known))
        told: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return TensorMapSpec(**told)


# The kinds of descriptors by their names in files. A new kind is one entry here and one encoder in the runtime.
DescriptorSpec: TypeAlias = "TensorMapSpec"
_DESCRIPTORS: dict[str, type[DescriptorSpec]] = {"tensor_map": TensorMapSpec}


@dataclass(frozen=True)
class DescriptorArg:
    """A descriptor of a tensor in a hardware's own form, passed by value and made from its spec at run time."""

    tensor: str
    spec: DescriptorSpec


Arg: TypeAlias = "TensorArg | ScalarArg | WorkspaceArg | DescriptorArg"
_ARGS: dict[str, type[Any]] = {"tensor": TensorArg, "scalar": ScalarArg, "workspace": WorkspaceArg}


@dataclass(frozen=True)
class Step:
    """One call: an entry point with its arguments; all else matters on GPUs only.

    A step that `overlaps` may begin before the one ahead of it has ended. It waits itself before it uses what that
    writes, so that it is right without the overlap too.
    """

    entry: str
    args: tuple[Arg, ...]
    grid: tuple[Size, ...] = (1, 1, 1)
    block: tuple[Size, ...] = (1, 1, 1)
    cluster: tuple[int, ...] = (1, 1, 1)
    shared_bytes: Size = 0
    overlaps: bool = False


@dataclass(frozen=True)
class ConstantCopy:
    """A tensor that the kernel reads from a global variable, such as one in a GPU's constant memory."""

    symbol: str
    tensor: str


@dataclass(frozen=True)
class LaunchPlan:
    """The steps of one run of a kernel, in order. `prepare` steps run once, before any timing (prepacking).

    The tensors that `prepare` is given are declared constant: runs may count on what was made of them. All others may
    hold other numbers in every run, at the same addresses.

    Before the steps of every run the bytes of `constants` are copied to their symbols. There is one symbol for all
    calls: on GPUs, runs of such a kernel on several streams must not overlap.
    """

    steps: tuple[Step, ...]
    prepare: tuple[Step, ...] = ()
    requires: tuple[tuple[str, str], ...] = ()  # what a shape must satisfy, over the operator's scalars, and in words
    constants: tuple[ConstantCopy, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """Sources, build flags and a launch plan, identified by the hash of its content."""

    name: str
    language: str  # c, cuda, hip, triton, sim
    sources: tuple[Source, ...]  # the first is the one to compile; the others are what it includes
    flags: tuple[str, ...]
    plan: LaunchPlan
    # As `requires` of a plan, but implied by sources and flags, and so not part of the id.
    implied: tuple[tuple[str, str], ...] = ()

    @cached_property
    def id(self) -> str:
        return digest({key: told for key, told in self.to_json().items() if key != "implied"})

    @property
    def requirements(self) -> tuple[tuple[str, str], ...]:
        """All that a shape must satisfy."""
        return (*self.plan.requires, *self.implied)

    def without_sources(self) -> Kernel:
        """All that is needed beside the binary to run it. Its id is another one."""
        return replace(self, sources=())

    def to_json(self) -> JsonObject:
        implied: JsonObject = {"implied": [list(pair) for pair in self.implied]} if self.implied else {}
        return {
            "name": self.name,
            "language": self.language,
            "sources": [{"name": s.name, "text": s.text} for s in self.sources],
            "flags": list(self.flags),
            "plan": plan_to_json(self.plan),
            **implied,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Kernel:
        return Kernel(
            name=data["name"],
            language=data["language"],
            sources=tuple(Source(s["name"], s["text"]) for s in data["sources"]),
            flags=tuple(data["flags"]),
            plan=plan_from_json(data["plan"]),
            implied=tuple((expression, words) for expression, words in data.get("implied", ())),
        )


@dataclass(frozen=True)
class Artifact:
    """A built kernel: the path of its binary and the build's statistics."""

    kernel_id: str
    binary: str  # path of the binary in the cache
    format: str  # so, cubin, hsaco, sim
    toolchain: str  # name and version
    facts: Mapping[str, Json]  # registers, spills, shared bytes, code bytes: whatever the toolchain says
    seconds: float  # what the build took when it was made
    log: str = ""
    plan: LaunchPlan | None = None  # the kernel's own, with what only the compiler knows; None: as it was

    def to_json(self) -> JsonObject:
        out: JsonObject = {
            "kernel_id": self.kernel_id,
            "binary": self.binary,
            "format": self.format,
            "toolchain": self.toolchain,
            "facts": dict(self.facts),
            "seconds": self.seconds,
            "log": self.log,
        }
        if self.plan is not None:
            out["plan"] = plan_to_json(self.plan)
        return out

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Artifact:
        plan = {"plan": plan_from_json(data["plan"])} if "plan" in data else {}
        return Artifact(**{**data, **plan})


def completed(kernel: Kernel, plan: LaunchPlan | None) -> Kernel:
    """The kernel as it is launched: with the plan that its build completed, where it did.

    Only what launches it may have it: a trial knows its kernel by the id that it was emitted with.
    """
    return kernel if plan is None else replace(kernel, plan=plan)


def plan_to_json(plan: LaunchPlan) -> JsonObject:
    out: JsonObject = {
        "prepare": [_step_to_json(s) for s in plan.prepare],
        "steps": [_step_to_json(s) for s in plan.steps],
    }
    # Left out when empty: a kernel that serves every shape keeps the id that it had before there were requirements.
    if plan.requires:
        out["requires"] = [list(pair) for pair in plan.requires]
    if plan.constants:
        out["constants"] = [{"symbol": c.symbol, "tensor": c.tensor} for c in plan.constants]
    return out


def plan_from_json(data: Mapping[str, Any]) -> LaunchPlan:
    return LaunchPlan(
        steps=tuple(_step_from_json(s) for s in data["steps"]),
        prepare=tuple(_step_from_json(s) for s in data["prepare"]),
        requires=tuple((expression, words) for expression, words in data.get("requires", ())),
        constants=tuple(ConstantCopy(c["symbol"], c["tensor"]) for c in data.get("constants", ())),
    )


def _step_to_json(step: Step) -> JsonObject:
    args: list[Json] = [_arg_to_json(arg) for arg in step.args]
    out: JsonObject = {
        "entry": step.entry,
        "args": args,
        "grid": list(step.grid),
        "block": list(step.block),
        "cluster": list(step.cluster),
        "shared_bytes": step.shared_bytes,
    }
    if step.overlaps:  # left out elsewhere: kernels keep their ids
        out["overlaps"] = True
    return out


def _step_from_json(data: Mapping[str, Any]) -> Step:
    return Step(
        entry=data["entry"],
        args=tuple(_arg_from_json(arg) for arg in data["args"]),
        grid=tuple(data["grid"]),
        block=tuple(data["block"]),
        cluster=tuple(data["cluster"]),
        shared_bytes=data["shared_bytes"],
        overlaps=data.get("overlaps", False),
    )


def _arg_to_json(arg: Arg) -> JsonObject:
    if isinstance(arg, DescriptorArg):
        return {"kind": _kind(_DESCRIPTORS, arg.spec), "tensor": arg.tensor, "spec": arg.spec.to_json()}
    told = dict(vars(arg))
    if not told.get("lasting", True):
        del told["lasting"]  # as with `requires`: older kernels keep their ids
    return {"kind": _kind(_ARGS, arg), **told}


def _arg_from_json(data: Mapping[str, Any]) -> Arg:
    told = dict(data)
    kind = told.pop("kind")
    if kind in _DESCRIPTORS:
        return DescriptorArg(told["tensor"], _DESCRIPTORS[kind].from_json(told["spec"]))
    if kind not in _ARGS:
        raise BadInput(f"a kernel takes an argument of kind {kind!r}", allowed=", ".join((*_ARGS, *_DESCRIPTORS)))
    made: Arg = _ARGS[kind](**told)
    return made


def _kind(kinds: Mapping[str, type[Any]], value: object) -> str:
    return next(kind for kind, of in kinds.items() if type(value) is of)
