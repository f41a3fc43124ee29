"""The description of a user's own kernel: everything needed to tune it, as data except its reference and inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from deepgen.kernels.own.arguments import Argument, ScalarArgument, ScratchArgument, TensorArgument
from deepgen.operators import Tolerance
from deepgen.operators.signature import Size
from deepgen.space import parse
from deepgen.space.parse import parse_values
from deepgen.vocabulary import BadInput, Source
from deepgen.vocabulary.codec import Serializable, coded

# A function, expected arrays, another kernel, or None: the first config's results.
Reference: TypeAlias = Any
FORMAT = "deepgen-kernel 1"


@dataclass(frozen=True)
class OwnLaunch(Serializable):
    """One launch: sizes are numbers or expressions over sizes and knobs; `arguments` are names, None for all."""

    entry: str
    grid: tuple[Size, ...] = (1, 1, 1)
    block: tuple[Size, ...] = (1, 1, 1)
    shared: Size = 0
    cluster: tuple[int, ...] = (1, 1, 1)
    arguments: tuple[str, ...] | None = None
    prepare: bool = False  # runs once: its results are kept, and its inputs are assumed to be constant

    def expressions(self) -> tuple[Size, ...]:
        return *self.grid, *self.block, self.shared


def launch(
    entry: str,
    *,
    grid: Sequence[Size] | Size = (1,),
    block: Sequence[Size] | Size = (1,),
    shared: Size = 0,
    cluster: Sequence[int] = (1, 1, 1),
    arguments: Sequence[str] | None = None,
    prepare: bool = False,
) -> OwnLaunch:
    """One launch of a kernel that has several. `prepare`: it runs once, before any timing, for example to pack
    weights."""
    chosen = None if arguments is None else tuple(arguments)
    return OwnLaunch(entry, _three(grid), _three(block), shared, tuple(cluster), chosen, prepare)


def _three(sizes: Sequence[Size] | Size) -> tuple[Size, ...]:
    three = (sizes,) if isinstance(sizes, (int, str)) else tuple(sizes)
    if not 1 <= len(three) <= 3:
        raise BadInput(f"a launch has {len(three)} dimensions", allowed="one to three")
    return *three, *(1,) * (3 - len(three))


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _knobs(data: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(map(_value, values)) for name, values in data.items()}


@dataclass(frozen=True)
class Description(Serializable):
    """The description of a kernel in a study: enough to emit it again in another process."""

    name: str
    language: str
    sources: tuple[Source, ...]
    arguments: tuple[Argument, ...]
    sizes: Mapping[str, int]
    knobs: Mapping[str, tuple[Any, ...]] = field(metadata=coded(read=_knobs))
    launches: tuple[OwnLaunch, ...]
    requires: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    defines: Mapping[str, Size | float] = field(default_factory=dict)
    default: Mapping[str, Any] | None = None
    flops: Mapping[str, Size] = field(default_factory=dict)  # arithmetic -> operations
    bytes: Size | None = None
    tolerance: Mapping[str, Tolerance] = field(
        default_factory=dict,
        metadata=coded(
            write=lambda own: {name: [t.absolute, t.relative] for name, t in own.items()},
            read=lambda pairs: {name: Tolerance(*pair) for name, pair in pairs.items()},
        ),
    )
    # Name -> fills of some inputs, of which JSON has the names.
    probes: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict, metadata=coded(write=sorted, read=lambda names: {name: {} for name in names})
    )
    options: Mapping[str, Any] = field(default_factory=dict)  # of the language: additional needs of its toolchain
    format: str = field(default=FORMAT, metadata=coded(first=True))

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise BadInput(f"a kernel's description has the format {self.format!r}", allowed=FORMAT)

    @property
    def tensors(self) -> tuple[TensorArgument, ...]:
        return tuple(a for a in self.arguments if isinstance(a, TensorArgument))

    @property
    def scalars(self) -> tuple[ScalarArgument, ...]:
        """The scalars that are keywords of a call: independent numbers that do not follow from shapes."""
        return tuple(a for a in self.arguments if isinstance(a, ScalarArgument) and isinstance(a.value, (int, float)))

    @property
    def file(self) -> str:
        return self.sources[0].name


def checked(description: Description) -> Description:
    """The description itself. Raises BadInput for the first inconsistency."""
    names = [a.name for a in description.arguments]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"two arguments are named {twice!r}", allowed="give each its own name")
    both = sorted(set(description.knobs) & set(description.sizes))
    if both:
        raise BadInput(f"{both[0]!r} is a knob and a size", allowed="rename one of them")
    for name, number in description.sizes.items():
        if type(number) is not int or number < 1:
            raise BadInput(f"size {name} is {number!r}", allowed="an integer of at least 1")
    if not any(isinstance(a, TensorArgument) and a.role != "input" for a in description.arguments):
        raise BadInput("the kernel has no output", allowed="dg.output(...) or dg.inout(...) among its arguments")
    strides = {f"stride_{t.name}_{i}" for t in description.tensors for i in range(len(t.shape))}
    sizes = {*description.sizes, *(s.name for s in description.scalars)}
    for tensor in description.tensors:
        for size in tensor.shape:
            check_names(size, set(description.sizes), f"the shape of {tensor.name}")
    for scalar in description.arguments:
        if isinstance(scalar, ScalarArgument) and not isinstance(scalar.value, (int, float)):
            check_names(scalar.value or scalar.name, sizes | strides, f"scalar {scalar.name}")
        if isinstance(scalar, ScratchArgument):
            check_names(scalar.bytes, sizes | set(description.knobs), f"workspace {scalar.name}")
    for one in description.launches:
        for size in one.expressions():
            check_names(size, sizes | strides | set(description.knobs), f"the launch of {one.entry}")
        for name in one.arguments or ():
            if name not in names:
                raise BadInput(f"the launch of {one.entry} passes {name!r}", allowed="one of " + ", ".join(names))
    for text in description.requires:
        check_names(text, set(description.sizes) | set(description.knobs), f"requirement '{text}'")
    for name, value in description.defines.items():
        check_names(value, set(description.sizes) | set(description.knobs) | {str(value)}, f"define {name}")
    for name, value in {**description.flops, "bytes": description.bytes or 0}.items():
        check_names(value, sizes, f"the count of {name}")
    return description


def check_names(text: Size | float, names: set[str], where: str) -> None:
    """Raises BadInput if an expression uses an unknown name."""
    if not isinstance(text, str) or text in names:
        return
    strange = sorted(parse(text).knobs() - names)
    if strange:
        raise BadInput(f"{where} names {strange[0]!r}", allowed="one of " + (", ".join(sorted(names)) or "nothing"))


def values_of(name: str, listed: Any) -> tuple[Any, ...]:
    """The values of a knob: a list, or its text."""
    values = parse_values(listed) if isinstance(listed, str) else list(listed)
    if not values:
        raise BadInput(f"knob {name} has no values", allowed="a list of numbers or texts")
    return tuple(_value(v.item() if hasattr(v, "item") else v) for v in values)


def divided(size: Size, divisors: Sequence[Size]) -> Size:
    """A size divided by the product of its divisors, rounded up."""
    if not divisors:
        return size
    product = " * ".join(f"({one})" for one in divisors)
    return f"ceil_div({size}, {product})"
