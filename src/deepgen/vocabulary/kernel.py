"""Kernel and Artifact: what a generator emits, and what a toolchain builds from it. Pure data, with JSON forms."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

from deepgen.vocabulary.codec import Serializable, coded
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import Json, JsonObject, digest

# A size in a launch plan: a number, or an expression over the operator's scalars, such as "ceil_div(M, 128)".
Size: TypeAlias = "int | str"
# For fields that were added later, so that existing kernels keep their ids.
_OMITTED = coded(omit=True)
GPU_ALIGN = 16  # the alignment in bytes of every tensor's address on a GPU: kernels load up to 16 bytes at once


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

    It is `zeroed` before every run or, if `lasting`, only before the first: a run then finds the data of the previous
    run.
    """

    json_kind: ClassVar[str] = "workspace"
    name: str
    bytes: Size
    zeroed: bool = False
    align: int = 64
    lasting: bool = field(default=False, metadata=_OMITTED)


@dataclass(frozen=True)
class TensorMapSpec(Serializable):
    """A tensor map, with which the bulk tensor copy engine of NVIDIA GPUs finds the tiles of a tensor.

    `box` is the tile in elements, innermost dimension first; `swizzle` is none, 32, 64 or 128 bytes; `l2`, the bytes
    fetched into the L2 cache at a time, is none, 64, 128 or 256. `sizes` (innermost first) and `strides` (in bytes, for
    all dimensions except the innermost) default to those of the tensor.

    With `lower` the map gathers the windows of a convolution over channels, columns, rows and images: `box` is channels
    and pixels. Pixels are the starting points of windows, `steps` apart, from `lower` (column and row) up to the size
    plus `upper`.
    """

    box: tuple[Size, ...]
    swizzle: str | None = field(default=None, metadata=_OMITTED)  # equivalent to "none"
    l2: str | None = field(default=None, metadata=_OMITTED)  # equivalent to "128"
    sizes: tuple[Size, ...] | None = field(default=None, metadata=_OMITTED)
    strides: tuple[Size, ...] | None = field(default=None, metadata=_OMITTED)
    lower: tuple[Size, ...] | None = field(default=None, metadata=_OMITTED)
    upper: tuple[Size, ...] | None = field(default=None, metadata=_OMITTED)
    steps: tuple[Size, ...] | None = field(default=None, metadata=_OMITTED)

    @property
    def expressions(self) -> tuple[Size, ...]:
        """The values that may depend on the shape."""
        parts = (self.sizes, self.strides, self.lower, self.upper, self.steps)
        return tuple(size for part in parts for size in part or ())


@dataclass(frozen=True)
class DescriptorArg:
    """A hardware descriptor of a tensor, passed by value and created from its spec at run time.

    `copy` is for a descriptor of a copy of the tensor: the workspace in which an earlier step has made the copy.
    """

    json_kind: ClassVar[str] = "tensor_map"
    tensor: str
    spec: TensorMapSpec
    copy: str | None = field(default=None, metadata=_OMITTED)


Arg: TypeAlias = "TensorArg | ScalarArg | WorkspaceArg | DescriptorArg"


@dataclass(frozen=True)
class Step:
    """One call: an entry point with its arguments; the other fields are only for GPUs.

    A step that `overlaps` may begin before the previous one has ended. The kernel itself waits before it uses the
    previous step's results, so it is correct without overlap too.
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
    """A tensor that the kernel reads from a global variable, such as in a GPU's constant memory."""

    symbol: str
    tensor: str


@dataclass(frozen=True)
class LaunchPlan(Serializable):
    """The steps of one run of a kernel, in order. `prepare` steps run once, before any timing (prepacking).

    The tensors passed to `prepare` are constant: runs may use data derived from them. All others may have different
    contents in every run, at the same addresses.

    Before the steps of every run the bytes of `constants` are copied to their symbols. All calls share a symbol, so
    runs of such a kernel on several GPU streams must not overlap.
    """

    steps: tuple[Step, ...]
    prepare: tuple[Step, ...] = field(default=(), metadata=coded(first=True))
    # Requirements on a shape: a condition over the operator's scalars, and the same in words.
    requires: tuple[tuple[str, str], ...] = field(default=(), metadata=_OMITTED)
    constants: tuple[ConstantCopy, ...] = field(default=(), metadata=_OMITTED)
    exclusive: bool = field(default=False, metadata=_OMITTED)  # one call at a time, others are wrong or untested


@dataclass(frozen=True)
class Kernel(Serializable):
    """Sources, build flags and a launch plan, identified by the hash of its content."""

    name: str
    language: str  # c, cuda, hip, triton, sim
    sources: tuple[Source, ...]  # the first is compiled; it includes the others
    flags: tuple[str, ...]
    plan: LaunchPlan
    # Like a plan's `requires`, but implied by sources and flags, and so not part of the id.
    implied: tuple[tuple[str, str], ...] = field(default=(), metadata=_OMITTED)

    @cached_property
    def id(self) -> str:
        return digest({key: value for key, value in self.to_json().items() if key != "implied"})

    @property
    def requirements(self) -> tuple[tuple[str, str], ...]:
        """All requirements on a shape."""
        return (*self.plan.requires, *self.implied)

    def without_sources(self) -> Kernel:
        """The parts needed to run the binary. It has a different id."""
        return replace(self, sources=())


@dataclass(frozen=True)
class Artifact(Serializable):
    """A built kernel: the path of its binary and the build's statistics."""

    kernel_id: str
    binary: str  # its path in the cache
    format: str  # so, cubin, hsaco, sim
    toolchain: str  # name and version
    facts: Mapping[str, Json]  # the toolchain's statistics: registers, spills, shared bytes, code bytes
    seconds: float  # duration of the original build
    log: str = ""
    # The kernel's plan, with facts that only the compiler knows; None: unchanged.
    plan: LaunchPlan | None = field(default=None, metadata=_OMITTED)


def completed(kernel: Kernel, plan: LaunchPlan | None) -> Kernel:
    """The kernel as launched: with the plan completed by its build, if any.

    Use it only for launching: a trial identifies its kernel by the id with which it was emitted.
    """
    return kernel if plan is None else replace(kernel, plan=plan)


# Known properties of a parameter's value: a multiple of 16; a tensor of less than 2 GB.
DIVISIBLE, NEAR = "divisible", "near"
_VERSION, _KEY, _ENTRY = "--triton=", "--key=", "--entry="
_PARAMETER, _CONSTANT, _OPTION = "--parameter=", "--constant=", "--option="


@dataclass(frozen=True)
class TritonUnit:
    """A Triton function to compile. `version` is the compiler's, `key` Triton's digest of the function and calls."""

    version: str
    key: str
    entry: str
    parameters: Mapping[str, Sequence[str]]  # in order: the type, such as *fp32, then known properties of the value
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
    """The unit described by a Triton kernel's flags. Raises BadInput for other flags."""
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


# Keywords, macros predefined by compilers, and functions that are called by unqualified names.
_WORDS = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const const_cast
    consteval constexpr constinit continue decltype default delete do double dynamic_cast else enum explicit export
    extern false float for friend fortran goto if inline int long mutable namespace new noexcept not not_eq nullptr
    operator or or_eq private protected public register reinterpret_cast requires restrict return short signed sizeof
    static static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename
    typeof union unsigned using virtual void volatile wchar_t while xor xor_eq
    arm far hypot i386 linux mips near pascal sparc sun unix vax errno stdin stdout stderr environ assert complex
    imaginary alloca malloc calloc realloc free memcpy memmove memset memcmp abort exit printf
    blockDim blockIdx gridDim threadIdx warpSize clock half nv_bfloat16 dim3
    """.split()  # noqa: SIM905
)
# Macros by their form; types; Arm intrinsics; the f32 functions of <math.h>.
_FORMS = re.compile(
    r"[A-Z][A-Z0-9_]*[A-Z0-9]|(u?int(ptr|max)?|s?size|ptrdiff)_t|(u?int|b?float|poly|u?char|u?short|u?long|double|half)\d\w*"
    r"|(sv|v)[a-z0-9]+_\w*[fsup]\d+\w*"
    r"|(a?(sin|cos|tan)h?|atan2|exp2?|expm1|log(2|10|1p|b)?|erfc?|[lt]gamma|pow|fm(a|ax|in|od)|fabs|fdim|floor|ceil"
    r"|round|rint|nearbyint|trunc|(r|cb)?sqrt|copysign|ldexp|frexp|modf|hypot|isnan|isinf|isfinite|signbit)[fl]?"
)


def is_reserved(name: str) -> bool:
    return name in _WORDS or _FORMS.fullmatch(name) is not None
