"""Legacy files of a predecessor of deepgen: tuning configs, lists of points, and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepgen.extend import Document, FileFormat, MeasuredConfig, Space, TuningFile


class TuningConfigFormat(FileFormat):
    """Tuning configs: candidates for each key."""

    space_file = "a tuning config (BLOCK_SIZE_M, ...)"

    def claims(self, data: Mapping[str, Any]) -> bool:
        return "BLOCK_SIZE_M" in data

    def tuning(self, document: Document, space_strategy: int) -> TuningFile:
        from deepgen_formats.older.generator import OlderGenerator

        generator = OlderGenerator(document.data, space_strategy, document.name)
        return TuningFile(document.path, (generator.operator,), generator=generator)

    def space(self, document: Document, space_strategy: int) -> Space:
        from deepgen_formats.older.files import tuning_space

        return tuning_space(document.data, space_strategy, document.name)


class PointsFormat(TuningConfigFormat):
    """A tuning config, and the list of points that forms the space."""

    space_file = "a legacy space file (template and cfgs)"

    def claims(self, data: Mapping[str, Any]) -> bool:
        return "template" in data and "cfgs" in data

    def space(self, document: Document, space_strategy: int) -> Space:
        from deepgen_formats.older.files import points_space

        return points_space(document.data, document.name)


class ResultsFormat(FileFormat):
    """Measured results of configs."""

    def claims(self, data: Mapping[str, Any]) -> bool:
        return isinstance(data.get("results"), list)

    def results(self, document: Document) -> Sequence[MeasuredConfig]:
        from deepgen_formats.older.results import read_results

        return read_results(document.data, document.name)
