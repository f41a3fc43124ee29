"""`dg.kernel`: a kernel with knobs, in one call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from deepgen.kernels.own import arguments, triton_text
from deepgen.kernels.own import sources as reading
from deepgen.kernels.own.arguments import Argument, ScalarArgument, ScratchArgument, TensorArgument
from deepgen.kernels.own.description import (
    Description,
    OwnLaunch,
    Reference,
    checked,
    launch,
    values_of,
)
from deepgen.kernels.own.family import KernelFamily
from deepgen.kernels.own.operator import KernelOperator, class_of
from deepgen.kernels.own.triton_family import family_of
from deepgen.operators import Tolerance
from deepgen.operators.signature import Size
from deepgen.vocabulary import BadInput, JsonObject, Source, dtype

NO_MODULE = "<no module>"  # for a kernel that is loaded from data
_NOWHERE = f"{NO_MODULE}.kernel"  # for a kernel without a name in any module


class OwnKernel:
    """A user's own kernel, as `dg.tune` and the command line take it: an operator with a single family."""

    def __init__(
        self,
        description: Description,
        reference: Reference,
        module: str,
        read: Callable[[], tuple[Source, ...]],
        baseline: Callable[..., Any] | None = None,
    ) -> None:
        self.description, self.reference, self.baseline = description, reference, baseline
        self._module, self._read = module, read

    @cached_property
    def family(self) -> KernelFamily:
        """Reads the sources, which are needed for nothing else: a study keeps a copy of them."""
        described = replace(self.description, sources=self._read())
        if described.language == "triton":
            return family_of(triton_text.keyed(described))
        # Files and scripts for other tools share parameters between kernels: some have only one value and are not used.
        _check_sources(described, spare_fixed=self._module == NO_MODULE)
        return family_of(described)

    @cached_property
    def kind(self) -> type[KernelOperator]:
        """The class of its operators. Created when tuning begins: the kernel then has a name in its module."""
        held = vars(sys.modules[self._module]) if self._module in sys.modules else {}
        attribute = next((name for name, value in held.items() if value is self), _NOWHERE)
        place = self._module, attribute
        return class_of(self.description, self.reference, lambda: self.family, *place, baseline=self.baseline)

    def operator(self, **words: int | float) -> KernelOperator:
        """Its operator, with other values for some sizes and scalars."""
        names = (*self.description.sizes, *(s.name for s in self.description.scalars))
        strange = sorted(set(words) - set(names))
        if strange:
            raise BadInput(f"{self.description.name} has no size {strange[0]!r}", allowed="one of " + ", ".join(names))
        return self.kind.make(words)

    def from_json(self, data: Mapping[str, Any]) -> KernelOperator:
        """The operator of a study."""
        return self.kind.from_json(data)

    def __repr__(self) -> str:
        knobs = ", ".join(f"{name}: {len(values)} values" for name, values in self.description.knobs.items())
        return f"<deepgen kernel {self.description.name} in {self.description.language}; {knobs or 'no knobs'}>"


def kernel(
    source: str | Path | Any,
    *,
    entry: str | None = None,
    arguments: Sequence[Argument],
    sizes: Mapping[str, int],
    knobs: Mapping[str, Sequence[Any] | str] | None = None,
    requires: Sequence[str] = (),
    grid: Sequence[Size] | Size = (1,),
    block: Sequence[Size] | Size = (1,),
    shared: Size = 0,
    cluster: Sequence[int] = (1, 1, 1),
    launches: Sequence[OwnLaunch] | None = None,
    language: str | None = None,
    name: str | None = None,
    sources: Sequence[str | Path] = (),
    include: Sequence[str | Path] = (),
    flags: Sequence[str] = (),
    defines: Mapping[str, Size | float] | None = None,
    libraries: Sequence[str] = (),
    default: Mapping[str, Any] | None = None,
    reference: Reference = None,
    baseline: Callable[..., Any] | None = None,
    tolerance: tuple[float, float] | Mapping[str, tuple[float, float]] | None = None,
    flops: Size | Mapping[str, Size] | None = None,
    bytes: Size | None = None,
    probes: Mapping[str, Mapping[str, Any]] | None = None,
) -> OwnKernel:
    """A kernel of your own, to be tuned with `dg.tune(kernel)` or `deepgen tune FILE.py`.

    `source` is a path or the text itself, in C, C++, CUDA or HIP, or a `@triton.jit` function; `entry` names its
    function, which may be a template ("k<float, BLOCK>"). `arguments` are its parameters in their order: `dg.input`,
    `dg.output`, `dg.inout`, `dg.scalar`, `dg.workspace`, `dg.constant`. `sizes` maps the symbols of their shapes
    to numbers; a loaded kernel takes them from the arrays of a call.

    `knobs` reach the source as macros, or as the `tl.constexpr` parameters of a Triton kernel, with num_warps,
    num_stages, num_ctas and other options of its compiler beside them. `requires`, `grid`, `block`, `shared` and
    `defines` are expressions over knobs and sizes. Several launches are given as `launches`, a list of
    `dg.launch(...)`. `default` is the config to start from; by default the first that the requirements allow.

    `reference` is a function that gets arrays in higher precision by the arguments' names and returns the outputs, or
    the expected arrays themselves. `baseline` is a function of the same form that gets the arrays as they are: it is
    verified and timed beside the winner. `tolerance` is (absolute, relative), or that for each output by name. `probes`
    are more inputs to be correct on: names, each with fills for some arguments. `flops` and `bytes` count the work, so
    that speeds can be shown. Files included by the source are searched for beside it and in the `include` folders.
    """
    caller = sys._getframe(1).f_globals
    folder = _folder_of(caller)
    function = triton_text.function_of(source, language, entry, folder)
    if function is None and not isinstance(source, (str, Path)):
        raise BadInput(f"source is {source!r}", allowed="a path, source text, or a @triton.jit function")
    written_in = reading.language_of(source, language) if function is None else "triton"
    first = entry or (launches[0].entry if launches else None) or (function and function.fn.__name__)
    if first is None:
        raise BadInput("the kernel has no entry", allowed="entry=, the name of the function to call")
    called = name or first.partition("<")[0].strip(":")
    read = partial(reading.read, source, written_in, called, folder, include, sources)
    options: JsonObject = {}
    if function is not None:
        triton_text.refuse(launches, block, shared, cluster, sources, include, flags, libraries)
        read = partial(triton_text.read, function)
        options = triton_text.options(function, arguments, [*(knobs or {}), *(defines or {})])
    one = () if launches else (launch(first, grid=grid, block=block, shared=shared, cluster=cluster),)
    description = Description(
        name=called,
        language=written_in,
        sources=(),
        arguments=tuple(arguments),
        sizes=dict(sizes),
        knobs={knob: values_of(knob, values) for knob, values in (knobs or {}).items()},
        launches=tuple(launches or ()) + one,
        requires=tuple(requires),
        flags=(*flags, *(f"-l{library}" for library in libraries)),
        defines=dict(defines or {}),
        default=default,
        flops=_flops(flops, arguments),
        bytes=bytes,
        tolerance=_tolerances(tolerance, arguments),
        probes=probes or {},
        options=options,
    )
    _check(description, reference)
    if not callable(baseline) and baseline is not None:
        raise BadInput(f"baseline is {baseline!r}", allowed="a function of the kernel's arguments and sizes")
    return OwnKernel(checked(description), reference, caller.get("__name__", "__main__"), read, baseline)


def from_recipe(recipe: Mapping[str, Any]) -> OwnKernel:
    """The kernel that a study stored completely: one that is described by data alone, without a reference."""
    described = Description.from_json(recipe)
    return OwnKernel(described, None, NO_MODULE, lambda: described.sources)


def _check(described: Description, reference: Reference) -> None:
    for argument in described.arguments:
        if not isinstance(argument, (TensorArgument, ScalarArgument, ScratchArgument)):
            raise BadInput(f"an argument is {argument!r}", allowed="dg.input, dg.output, dg.inout, dg.scalar, ...")
        if isinstance(argument, TensorArgument):
            arguments.check(argument)
    expected = not callable(reference) and reference is not None and not isinstance(reference, OwnKernel)
    loose = next((t.name for t in described.tensors if t.role != "output" and arguments.free(t)), None)
    if expected and loose is not None:
        what = f"the reference consists of arrays, but {loose} is filled at random"
        raise BadInput(what, allowed=f"fill={loose}'s array, or a function as the reference")


def _check_sources(described: Description, *, spare_fixed: bool) -> None:
    """Raises BadInput if the sources and their description differ."""
    text = described.sources[0].text
    passed = [a for a in described.arguments if not (isinstance(a, TensorArgument) and a.symbol is not None)]
    by_name = {a.name: a for a in described.arguments}
    for one in described.launches:
        chosen = passed if one.arguments is None else [by_name[n] for n in one.arguments]
        reading.check(one.entry, described.file, text, chosen)
    mentioned = reading.names(source.text for source in described.sources)
    used = " ".join(str(size) for one in described.launches for size in (*one.expressions(), one.entry))
    used += " ".join(map(str, described.defines.values()))
    for knob, values in described.knobs.items():
        names = {knob, f"{described.name}_{knob}"}
        spared = spare_fixed and len(values) == 1
        if not spared and not names & mentioned and knob not in reading.names([used]):
            raise BadInput(
                f"knob {knob} is a macro that {described.file} never uses", allowed="use a name that occurs in it"
            )


def _flops(flops: Size | Mapping[str, Size] | None, arguments: Sequence[Argument]) -> dict[str, Size]:
    if flops is None:
        return {}
    if isinstance(flops, Mapping):
        return {dtype(of).name: count for of, count in flops.items()}
    tensors = [a for a in arguments if isinstance(a, TensorArgument)]
    floats = [t.dtype for t in tensors if not dtype(t.dtype).integer]
    return {floats[0] if floats else "f32" if not tensors else tensors[0].dtype: flops}


def _tolerances(tolerance: Any, arguments: Sequence[Argument]) -> dict[str, Tolerance]:
    outputs = [a.name for a in arguments if isinstance(a, TensorArgument) and a.role != "input"]
    by_name = (
        tolerance if isinstance(tolerance, Mapping) else {} if tolerance is None else dict.fromkeys(outputs, tolerance)
    )
    try:
        tolerances = {
            name: Tolerance(float(absolute), float(relative)) for name, (absolute, relative) in by_name.items()
        }
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"tolerance is {tolerance!r}", allowed="(absolute, relative), or such a pair by output"
        ) from error
    strange = sorted(set(tolerances) - set(outputs))
    if strange:
        raise BadInput(f"tolerance names {strange[0]!r}", allowed="one of " + ", ".join(outputs))
    return tolerances


def _folder_of(caller: Mapping[str, Any]) -> Path:
    """The folder of the describing file: paths are relative to it, as in a Makefile."""
    file = caller.get("__file__")
    return Path(file).resolve().parent if isinstance(file, str) else Path.cwd()
