"""Kernel and Artifact: what a generator emits and what a toolchain builds from it. Pure data, to and from JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

from deepgen.vocabulary.codec import Serializable, coded
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import Json, JsonObject, digest

# A size in a launch plan: a number, or an expression over the operator's scalars such as "ceil_div(M, 128)".
Size: TypeAlias = "int | str"
# Of fields that are newer than some kernels: these keep their ids.
_OMITTED = coded(omit=True)
GPU_ALIGN = 16  # bytes that every tensor's address on a GPU is a multiple of: kernels load up to 16 at once


@dataclass(frozen=True)
class Source:
    """One file of a kernel."""

    name: str
    text: str


@dataclass(frozen=True)
class TensorArg:
    """The address of one of the operator's tensors."""

    json_kind: ClassVar[str] = "tensor"
    tensor: str


@dataclass(frozen=True)
class ScalarArg:
    """A number, passed as `ctype` (i32, i64, f32, f64): a literal or an expression over the operator's scalars."""

    json_kind: ClassVar[str] = "scalar"
    ctype: str
    value: int | float | str


@dataclass(frozen=True)
class WorkspaceArg:
    """The address of scratch memory. Steps that name the same workspace share it.

    It is `zeroed` before every run, or, when it is `lasting`, before the first only: a run finds what the last left.
    """

    json_kind: ClassVar[str] = "workspace"
    name: str
    bytes: Size
    zeroed: bool = False
    align: int = 64
    lasting: bool = field(default=False, metadata=_OMITTED)


@dataclass(frozen=True)
class TensorMapSpec(Serializable):
    """A tensor map: how the bulk tensor copy engine of NVIDIA's GPUs finds the tiles of a tensor.

    `box` is the tile in elements, innermost dimension first; `swizzle` is none, 32, 64 or 128 bytes; `l2`, how many
    bytes are fetched into that cache at a time, is none, 64, 128 or 256. `sizes` (innermost first) and `strides`
    (bytes, of all dimensions but the innermost) are those of the tensor unless they are given.

    With `lower` the map gathers the windows of a convolution over channels, columns, rows and images: `box` is channels
    and pixels. Pixels are where windows begin, `steps` apart, from `lower` (column and row) up to the size and `upper`.
    """

    box: tuple[Size, ...]
    swizzle: str | None = field(default=None, metadata=_OMITTED)  # as if "none"
    l2: str | None = field(default=None, metadata=_OMITTED)  # as if "128"
    sizes: tuple[Size, ...] | None = field(default=None, metadata=_OMITTED)
    strides: tuple[Size, ...] | None = field(default=None, metadata=_OMITTED)
    lower: tuple[Size, ...] | None = field(default=None, metadata=_OMITTED)
    upper: tuple[Size, ...] | None = field(default=None, metadata=_OMITTED)
    steps: tuple[Size, ...] | None = field(default=None, metadata=_OMITTED)

    @property
    def expressions(self) -> tuple[Size, ...]:
        """What depends on the shape."""
        parts = (self.sizes, self.strides, self.lower, self.upper, self.steps)
        return tuple(size for part in parts for size in part or ())


@dataclass(frozen=True)
class DescriptorArg:
    """A descriptor of a tensor in a hardware's own form, passed by value and made from its spec at run time.

    Or of a copy of it, by the name of the workspace in which an earlier step has made one.
    """

    json_kind: ClassVar[str] = "tensor_map"
    tensor: str
    spec: TensorMapSpec
    copy: str | None = field(default=None, metadata=_OMITTED)


Arg: TypeAlias = "TensorArg | ScalarArg | WorkspaceArg | DescriptorArg"


@dataclass(frozen=True)
class Step:
    """One call: an entry point with its arguments; all else matters on GPUs only.

    A step that `overlaps` may begin before the one ahead of it has ended. It waits itself before it uses what that
    writes, so that it is correct without the overlap too.
    """

    entry: str
    args: tuple[Arg, ...]
    grid: tuple[Size, ...] = (1, 1, 1)
    block: tuple[Size, ...] = (1, 1, 1)
    cluster: tuple[int, ...] = (1, 1, 1)
    shared_bytes: Size = 0
    overlaps: bool = field(default=False, metadata=_OMITTED)


@dataclass(frozen=True)
class ConstantCopy:
    """A tensor that the kernel reads from a global variable, such as one in a GPU's constant memory."""

    symbol: str
    tensor: str


@dataclass(frozen=True)
class LaunchPlan(Serializable):
    """The steps of one run of a kernel, in order. `prepare` steps run once, before any timing (prepacking).

    The tensors passed to `prepare` are constant: runs may rely on what was derived from them. All others may have
    different contents in every run, at the same addresses.

    Before the steps of every run the bytes of `constants` are copied to their symbols. There is one symbol for all
    calls: on GPUs, runs of such a kernel on several streams must not overlap.
    """

    steps: tuple[Step, ...]
    prepare: tuple[Step, ...] = field(default=(), metadata=coded(first=True))
    # What a shape must satisfy: a condition over the operator's scalars, and the same in words.
    requires: tuple[tuple[str, str], ...] = field(default=(), metadata=_OMITTED)
    constants: tuple[ConstantCopy, ...] = field(default=(), metadata=_OMITTED)
    exclusive: bool = field(default=False, metadata=_OMITTED)  # one call at a time: found wrong otherwise, or not tried


@dataclass(frozen=True)
class Kernel(Serializable):
    """Sources, build flags and a launch plan, identified by the hash of its content."""

    name: str
    language: str  # c, cuda, hip, triton, sim
    sources: tuple[Source, ...]  # the first is the one to compile; the others are what it includes
    flags: tuple[str, ...]
    plan: LaunchPlan
    # As `requires` of a plan, but implied by sources and flags, and so not part of the id.
    implied: tuple[tuple[str, str], ...] = field(default=(), metadata=_OMITTED)

    @cached_property
    def id(self) -> str:
        return digest({key: value for key, value in self.to_json().items() if key != "implied"})

    @property
    def requirements(self) -> tuple[tuple[str, str], ...]:
        """All that a shape must satisfy."""
        return (*self.plan.requires, *self.implied)

    def without_sources(self) -> Kernel:
        """All that is needed besides the binary to run it. It has a different id."""
        return replace(self, sources=())


@dataclass(frozen=True)
class Artifact(Serializable):
    """A built kernel: the path of its binary and the build's statistics."""

    kernel_id: str
    binary: str  # path of the binary in the cache
    format: str  # so, cubin, hsaco, sim
    toolchain: str  # name and version
    facts: Mapping[str, Json]  # registers, spills, shared bytes, code bytes: whatever the toolchain says
    seconds: float  # what the build took when it was made
    log: str = ""
    # The kernel's own, with what only the compiler knows; None: as it was.
    plan: LaunchPlan | None = field(default=None, metadata=_OMITTED)


def completed(kernel: Kernel, plan: LaunchPlan | None) -> Kernel:
    """The kernel as launched: with the plan that its build completed, if it did.

    Only what launches it may have it: a trial knows its kernel by the id that it was emitted with.
    """
    return kernel if plan is None else replace(kernel, plan=plan)


# What is known of a parameter's value: a multiple of 16; a tensor of less than 2 GB.
DIVISIBLE, NEAR = "divisible", "near"
_VERSION, _KEY, _ENTRY = "--triton=", "--key=", "--entry="
_PARAMETER, _CONSTANT, _OPTION = "--parameter=", "--constant=", "--option="


@dataclass(frozen=True)
class TritonUnit:
    """`version` is the compiler's, `key` Triton's own digest of the function and of all that it calls."""

    version: str
    key: str
    entry: str
    parameters: Mapping[str, Sequence[str]]  # in their order: the type, such as *fp32, then what is known of the value
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def flags(self) -> tuple[str, ...]:
        return (
            _VERSION + self.version,
            _KEY + self.key,
            _ENTRY + self.entry,
            *(f"{_PARAMETER}{name}:{json.dumps(list(types))}" for name, types in self.parameters.items()),
            *(f"{_CONSTANT}{name}:{json.dumps(value)}" for name, value in self.constants.items()),
            *(f"{_OPTION}{name}:{json.dumps(value)}" for name, value in self.options.items()),
        )

    def to_json(self) -> JsonObject:
        return {
            "entry": self.entry,
            "parameters": {name: list(types) for name, types in self.parameters.items()},
            "constants": dict(self.constants),
            "options": dict(self.options),
        }


def from_flags(flags: Sequence[str]) -> TritonUnit:
    """Raises BadInput where they are not flags of a Triton kernel."""
    try:
        return TritonUnit(
            version=_only(flags, _VERSION),
            key=_only(flags, _KEY),
            entry=_only(flags, _ENTRY),
            parameters=_named(flags, _PARAMETER),
            constants=_named(flags, _CONSTANT),
            options=_named(flags, _OPTION),
        )
    except (StopIteration, ValueError) as error:
        raise BadInput("a Triton kernel lacks its compile options", allowed="a kernel from `dg.kernel`") from error


def _only(flags: Sequence[str], kind: str) -> str:
    return next(flag[len(kind) :] for flag in flags if flag.startswith(kind))


def _named(flags: Sequence[str], kind: str) -> dict[str, Any]:
    pairs = (flag[len(kind) :].partition(":") for flag in flags if flag.startswith(kind))
    return {name: json.loads(value) for name, _, value in pairs}
