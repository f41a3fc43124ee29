"""The generator of a user's own Triton kernel: its `tl.constexpr` parameters and Triton's options are the knobs.

Triton specializes code for arguments that are 1 or a multiple of 16. deepgen does the same for sizes and strides at
tuning time; the launch plan then requires it of every shape. Scalars that are keywords of a call may have any value.
Addresses are multiples of 16 bytes: calls on a GPU ensure that. On CPUs only the value 1 is specialized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from deepgen.kernels.own.arguments import Argument, ScalarArgument, TensorArgument
from deepgen.kernels.own.description import Description
from deepgen.kernels.own.family import KernelFamily, defined
from deepgen.operators import Operator
from deepgen.space import Space, parse
from deepgen.targets import Cpu, Gpu, Hip, Target
from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Step
from deepgen.vocabulary import dtype as dtype_of
from deepgen.vocabulary.kernel import DIVISIBLE, NEAR, TritonUnit
from deepgen.vocabulary.registry import LOWERINGS

# Compiler options, which are knobs under their own names; those of one kind of target are listed separately.
OPTIONS = {
    "": ("num_warps", "num_stages", "num_ctas", "enable_fp_fusion"),
    "cuda": ("maxnreg",),
    "hip": ("waves_per_eu", "matrix_instr_nonkdim", "kpack", "allow_flush_denorm", "schedule_hint"),
    "cpu": ("num_threads",),
}
ALL_OPTIONS = frozenset(name for names in OPTIONS.values() for name in names)
_WARPS = 4  # unless given
_TYPES = {
    "f16": "fp16", "f32": "fp32", "f64": "fp64", "tf32": "fp32", "f8e4m3": "fp8e4nv", "f8e5m2": "fp8e5",
}  # fmt: skip
_NEAR_BYTES = (1 << 31) - 1
_GRANULE = 16


class TritonFamily(KernelFamily):
    """The generator of one description in Triton."""

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if isinstance(target, Cpu):
            if "triton" not in LOWERINGS:
                return "no plug-in is installed that lowers Triton's IR to C"
            served, release = LOWERINGS.get("triton")().RELEASE, self.description.options["triton"]
            if not release.startswith(f"{served}."):
                return f"it is for Triton {release}, but CPUs are supported with {served}"
        foreign = [n for n in self.description.knobs if n in ALL_OPTIONS and n not in _options(target)]
        if foreign and isinstance(target, Gpu):
            return f"knob {foreign[0]} is not a Triton option for {target.kind} targets"
        return super().refuses(operator, target)

    def space(self, operator: Operator, target: Target) -> Space:
        return KernelFamily(_described_for(self.description, target)).space(operator, target)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return KernelFamily(_described_for(self.description, target)).default(operator, target)

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        described = _described_for(self.description, target)
        assert isinstance(target, (Gpu, Cpu)), "ask refuses() first"
        knobs = {name: value for name, value in config.items() if name in described.knobs}
        numbers = {**operator.sizes(), **knobs}
        valued = {**knobs, **{name: defined(value, numbers) for name, value in described.defines.items()}}
        options_of = described.options
        constants = {n: valued[n] if n in valued else options_of["defaults"][n] for n in options_of["constants"]}
        options = {name: value for name, value in knobs.items() if name in ALL_OPTIONS}
        parameters, ones, requires = _specialised(described, operator, target)
        unit = TritonUnit(
            options_of["triton"], options_of["key"], described.launches[0].entry, parameters, constants | ones, options
        )
        step = self._step(described.launches[0], knobs)
        flags = unit.flags()
        if isinstance(target, Cpu):
            call = _called(step, described, ones, options, target)
            flags = (*flags, f"--lowering={LOWERINGS.get('triton')().digest()}")
        else:
            call = _launched(step, described, ones, options, target)
        required = KernelFamily(described)._required(knobs)
        plan = LaunchPlan((call,), requires=(*self._compiled_for(operator), *required, *requires.items()))
        return Kernel(described.name, "triton", described.sources, flags, plan)


def _options(target: Target) -> tuple[str, ...]:
    return OPTIONS["cpu"] if isinstance(target, Cpu) else OPTIONS[""] + OPTIONS.get(target.kind, ())


def _described_for(described: Description, target: Target) -> Description:
    """The description for a CPU: without the options that shape code for GPUs, and without requirements that name
    them."""
    if not isinstance(target, Cpu):
        return described
    dropped = ALL_OPTIONS - set(OPTIONS["cpu"]) - {"enable_fp_fusion"}
    kept = tuple(text for text in described.requires if not parse(text).knobs() & dropped)
    default = described.default
    return replace(
        described,
        knobs={name: values for name, values in described.knobs.items() if name not in dropped},
        requires=kept,
        default=None if default is None else {name: v for name, v in default.items() if name not in dropped},
    )


def _called(
    step: Step, described: Description, ones: Mapping[str, int], options: Mapping[str, Any], target: Cpu
) -> Step:
    """One call for the whole grid; the build adds scratch memory for each thread."""
    names = described.options["parameters"]
    args = tuple(arg for name, arg in zip(names, step.args, strict=True) if name not in ones)
    grid = (*step.grid, 1, 1)[:3]
    threads = int(options.get("num_threads") or target.cores)
    entry = LOWERINGS.get("triton")().ENTRY
    return Step(entry, (*args, *(ScalarArg("i32", size) for size in grid), ScalarArg("i32", threads)))


def _launched(
    step: Step, described: Description, ones: Mapping[str, int], options: Mapping[str, Any], target: Gpu
) -> Step:
    """A launch with the facts known before the build: the remaining parameters, and the clusters of blocks."""
    names = described.options["parameters"]
    x, *others = step.grid
    blocks = int(options.get("num_ctas", 1))
    return replace(
        step,
        entry=described.launches[0].entry,
        args=tuple(arg for name, arg in zip(names, step.args, strict=True) if name not in ones),
        grid=(x if blocks == 1 else f"({x}) * {blocks}", *others),
        block=(target.warp * int(options.get("num_warps", _WARPS)), 1, 1),
        cluster=(blocks, 1, 1),
    )


def _specialised(
    described: Description, operator: Operator, target: Target
) -> tuple[dict[str, list[str]], dict[str, int], dict[str, str]]:
    """The parameters with the known facts about their values, those that are 1, and the resulting conditions on
    shapes."""
    numbers = operator.scalars()
    divisible = isinstance(target, Gpu)  # on a CPU divisibility does not affect the code
    parameters: dict[str, list[str]] = {}
    ones: dict[str, int] = {}
    requires: dict[str, str] = {}
    fixed = set(described.options["unspecialised"])
    for name, argument in zip(described.options["parameters"], described.arguments, strict=True):
        parameters[name] = [_type(argument)]
        if isinstance(argument, TensorArgument):
            parameters[name] += [DIVISIBLE] if divisible and name not in fixed else []
            if isinstance(target, Hip) and _near(argument, operator):
                parameters[name].append(NEAR)
                size = " * ".join([str(dtype_of(argument.dtype).bytes), *(f"({size})" for size in argument.shape)])
                requires.setdefault(f"{size} <= {_NEAR_BYTES}", f"{argument.name} must be smaller than 2 GB")
            continue
        if not isinstance(argument, ScalarArgument):
            parameters[name] += [DIVISIBLE] if divisible else []
            continue
        if name in fixed or isinstance(argument.value, (int, float)) or argument.ctype.startswith("f"):
            continue
        text = argument.value or argument.name
        value = parse(text).evaluate(numbers)
        if value == 1:
            ones[name] = 1
            del parameters[name]
            requires[f"({text}) == 1"] = f"it is compiled for {text} = 1"
        elif divisible and isinstance(value, int) and value % _GRANULE == 0:
            parameters[name].append(DIVISIBLE)
            requires[f"({text}) % {_GRANULE} == 0"] = f"{text} must be a multiple of {_GRANULE}"
    return parameters, ones, requires


def _near(argument: TensorArgument, operator: Operator) -> bool:
    shape = next(tensor.shape for tensor in operator.tensors() if tensor.name == argument.name)
    return prod(shape) * dtype_of(argument.dtype).bytes <= _NEAR_BYTES


def _type(argument: Argument) -> str:
    """A parameter's type in Triton's spelling."""
    if isinstance(argument, ScalarArgument):
        return _TYPES.get(argument.ctype, argument.ctype)
    if isinstance(argument, TensorArgument):
        return "*" + _TYPES.get(argument.dtype, argument.dtype)
    return "*i8"


def from_recipe(recipe: Mapping[str, Any]) -> KernelFamily:
    """The generator that a study kept."""
    return family_of(Description.from_json(recipe))


def family_of(described: Description) -> KernelFamily:
    """The generator of a description."""
    return TritonFamily(described) if described.language == "triton" else KernelFamily(described)
