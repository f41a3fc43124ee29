"""Shared by kernel families: source files, common knob values, and kernels parameterized by macros."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from deepgen.operators import Operator
from deepgen.targets import Hip, Target
from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Source

if TYPE_CHECKING:
    from deepgen.space import Space

Config = dict[str, Any]
Kind = TypeVar("Kind", bound=Operator)
Chip = TypeVar("Chip", bound=Target)
Macros = Mapping[str, "int | str"]
Implied = tuple[tuple[str, str], ...]
NOTHING = ScalarArg("i64", 0)  # in place of an address that a kernel does not use


def served(operator: Operator, target: Target, kind: type[Kind], chip: type[Chip]) -> tuple[Kind, Chip]:
    """The operator and the target of a call after `refuses`, with their actual types."""
    assert isinstance(operator, kind) and isinstance(target, chip), "ask refuses() first"
    return operator, target


def covering(values: Sequence[int], size: int) -> list[int]:
    """The values below a size and the first that covers it: larger ones would give the same kernel."""
    below = [v for v in values if v < size]
    return [*below, *[v for v in values if v >= size][:1]]


def nearest(values: Sequence[int], wanted: int) -> int:
    return min(values, key=lambda v: abs(v - wanted))


def thread_counts(cores: int) -> list[int]:
    doubled = [1 << i for i in range(cores.bit_length()) if 1 << i < cores]
    return [*doubled, cores]


@dataclass(frozen=True)
class Kinds:
    """How configs are classified, and how far a model is trusted: it predicts the order within a kind better than
    between kinds."""

    kind: Callable[[Config], Hashable]
    tile: Callable[[Config], Hashable]
    same: float  # factor for each config already taken of a kind
    likely: float  # times the best: slower ones are not tried


def of_several_kinds(modelled: list[tuple[float, Config]], space: Space, kinds: Kinds) -> Iterator[Config]:
    """Configs that may be the fastest, the model's first choice first: each tile once per kind."""
    taken: Counter[Hashable] = Counter()
    least = inf
    left = [row for row in modelled if row[0] < inf]
    while left:
        time, best = min(left, key=lambda row: row[0] * kinds.same ** taken[kinds.kind(row[1])])
        if space.explain(best):  # others of the same tile may be admissible
            left = [row for row in left if row[1] is not best]
            continue
        same = kinds.kind(best), kinds.tile(best)
        left = [row for row in left if (kinds.kind(row[1]), kinds.tile(row[1])) != same]
        if time <= kinds.likely * least:
            least = min(least, time)
            taken[same[0]] += 1
            yield dict(best)


def sources(package: str, names: Iterable[str], *, epilogue: bool = False) -> tuple[Source, ...]:
    """Files of a package, or of this one if that does not have them; without what only epilogues as formulas need."""
    return tuple(Source(name, _resolved_text(package, name, epilogue)) for name in names)


@cache
def _resolved_text(package: str, name: str, epilogue: bool) -> str:
    text = source_text(package, name)
    return resolved(text, {"EPILOGUE": epilogue}) if "#if EPILOGUE" in text else text


@cache
def source_text(package: str, name: str) -> str:
    own = resources.files(package).joinpath(name)
    return (own if own.is_file() else resources.files(__name__).joinpath(name)).read_text()


def dialect_sources(language: str) -> tuple[Source, ...]:
    """The headers of the dialect, for a kernel in CUDA or HIP."""
    return sources(f"{__name__}.dialect", ("dialect.h", f"dialect_{language}.h"))


def resolved(text: str, words: Mapping[str, bool]) -> str:
    """A source in which each `#if WORD` of these is decided: a kernel has no trace of what it does not use."""
    kept: list[str] = []
    around: list[bool | None] = []  # what is decided of the conditions around a line; None: the compiler decides
    for line in text.splitlines(keepends=True):
        directive, word = [*line.split(), "", ""][:2]
        last: bool | None = None
        if directive.startswith("#if"):
            last = words.get(word) if directive == "#if" else None
            around.append(last)
        elif directive == "#endif":
            last = around.pop()
        elif directive == "#else" and (last := around[-1]) is not None:
            around[-1] = not last
        if last is None and False not in around:
            kept.append(line)
    return "".join(kept)


def part_of(namespace: str, main: str, files: Iterable[Source], macros: Macros) -> str:
    """A kernel's source as a part of a larger one, which includes the dialect before: its own headers are written out,
    its macros hold inside only, and its names are those of a namespace."""
    texts = {file.name: file.text for file in files}

    def written_out(name: str) -> str:
        lines: list[str] = []
        for line in texts.pop(name).splitlines():
            if line.startswith("#include"):
                header = line.split()[1].strip('"')
                lines += written_out(header).splitlines() if header in texts else []  # once, as the headers say
            elif line.strip() != "#pragma once":
                lines.append(line)
        return "\n".join(lines)

    named = [f"#define {name} {value}" for name, value in macros.items()]
    ended = [f"#undef {name}" for name in macros]
    own = re.sub(r"(?<![\w>])::(?=\w)", f"{namespace}::", written_out(main))
    return "\n".join([*named, f"namespace {namespace} {{", own, f"}}  // namespace {namespace}", *ended, ""])


def language_of(target: Target) -> str:
    return "hip" if isinstance(target, Hip) else "cuda"


def c_kernel(
    name: str, package: str, files: Iterable[str], macros: Macros, plan: LaunchPlan, more: Iterable[Source] = ()
) -> Kernel:
    """A multithreaded kernel in C. `more`: what an epilogue as a text needs."""
    more = tuple(more)
    own = (*sources(package, files, epilogue=bool(more)), *more)
    return Kernel(name, "c", own, ("-std=gnu11", "-pthread", *defines(macros)), plan)


def gpu_kernel(
    name: str, language: str, files: Iterable[Source], macros: Macros, plan: LaunchPlan, implied: Implied = ()
) -> Kernel:
    """A kernel in the dialect of CUDA and HIP."""
    return Kernel(
        name, language, (*files, *dialect_sources(language)), ("-std=c++17", *defines(macros)), plan, implied=implied
    )


def defines(macros: Macros) -> tuple[str, ...]:
    return tuple(f"-D{name}={value}" for name, value in macros.items())


def shared_headers() -> tuple[Source, ...]:
    """For code outside the package: a thread pool, and products by AMX tiles with their emulation."""
    return sources(__name__, ("cpu_pool.h", "x86_pool.h", "tiles.h", "emulate.h"))
