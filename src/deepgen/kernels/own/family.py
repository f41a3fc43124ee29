"""The generator of a user's own kernel: its knobs are the space, and its source with their values is the kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from deepgen.kernels import OWN_KERNELS
from deepgen.kernels.own import sources as reading
from deepgen.kernels.own.arguments import Argument, ScalarArgument, TensorArgument
from deepgen.kernels.own.description import Description, OwnLaunch
from deepgen.kernels.shared import source_text
from deepgen.operators import Operator
from deepgen.operators.signature import Size
from deepgen.space import Space, parse
from deepgen.space.expr import const
from deepgen.targets import Target
from deepgen.vocabulary import (
    BadInput,
    ConstantCopy,
    JsonObject,
    Kernel,
    LaunchPlan,
    ScalarArg,
    Source,
    Step,
    TensorArg,
    WorkspaceArg,
)

NAME = OWN_KERNELS
# The language in which a target's kernels are written, by the language of the source.
_BESIDES = {"c++": ("-lstdc++",)}
HIP_HEADER = "hip/hip_runtime.h"
_WRITTEN_IN = {"c": "c", "c++": "c", "cuda": "cuda", "hip": "hip", "triton": "triton"}


class KernelFamily:
    """The generator of one description. The study keeps the description as the recipe."""

    name = NAME

    def __init__(self, description: Description) -> None:
        self.description = description

    @property
    def recipe(self) -> JsonObject:
        return self.description.to_json()

    def refuses(self, operator: Operator, target: Target) -> str | None:
        described = self.description
        if _kernel_of(operator) != described.name:
            return f"it is the kernel {described.name}"
        if _WRITTEN_IN[described.language] not in target.languages:
            return (
                f"{described.file} is in {described.language}, but {target.name} runs {' or '.join(target.languages)}"
            )
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        space = Space(self.description.name)
        for name, values in self.description.knobs.items():
            space.knob(name, values)
        if not self.description.knobs:
            space.knob("ONLY", [0])  # a kernel without knobs has one config
        sizes = {name: const(value) for name, value in operator.sizes().items()}
        for text in self.description.requires:
            space.require(parse(text, sizes), text)
        return space

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        if self.description.default is not None:
            return dict(self.description.default)
        space = self.space(operator, target)
        return {} if space.empty() else space.first()

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        described = self.description
        knobs = {name: value for name, value in config.items() if name in described.knobs}
        numbers = {**operator.sizes(), **knobs}
        defines = {name: defined(value, numbers) for name, value in described.defines.items()}
        macros = tuple(f"-D{name}={_macro(value)}" for name, value in {**knobs, **defines}.items())
        plan = LaunchPlan(
            steps=tuple(self._step(one, knobs) for one in described.launches if not one.prepare),
            prepare=tuple(self._step(one, knobs) for one in described.launches if one.prepare),
            requires=(*self._compiled_for(operator), *self._required(knobs)),
            constants=tuple(ConstantCopy(t.symbol, t.name) for t in described.tensors if t.symbol is not None),
        )
        sources = self._sources(knobs)
        return Kernel(
            described.name,
            _WRITTEN_IN[described.language],
            sources,
            (*macros, *described.flags, *_BESIDES.get(described.language, ())),
            plan,
        )

    def _step(self, one: OwnLaunch, knobs: Mapping[str, Any]) -> Step:
        passed = [a for a in self.description.arguments if not (isinstance(a, TensorArgument) and a.symbol is not None)]
        # A constant that is listed by name is passed as well: some kernels have a parameter for it.
        by_name = {a.name: a for a in self.description.arguments}
        chosen = passed if one.arguments is None else [by_name[name] for name in one.arguments]
        return Step(
            entry=self._called(one.entry, knobs),
            args=tuple(_passed(a, knobs) for a in chosen),
            grid=tuple(_size(size, knobs) for size in one.grid),
            block=tuple(_size(size, knobs) for size in one.block),
            cluster=one.cluster,
            shared_bytes=_size(one.shared, knobs),
        )

    def _called(self, entry: str, knobs: Mapping[str, Any]) -> str:
        """The symbol, or the C++ name for which a build finds the symbol."""
        named = _entry(entry, knobs)
        c_linkage = self.description.language == "c" or any(reading.external(s.text) for s in self.description.sources)
        return named if c_linkage and named.isidentifier() else f"::{named.removeprefix('::')}"

    def _required(self, knobs: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        """The requirements on sizes for this config: a shape that violates them is not supported."""
        values = {name: const(value) for name, value in knobs.items()}
        parsed = {text: parse(text, values) for text in self.description.requires}
        return tuple((str(rule), f"its config is for '{text}'") for text, rule in parsed.items() if rule.knobs())

    def _compiled_for(self, operator: Operator) -> tuple[tuple[str, str], ...]:
        """A kernel with a size in its macros supports only that size."""
        sizes = operator.sizes()
        read = {
            name
            for value in self.description.defines.values()
            if isinstance(value, str)
            for name in _names(value)
            if name in sizes
        }
        return tuple((f"{name} == {sizes[name]}", f"it is compiled for {name}={sizes[name]}") for name in sorted(read))

    def _sources(self, knobs: Mapping[str, Any]) -> tuple[Source, ...]:
        """The user's files; the first includes what the language needs in addition."""
        first, *others = self.description.sources
        head, tail = "", self._constants(knobs)
        if self.description.language == "hip":
            others = [
                *(s for s in others if s.name != HIP_HEADER),
                Source(HIP_HEADER, source_text(__package__, "hip_runtime.h")),
            ]
            # Line numbers are those of the user's file.
            head = f'#include "{HIP_HEADER}"\n#line 1 "{first.name}"\n'
        if self.description.language in ("hip", "c++"):
            attribute = "__global__ " if self.description.language == "hip" else ""
            entries = dict.fromkeys(_entry(one.entry, knobs) for one in self.description.launches if "<" in one.entry)
            tail += "".join(f"template {attribute}decltype({name}) {name};\n" for name in entries)
        if not head and not tail:
            return self.description.sources
        return Source(first.name, f"{head}{first.text}\n{tail}"), *others

    def _constants(self, knobs: Mapping[str, Any]) -> str:
        """A definition of each `extern const int KERNEL_KNOB` that the sources declare."""
        used = reading.names(source.text for source in self.description.sources)
        wanted = {f"{self.description.name}_{name}": value for name, value in knobs.items()}
        lines = [f"const int {name} = {_macro(value)};\n" for name, value in wanted.items() if name in used]
        if not lines or self.description.language not in ("c", "c++"):
            return ""
        if self.description.language == "c":
            return "".join(lines)
        return 'extern "C" {\n' + "".join(f"extern {line}" for line in lines) + "}\n"


def _kernel_of(operator: Operator) -> str | None:
    data = operator.to_json()
    if data.get("name") == "recorded operator":
        data = data["data"]["operator"]  # type: ignore[index, call-overload, assignment]
    return data.get("kernel") if data.get("name") == NAME else None  # type: ignore[return-value]


def _passed(argument: Argument, knobs: Mapping[str, Any]) -> TensorArg | ScalarArg | WorkspaceArg:
    if isinstance(argument, TensorArgument):
        return TensorArg(argument.name)
    if isinstance(argument, ScalarArgument):
        # An independent number is passed by name: a call may give another value.
        named = argument.value if isinstance(argument.value, str) else argument.name
        return ScalarArg(argument.ctype, named)
    return WorkspaceArg(argument.name, _size(argument.bytes, knobs), zeroed=argument.zeroed)


def _size(size: Size, knobs: Mapping[str, Any]) -> Size:
    """An expression with knobs replaced by their values."""
    if not isinstance(size, str):
        return size
    expression = parse(size, {name: const(value) for name, value in knobs.items()})
    if expression.knobs():
        return str(expression)
    value = expression.evaluate({})
    if isinstance(value, float) and value == int(value):
        value = int(value)
    if type(value) is not int:
        raise BadInput(f"'{size}' gives {value!r}", allowed="an integer")
    return value


def _entry(entry: str, knobs: Mapping[str, Any]) -> str:
    """A template's arguments may name knobs, whose macros are not defined where the entry is looked up."""
    head, bracket, rest = entry.partition("<")
    words = _words(rest)
    return head + bracket + "".join(str(_macro(knobs[word])) if word in knobs else word for word in words)


def _words(text: str) -> list[str]:
    """Identifiers and the text between them."""
    return re.findall(r"[A-Za-z_]\w*|[^A-Za-z_]+", text)


def _names(value: str) -> frozenset[str]:
    try:
        return parse(value).knobs()
    except BadInput:
        return frozenset()


def defined(value: Size | float, numbers: Mapping[str, Any]) -> Any:
    """A macro's value: an expression over sizes and knobs is evaluated; other text is unchanged."""
    if not isinstance(value, str):
        return value
    names = _names(value)
    if names and names <= set(numbers):
        return parse(value, {name: const(number) for name, number in numbers.items()}).evaluate({})
    return value


def _macro(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value
