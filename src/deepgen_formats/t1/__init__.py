"""T1 files: kernels and spaces in a format shared by several tuners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.extend import Document, FileFormat, Space, TuningFile


class T1Format(FileFormat):
    space_file = "a T1 file (ConfigurationSpace)"
    holds_kernel = True

    def claims(self, data: Mapping[str, Any]) -> bool:
        return "ConfigurationSpace" in data

    def tuning(self, document: Document, space_strategy: int) -> TuningFile:
        from deepgen_formats.t1.kernels import read

        return read(document)

    def space(self, document: Document, space_strategy: int) -> Space:
        from deepgen_formats.t1.kernels import t1_space

        return t1_space(document.data, document.name)
