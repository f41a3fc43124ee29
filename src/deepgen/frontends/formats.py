"""Input files: each is opened once, parsed once within limits, and read by the first format that claims it.

Formats are found through the entry points `deepgen.formats`, those for writing studies through `deepgen.exporters`. The
content of a file is a `TuningFile`, in whichever format it is.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepgen.settings import read_toml
from deepgen.vocabulary import BadInput, DeepgenError, JsonObject, foreign
from deepgen.vocabulary.registry import Registry

if TYPE_CHECKING:
    from deepgen.generators import Generator
    from deepgen.kernels.own import OwnKernel
    from deepgen.operators import Operator
    from deepgen.space import Space
    from deepgen.space.expr import Config
    from deepgen.tuning.study.study import Study
    from deepgen.tuning.work import RecordedWork

SUFFIXES = (".toml", ".json")


@dataclass(frozen=True)
class Document:
    """A parsed file."""

    path: Path
    data: Any
    name: str  # for messages

    @property
    def items(self) -> Mapping[str, Any]:
        """The entries of a file that is an object or a table; empty for any other."""
        return self.data if isinstance(self.data, dict) else {}


@dataclass(frozen=True)
class TuningFile:
    """What a file asks to tune, checked; None for what it does not specify."""

    file: Path
    operators: tuple[Operator, ...] = ()  # one study each, or all in one study
    one_kernel: bool = False  # one kernel for all of them
    counts: Mapping[Operator, int] = field(default_factory=dict)  # how often a network contains each
    kernel: OwnKernel | None = None  # instead of operators; words and options may add details
    work: RecordedWork | None = None  # instead of operators: what a model computes
    generator: Generator | None = None  # with its own space, for a single operator
    target: str | None = None
    family: str | None = None
    threads: int | None = None
    knobs: Mapping[str, list[Any]] = field(default_factory=dict)
    trials: int | None = None
    time_budget: float | None = None
    seed: int | None = None
    strategy: str | None = None
    keep_top: int | None = None
    counters: str | list[str] | None = None
    out: Path | None = None
    runs: int | None = None  # of a timed kernel
    run_seconds: float | None = None  # of one run of a kernel
    build_seconds: float | None = None  # of one build
    notes: tuple[str, ...] = ()  # what the file specifies without effect
    after: Callable[[Study], None] | None = None  # called with each study when it has ended


@dataclass(frozen=True)
class MeasuredConfig:
    """One config as measured by another tool. A wrong one has no time."""

    config: Config
    correct: bool
    ms: float | None
    torch_ms: float | None
    gflops: float | None = None  # None if the config does not contain the problem's sizes

    @property
    def speedup(self) -> float | None:
        """Relative to torch."""
        return self.torch_ms / self.ms if self.ms and self.torch_ms else None

    def to_json(self) -> JsonObject:
        from deepgen.space.definition import value_to_json

        return {
            "config": {key: value_to_json(value) for key, value in self.config.items()},
            "correct": self.correct,
            "ms": self.ms,
            "torch_ms": self.torch_ms,
            "speedup": self.speedup,
            "gflops": self.gflops,
        }


class FileFormat(ABC):
    """A file format. Methods for what it does not contain return None, as here."""

    space_file = ""  # how messages refer to such a file where a space is expected
    holds_kernel = False  # whether `tuning` returns a kernel, so that the file name can be used as an operator

    @abstractmethod
    def claims(self, data: Mapping[str, Any]) -> bool:
        """Whether a parsed file has this format. The format then reports any other errors in it."""

    def tuning(self, document: Document, space_strategy: int) -> TuningFile | None:
        """What the file asks to tune."""
        return None

    def space(self, document: Document, space_strategy: int) -> Space | None:
        """The space that the file describes; `space_strategy` selects how an older tuning config is converted."""
        return None

    def results(self, document: Document) -> Sequence[MeasuredConfig] | None:
        """Results measured by another tool, the best first."""
        return None


class SpaceFile(FileFormat):
    """deepgen's own space files."""

    space_file = "a space file (deepgen.space/1)"

    def claims(self, data: Mapping[str, Any]) -> bool:
        return str(data.get("format", "")).startswith("deepgen.space/")

    def space(self, document: Document, space_strategy: int) -> Space:
        from deepgen.space import Space

        try:
            return Space.from_json(document.data)
        except BadInput as error:
            raise BadInput(str(error), where=document.name) from error


class WorkFile(FileFormat):
    """Files written by `deepgen.torch.record`."""

    def claims(self, data: Mapping[str, Any]) -> bool:
        return str(data.get("format", "")).startswith("deepgen work")

    def tuning(self, document: Document, space_strategy: int) -> TuningFile:
        from deepgen.tuning import work

        recorded = work.from_json(document.data, document.name)
        return TuningFile(document.path, work=recorded, target=recorded.target)


_LAST = "config"  # claims everything else, to report what is missing
FORMATS: Registry[Callable[[], FileFormat]] = Registry(
    "deepgen.formats",
    "file format",
    {
        "space": "deepgen.frontends.formats:SpaceFile",
        "work": "deepgen.frontends.formats:WorkFile",
        _LAST: "deepgen.frontends.cli.config_file:ConfigFile",
    },
)
EXPORTERS: Registry[Callable[[Study, int], JsonObject]] = Registry("deepgen.exporters", "export format", {})


def is_file_name(word: str) -> bool:
    return word.endswith(SUFFIXES)


def opened(path: Path, name: str | None = None) -> Document:
    """The parsed file."""
    return Document(path, read_toml(path) if path.suffix == ".toml" else foreign.read_json(path), name or str(path))


def read(path: Path, space_strategy: int | None = None, name: str | None = None) -> TuningFile:
    """What the file asks to tune."""
    return tuning_of(opened(path, name), space_strategy)


def kernel_of(document: Document) -> OwnKernel | None:
    """The kernel that a file contains; None if it contains something else."""
    for claimant in _claiming(document):
        if claimant.holds_kernel and (tuning := claimant.tuning(document, 1)) is not None:
            return tuning.kernel
    return None


def tuning_of(document: Document, space_strategy: int | None = None) -> TuningFile:
    """What a file asks to tune."""
    strategy = 1 if space_strategy is None else space_strategy
    readings = (claimant.tuning(document, strategy) for claimant in _claiming(document))
    return next(tuning for tuning in readings if tuning is not None)


def space_of(document: Document, space_strategy: int = 1) -> Space:
    """The space that a file describes."""
    for claimant in _claiming(document):
        if (space := claimant.space(document, space_strategy)) is not None:
            return space
    *first, last = [each.space_file for each in _formats() if each.space_file]
    raise BadInput(
        "this file does not describe a space",
        where=document.name,
        allowed=f"{', '.join(first)} or {last}" if first else last,
    )


def results_of(document: Document, name: str) -> Sequence[MeasuredConfig]:
    """The measurements in a file of the named format."""
    results = FORMATS.get(name)().results(document)
    if results is None:
        raise BadInput("contains no results", where=document.name)
    return results


def write_results(study: Study, prefix: str | Path, device: int = 0, count: int = 10) -> Path:
    """Write the best of a study to `<prefix>_card<device>.json`, like the legacy tool."""
    content = EXPORTERS.get("older_results")(study, count)
    path = Path(f"{prefix}_card{device}.json")
    try:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}", allowed="a folder that exists") from error
    return path


def _claiming(document: Document) -> Iterator[FileFormat]:
    return (each for each in _formats() if each.claims(document.items))


def _formats() -> Iterator[FileFormat]:
    """One after the other, deepgen's own first: if one claims the file, the rest are not imported."""
    for name in (*(name for name in FORMATS.names() if name != _LAST), _LAST):
        try:
            make = FORMATS.get(name)
        except DeepgenError:  # a plug-in that fails to load
            continue
        yield make()
