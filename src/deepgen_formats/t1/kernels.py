"""The benchmark hub's T1 files: the space, the source next to the file, its arguments and its launch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from deepgen.extend import (
    INOUT,
    INPUT,
    NO_MODULE,
    OUTPUT,
    PLAIN_FLAGS,
    Argument,
    BadInput,
    Description,
    Document,
    Expr,
    OwnKernel,
    Size,
    Space,
    TensorArgument,
    TuningFile,
    checked_description,
    const,
    declared_parameters,
    divided,
    dtype,
    foreign,
    launch,
    parse,
    parse_values,
    read_source,
    scalar,
    strange_flag,
    text_of,
)

_LANGUAGES = {"CUDA": "cuda", "HIP": "hip", "C": "c", "C++": "c++"}
_TYPES = {
    "bool": "u8", "int": "i32", "int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32",
    "uint32": "u32", "int64": "i64", "uint64": "u64", "half": "f16", "float": "f32", "double": "f64",
}  # fmt: skip
_SIGNED = {"u16": "i16", "u32": "i32", "u64": "i64"}  # the same bytes in memory
_VECTOR_TYPE = re.compile(r"(half|float|double)(2|4|8|16)")
_ROLES = {"ReadOnly": INPUT, "WriteOnly": OUTPUT, "ReadWrite": INOUT}
_OVER_VALUES = re.compile(r"\b(max|min)\(\s*([A-Za-z_]\w*)\s*\)")
AXES = ("X", "Y", "Z")


def read(document: Document) -> TuningFile:
    """The kernel of a T1 file, and the file's run settings. The kernel's source must be next to the file."""
    try:
        with foreign.shaped(document.name, "is not a usable T1 file"):
            return _Reader(document).read()
    except BadInput as error:
        if error.where is not None:
            raise
        raise BadInput(error.what, where=document.name, allowed=error.allowed) from error


class _Reader:
    """Reads one file."""

    def __init__(self, document: Document) -> None:
        self.path, self.where, self.data = document.path, document.name, document.data
        self.space: Space = t1_space(self.data, self.where)
        self.specification: Mapping[str, Any] = self._section("KernelSpecification")
        self.knobs = {knob.name: tuple(knob.values) for knob in self.space.knobs}
        self.notes: list[str] = []

    def read(self) -> TuningFile:
        self._refuse_contradictions()
        language = _LANGUAGES[str(self.specification["Language"])]
        entry = self._text("KernelName")
        file = self._kernel_file()
        arguments, also_passed = self._arguments()
        chosen = self._passed(file, entry, arguments, also_passed)
        block = tuple(self._sizes("LocalSize"))
        grid = self._grid(block)
        shared = self._size(self.specification.get("SharedMemory") or 0)
        options = self.specification.get("CompilerOptions") or []
        if not isinstance(options, list) or not all(isinstance(o, str) for o in options):
            raise self._bad("CompilerOptions", options, "a list of strings")
        if (strange := strange_flag(language, options)) is not None:  # some flags run programs, or write files
            raise self._bad("CompilerOptions", strange[:80], PLAIN_FLAGS)
        description = Description(
            name=entry,
            language=language,
            sources=(),
            arguments=arguments,
            sizes={},
            knobs=self.knobs,
            launches=(launch(entry, grid=grid, block=block, shared=shared, arguments=chosen),),
            requires=tuple(requirement.name for requirement in self.space.requirements),
            flags=tuple(options),
            default=self._default(),
        )
        if self.specification.get("ReferenceArguments"):
            self.notes.append("KernelSpecification.ReferenceArguments is not used")
        load = partial(read_source, file, language, entry, file.parent, (), ())
        kernel = OwnKernel(checked_description(description), None, NO_MODULE, load)
        trials, seconds = self._budget()
        return TuningFile(self.path, kernel=kernel, trials=trials, time_budget=seconds, notes=tuple(self.notes))

    def _refuse_contradictions(self) -> None:
        """Report all incorrect keys in one sentence, so that the user can correct them together."""
        contradictions = []
        language = self.specification.get("Language")
        if language not in _LANGUAGES:
            contradictions.append(f"KernelSpecification.Language is {language!r} (allowed: {', '.join(_LANGUAGES)})")
        general = self.data.get("General")
        names = [general.get("BenchmarkName") if isinstance(general, Mapping) else None]
        names.append(self.specification.get("BenchmarkName"))
        if all(isinstance(name, str) for name in names):
            one, other = sorted(map(str, names), key=len)
            if not other.startswith(one):
                what = f"KernelSpecification.BenchmarkName is {names[1]!r}, but General.BenchmarkName is {names[0]!r}"
                contradictions.append(f"{what}: the arguments may belong to another kernel")
        for key, text in self._expressions():
            strange = self._strange(text)
            if strange:
                contradictions.append(f"KernelSpecification.{key} names {strange!r}, which is not a tuning parameter")
        if contradictions:
            raise BadInput(
                "; ".join(contradictions), where=self.where, allowed="correct these keys in a copy of the file"
            )

    def _expressions(self) -> Iterator[tuple[str, str]]:
        """The launch's expressions by key."""
        for key in ("LocalSize", *(() if "ProblemSize" in self.specification else ("GlobalSize",))):
            sizes = self.specification.get(key)
            if isinstance(sizes, Mapping):
                yield from ((f"{key}.{axis}", str(sizes[axis])) for axis in AXES if axis in sizes)
        for axis in AXES:
            divisors = self.specification.get(f"GridDiv{axis}")
            if isinstance(divisors, list):
                yield from ((f"GridDiv{axis}", str(one)) for one in divisors)

    def _strange(self, text: str) -> str | None:
        """A name in an expression that is not a tuning parameter."""
        return min(parse(text, self._named()).knobs() - set(self.knobs), default=None)

    def _arguments(self) -> tuple[tuple[Argument, ...], frozenset[str]]:
        """The arguments, and those in constant memory that the kernel may also take as parameters."""
        listed = self.specification.get("Arguments")
        if not isinstance(listed, list) or not listed:
            raise self._bad("Arguments", listed, "a list of the kernel's parameters")
        arguments, passed = [], set()
        for place, one in enumerate(listed):
            key = f"Arguments[{place}]"
            if not isinstance(one, Mapping):
                raise self._bad(key, one, "an object with Name, Type and MemoryType")
            arguments.append(self._argument(one, key))
            if one.get("MemType") == "Constant":
                passed.add(arguments[-1].name)
        return tuple(arguments), frozenset(passed)

    def _argument(self, one: Mapping[str, Any], key: str) -> Argument:
        name, kind, memory = one.get("Name", key.strip("]").replace("[", "_")), one.get("Type"), one.get("MemoryType")
        wide = _VECTOR_TYPE.fullmatch(str(kind))
        if not isinstance(name, str) or not name.isidentifier():
            raise self._bad(f"{key}.Name", name, "a name such as input_image")
        stored = _TYPES.get(wide[1] if wide else str(kind))
        if stored is None:
            raise self._bad(f"{key}.Type", kind, "one of " + ", ".join(_TYPES))
        if memory == "Scalar":
            value = one.get("FillValue")
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise self._bad(f"{key}.FillValue", value, "a number")
            return scalar(name, stored, value)
        if memory not in ("Vector", "Symbol"):
            raise self._bad(f"{key}.MemoryType", memory, "Scalar, Vector or Symbol")
        stored = _SIGNED.get(stored, stored)
        if "Size" not in one:
            raise self._bad(f"{key}.Size", None, "the number of elements")
        size = self._elements(one["Size"], f"{key}.Size") * int(wide[2] if wide else 1)
        access = one.get("AccessType") or ("ReadWrite" if one.get("Output") else "ReadOnly")
        if access not in _ROLES:
            raise self._bad(f"{key}.AccessType", access, "one of " + ", ".join(_ROLES))
        role = _ROLES[access]
        symbol = name if memory == "Symbol" or one.get("MemType") == "Constant" else None
        if symbol is not None and role != INPUT:
            raise self._bad(f"{key}.AccessType", access, "ReadOnly, for constant memory")
        fill = None if role == OUTPUT else self._fill(one, key, stored)
        return TensorArgument(name, role, (size,), stored, fill, symbol=symbol)

    def _fill(self, one: Mapping[str, Any], key: str, stored: str) -> tuple[Any, ...]:
        """Constant values, or random ones between 0 and FillValue."""
        kind, value = one.get("FillType"), one.get("FillValue", 1)
        if kind not in ("Constant", "Random"):
            raise self._bad(f"{key}.FillType", kind, "Constant or Random")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._bad(f"{key}.FillValue", value, "a number")
        number = int(value) if dtype(stored).integer else float(value)
        low = number if kind == "Constant" else min(number, 0)
        return "integers" if dtype(stored).integer else "uniform", low, max(number, low)

    def _elements(self, size: Any, key: str) -> int:
        """The value of a size expression over ProblemSize and the largest or smallest value of a parameter."""
        if isinstance(size, str):
            text = _OVER_VALUES.sub(self._over_values, size)
            expression = parse(text, self._named())
            strange = min(expression.knobs(), default=None)
            if strange is not None:
                allowed = "ProblemSize and max(PARAMETER)"
                raise BadInput(f"KernelSpecification.{key} names {strange!r}", where=self.where, allowed=allowed)
            size = expression.evaluate({})
        if type(size) is not int or size < 1:
            raise self._bad(key, size, "an integer of at least 1")
        return size

    def _over_values(self, match: re.Match[str]) -> str:
        values = self.knobs.get(match[2])
        if values is None:
            return match[0]
        return str(max(values) if match[1] == "max" else min(values))

    def _passed(
        self, file: Path, entry: str, arguments: Sequence[Argument], maybe: frozenset[str]
    ) -> tuple[str, ...] | None:
        """The names of the arguments passed to the kernel; None for all except those in constant memory.

        A file lists data in constant memory among the arguments. Some kernels also have a parameter for it.
        """
        if not maybe:
            return None
        parameters = declared_parameters(text_of(file), entry)
        if parameters is None or len(parameters) != len(arguments):
            return None
        return tuple(argument.name for argument in arguments)

    def _grid(self, block: Sequence[Size]) -> tuple[Size, ...]:
        """The blocks of a launch: ProblemSize over its divisors, or GlobalSize in its own unit."""
        asked = tuple(self._sizes("GlobalSize")) if "GlobalSize" in self.specification else None
        if asked is not None and self.specification.get("GlobalSizeType", "OpenCL") != "CUDA":
            asked = tuple(f"ceil_div({size}, {one})" for size, one in zip(asked, block, strict=True))
        if "ProblemSize" not in self.specification:
            if asked is None:
                raise self._bad("ProblemSize", None, "a list of sizes")
            return asked
        sizes = self.specification["ProblemSize"]
        sizes = sizes if isinstance(sizes, list) else [sizes]
        grid: list[Size] = []
        for place, axis in enumerate(AXES):
            size = self._size(sizes[place]) if place < len(sizes) else 1
            divisors = self.specification.get(f"GridDiv{axis}")
            divisors = [block[place]] if divisors is None else divisors
            if not isinstance(divisors, list):
                raise self._bad(f"GridDiv{axis}", divisors, "a list of tuning parameters")
            grid.append(divided(size, divisors))
        if asked is not None and self._on_gpu() and not self._same(grid, asked):
            self.notes.append(
                "KernelSpecification.GlobalSize is not used: ProblemSize and GridDiv give a different grid"
            )
        return tuple(grid)

    def _on_gpu(self) -> bool:
        return self.specification["Language"] in ("CUDA", "HIP")

    def _same(self, one: Sequence[Size], other: Sequence[Size]) -> bool:
        """Whether two grids agree for a few configs."""
        configs = self.space.sample(8, 0)
        return all(
            parse(str(a)).evaluate(config) == parse(str(b)).evaluate(config)
            for config in configs
            for a, b in zip(one, other, strict=True)
        )

    def _sizes(self, key: str) -> Iterator[Size]:
        sizes = self.specification.get(key, {})
        if not isinstance(sizes, Mapping):
            raise self._bad(key, sizes, "an object with X, Y and Z")
        yield from (self._size(sizes.get(axis, 1)) for axis in AXES)

    def _size(self, size: Any) -> Size:
        """A number, or an expression over the parameters."""
        expression = parse(str(size), self._named())
        if expression.knobs():
            return str(expression)
        value = expression.evaluate({})
        if not isinstance(value, (int, float)) or value != int(value):
            raise BadInput(f"KernelSpecification has the size {size!r}", where=self.where, allowed="an integer")
        return int(value)

    def _named(self) -> dict[str, Any]:
        sizes = self.specification.get("ProblemSize")
        numbers = sizes if isinstance(sizes, list) else [sizes]
        return {"ProblemSize": const(tuple(numbers))} if all(type(n) is int for n in numbers) else {}

    def _default(self) -> dict[str, Any] | None:
        """The file's defaults, if they form a config of its space."""
        defaults = {one["Name"]: one.get("Default") for one in self.data["ConfigurationSpace"]["TuningParameters"]}
        if all(value is None for value in defaults.values()):
            return None
        for name, value in defaults.items():
            if value not in self.knobs[name]:
                self.notes.append(f"the Default of {name} is {value!r}, not one of its Values: no Default is used")
                return None
        broken = [one.name for one in self.space.explain(defaults)]
        if broken:
            self.notes.append(f"the Defaults break '{broken[0]}': no Default is used")
            return None
        return defaults

    def _budget(self) -> tuple[int | None, float | None]:
        budgets = self.data.get("Budget") or []
        trials, seconds = None, None
        for one in budgets if isinstance(budgets, list) else [budgets]:
            kind, value = (one.get("Type"), one.get("BudgetValue")) if isinstance(one, Mapping) else (None, None)
            if kind == "ConfigurationCount" and isinstance(value, (int, float)) and value >= 1:
                trials = int(value)
            elif kind == "TuningDuration" and isinstance(value, (int, float)) and value > 0:
                seconds = float(value)
            else:
                allowed = "Type ConfigurationCount or TuningDuration, and BudgetValue, a number"
                raise BadInput(f"Budget is {one!r}", where=self.where, allowed=allowed)
        return trials, seconds

    def _kernel_file(self) -> Path:
        """The source file next to the T1 file, in the folder that it names or without that folder."""
        named, folder = Path(self._text("KernelFile")), self.path.resolve().parent
        source = next((path for path in (folder / named, folder / named.name) if path.is_file()), None)
        if source is None:
            what = f"KernelSpecification.KernelFile is {str(named)!r}, but there is no such file"
            raise BadInput(what, where=self.where, allowed=f"a file in {folder}")
        return source

    def _section(self, key: str) -> Mapping[str, Any]:
        section = self.data.get(key)
        if not isinstance(section, Mapping):
            what = f"{key} is missing: the file describes a space but no kernel"
            raise BadInput(what, where=self.where, allowed="deepgen space show FILE")
        return section

    def _text(self, key: str) -> str:
        text = self.specification.get(key)
        if not isinstance(text, str) or not text:
            raise self._bad(key, text, "a text")
        return text

    def _bad(self, key: str, value: Any, allowed: str) -> BadInput:
        what = "is missing" if value is None else f"is {value!r:.80}"
        return BadInput(f"KernelSpecification.{key} {what}", where=self.where, allowed=allowed)


def t1_space(data: Mapping[str, Any], name: str = "T1 file") -> Space:
    """The space of a T1 file; `name` is used in errors."""
    try:
        section = data["ConfigurationSpace"]
        parameters, conditions = section["TuningParameters"], section.get("Conditions", [])
        kernel = data.get("General", {}).get("BenchmarkName", name)
        if not isinstance(parameters, list) or not isinstance(conditions, list):
            raise BadInput("TuningParameters or Conditions is not a list", where=name, allowed="lists of objects")
    except (KeyError, AttributeError, TypeError) as error:
        raise BadInput(
            f"key {error} is missing", where=name, allowed="ConfigurationSpace with TuningParameters"
        ) from error
    space = Space(str(kernel))
    for parameter in parameters:
        knob, values = _field(parameter, "Name", name), _field(parameter, "Values", name)
        try:
            space.knob(knob, parse_values(values) if isinstance(values, str) else values)
        except (BadInput, TypeError) as error:
            raise BadInput(f"parameter {knob!r}: {error}", where=name) from error
    for condition in conditions:
        text = _field(condition, "Expression", name)
        if not isinstance(text, str):
            raise BadInput(f"condition {text!r:.60}", where=name, allowed="an expression as text")
        try:
            expr: Expr = parse(text)
            if not any(r.name == text for r in space.requirements):
                space.require(expr, text)
        except BadInput as error:
            raise BadInput(f"condition {text!r}: {error}", where=name) from error
    return space


def _field(data: Any, key: str, where: str) -> Any:
    if not isinstance(data, Mapping) or key not in data:
        raise BadInput(f"key {key!r} is missing in {data!r}", where=where)
    return data[key]
