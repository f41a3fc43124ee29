"""Trial: a config on its way through build and measurement, with its measurement at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deepgen.vocabulary.json import Json
from deepgen.vocabulary.measurement import Measurement


@dataclass(frozen=True)
class Trial:
    """One tried config. `id` counts from 0 in its study; `rank` is the config's place in the space."""

    id: int
    rank: int
    config: Mapping[str, Any]
    kernel_id: str
    measurement: Measurement
    build_facts: Mapping[str, Json] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.measurement.ok

    @property
    def seconds(self) -> float | None:
        """The time that counts: None unless the kernel was right."""
        return self.measurement.seconds if self.ok else None
